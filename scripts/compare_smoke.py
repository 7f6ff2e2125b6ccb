"""Compares the numbers of small runs with those of one of them, for scripts/gpu_smoke.sh.

    python scripts/compare_smoke.py FOLDER "tiny-bandit-text one GPU"

`FOLDER` has a folder of each run; the reference is named second, and those whose names begin with
the same word are compared with it. The table has the largest relative difference of a metric in the
first iteration, and in the second with the metric's name; updates have by then added to it. It ends
with exit code 1 if a metric of the first iteration differs by more than `--tolerance`, which is not
asked of runs with vLLM, as they sample other replies, or if sampling and training disagree on
log-probs by more than `--gap` on average.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

COMPARED = ("rollout/return", "rollout/reply_tokens", "train/", "optim/actor_grad_norm")
LITTLE = 0.05
"""Differences are relative to the value or to this, whichever is larger."""


def metrics(run: Path) -> dict[int, dict[str, float]]:
    """What a run has logged in each iteration."""
    found: dict[int, dict[str, float]] = {}
    for log in sorted(run.rglob("log.jsonl")):
        for record in map(json.loads, log.read_text().splitlines()):
            found.setdefault(record["iteration"], {}).update(record)
    return found


def largest(here: dict[str, float], there: dict[str, float]) -> tuple[float, str]:
    """The largest relative difference of what both runs have logged, and where it is."""
    names = [name for name in there if name.startswith(COMPARED) and name in here]
    return max(
        (abs(here[name] - there[name]) / max(abs(there[name]), LITTLE), name) for name in names
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("reference")
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--gap", type=float, default=0.02)
    given = parser.parse_args()
    wanted = metrics(given.folder / given.reference)
    label = given.reference.split(" ")[0]
    bad = False
    print(f"{'compared with ' + given.reference:<44}{'1st':>7}{'2nd':>7}{'gap':>9}  differs most")
    for run in sorted(path for path in given.folder.glob(f"{label} *") if path.is_dir()):
        seen = metrics(run)
        if run.name == given.reference or not {1, 2} <= seen.keys() & wanted.keys():
            continue
        (first, _), (second, name) = (largest(seen[number], wanted[number]) for number in (1, 2))
        gap = seen[2].get("rollout/logprob_gap", 0.0)
        same_replies = "vLLM" not in run.name
        wrong = gap > given.gap or (same_replies and first > given.tolerance)
        bad |= wrong
        print(f"{run.name:<44}{first:>7.3f}{second:>7.3f}{gap:>9.5f}  {name}{' !' * wrong}")
    sys.exit(bad)


if __name__ == "__main__":
    main()
