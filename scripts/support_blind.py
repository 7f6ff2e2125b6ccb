"""What an agent earns in `device` cases of CustomerSupport that reads nothing.

    python scripts/support_blind.py

It asks for the same repairs and a restart in every case, and closes it. Prints a Markdown table of
the script of all seven repairs and of the best script of any, chosen on 600 training cases, with
their success in 600 held-out ones.
"""

from __future__ import annotations

from itertools import chain, combinations
from statistics import mean
from typing import Any

from vagentrl.environment import Split, seed_of
from vagentrl.types import Reply
from vagentrl_envs.support import CustomerSupport

REPAIRS = (
    "airplane off", "data on", "saver off", "vpn off", "mode auto", "apn reset", "sim reseat",
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "as in `configs/support.yaml`": {"faults": (1, 3), "terse": True, "turn_limit": 10},
    "default": {},
}
CASES = 600


def success(desk: CustomerSupport, repairs: tuple[str, ...], split: Split) -> float:
    """The share of cases that a script solves."""
    return mean(_play(desk, seed_of(split, index), repairs) for index in range(CASES))


def _play(desk: CustomerSupport, seed: int, repairs: tuple[str, ...]) -> float:
    desk.reset(seed)
    for action in (*(f"say[{each}]" for each in (*repairs, "restart")), "close()"):
        result = desk.step(Reply("", actions=(action,)))
        if result.terminated or result.truncated:
            return result.metrics["success"]
    return 0.0


def main() -> None:
    print("| settings | all seven | the best script | in training cases | held-out |")
    print("|---|--:|---|--:|--:|")
    for name, settings in SETTINGS.items():
        desk = CustomerSupport(["device"], **settings)
        scripts = chain.from_iterable(combinations(REPAIRS, count) for count in range(8))
        best, repairs = max((success(desk, script, "train"), script) for script in scripts)
        print(
            f"| {name} | {success(desk, REPAIRS, 'validation'):.2f} | {', '.join(repairs)} | "
            f"{best:.2f} | {success(desk, repairs, 'validation'):.2f} |"
        )


if __name__ == "__main__":
    main()
