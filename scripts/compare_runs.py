"""Compares several runs of each recipe in a table and a figure.

    python scripts/compare_runs.py --figure docs/figures/sokoban.png \
        "images, Bi-Level GAE=runs/sokoban_vlm/version_*" "text=runs/sokoban_text/version_*"

Each argument is a label and a pattern for the folders of its runs, one per training seed, with the
`summary.json` that `vagentrl fit` writes. Prints a Markdown table with mean and standard deviation
over seeds of the held-out success before and after training, and the minutes of a run.
"""

from __future__ import annotations

import argparse
import glob
import json
import statistics
from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def load(pattern: str) -> list[dict]:
    """Read the summaries of the runs that match a pattern."""
    paths = sorted(Path(folder) / "summary.json" for folder in glob.glob(pattern))
    summaries = [json.loads(path.read_text()) for path in paths if path.is_file()]
    if not summaries:
        raise SystemExit(f"no summary.json under {pattern!r}; has any run there finished?")
    return summaries


def mean_and_spread(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {spread:.3f}"


def row(label: str, runs: list[dict]) -> str:
    after = [run["val_success_after"] for run in runs]
    cells = [
        label,
        str(len(runs)),
        mean_and_spread([run["val_success_before"] for run in runs]),
        mean_and_spread(after),
        ", ".join(f"{value:.3f}" for value in after),
        f"{statistics.mean(run['iterations'] for run in runs):.0f}",
        f"{statistics.mean(run['seconds']['total'] for run in runs) / 60:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def draw(
    axes: Axes, label: str, runs: list[dict], color: str, metric: str = "val/success_rate"
) -> None:
    """Draw each run as a thin line and their mean as a thick one."""
    curves = [{int(e["iteration"]): e[metric] for e in run["evaluations"]} for run in runs]
    for curve in curves:
        axes.plot(list(curve), list(curve.values()), color=color, alpha=0.3, linewidth=1)
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    means = [statistics.mean(curve[step] for curve in curves) for step in shared]
    seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
    axes.plot(shared, means, color=color, linewidth=2.2, label=f"{label} ({seeds})")


def finish(
    axes: Axes,
    legend: Literal["best", "lower right", "upper left"] = "best",
    **settings: Any,
) -> None:
    """Add whole iterations, a grid and a legend, and whatever the axes are set to."""
    axes.set(**{"xlabel": "iteration", "ylim": (0, 1), **settings})
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc=legend, fontsize=8)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description="Several runs of each recipe in one table.")
    parser.add_argument("--figure", type=Path, default=None)
    parser.add_argument("runs", nargs="+", metavar="LABEL=PATTERN")
    arguments = parser.parse_args()
    recipes = {label: load(pattern) for label, pattern in (r.split("=", 1) for r in arguments.runs)}
    print(
        "| recipe | seeds | held-out before | held-out after | each seed | iterations | minutes |"
    )
    print("|---|---|---|---|---|---|---|")
    for label, runs in recipes.items():
        print(row(label, runs))
    if arguments.figure is None:
        return
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for number, (label, runs) in enumerate(recipes.items()):
        draw(axes, label, runs, f"C{number}")
    axes.axhline(0.75, color="0.6", linestyle=":", linewidth=1)
    finish(axes, "lower right", ylabel="held-out success (256 episodes, T = 0.5)")
    save(figure, arguments.figure)


if __name__ == "__main__":
    main()
