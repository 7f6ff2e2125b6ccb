"""Draws the boards of a run as one picture, as TensorBoard's tab Custom Scalars shows them.

python scripts/draw_boards.py runs/NAME/version_0 boards.png

A row is a board. Charts without scalars are left out.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vagentrl.callbacks.board_layout import BOARDS, Chart

Curves = dict[str, tuple[list[int], list[float]]]

MOST_CHARTS = 5
"""Charts of a board that are drawn; those that stand later in its layout are left out."""


def curves_of(run: Path) -> Curves:
    """Iterations and values of every scalar in a run's events."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: ([event.step for event in logged], [event.value for event in logged])
        for tag in events.Tags()["scalars"]
        for logged in [events.Scalars(tag)]
    }


def draw(curves: Curves, path: Path) -> None:
    """Write the picture.

    Raises:
        SystemExit: When no board shows any of the curves.
    """
    filled = {
        board: [chart for chart in charts if any(map(chart.shows, curves))][:MOST_CHARTS]
        for board, charts in BOARDS.items()
    }
    rows = {board: charts for board, charts in filled.items() if charts}
    if not rows:
        raise SystemExit("there are no scalars of vagentrl; give the folder of a run")
    figure = Figure(figsize=(3.2 * MOST_CHARTS, 2.3 * len(rows)), layout="constrained")
    parts: Any = figure.subfigures(len(rows), squeeze=False)
    for part, (board, charts) in zip(parts.flat, rows.items(), strict=True):
        part.suptitle(board, x=0.005, horizontalalignment="left", weight="bold")
        panels = part.subplots(1, MOST_CHARTS, squeeze=False)[0]
        for axes, chart in zip(panels, charts, strict=False):
            _draw_chart(axes, chart, curves)
        for axes in panels[len(charts) :]:
            axes.set_axis_off()
    figure.savefig(path, dpi=70)


def _draw_chart(axes: Axes, chart: Chart, curves: Curves) -> None:
    axes.set_title(chart.title, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if chart.interval:
        value, low, high = chart.tags
        axes.fill_between(curves[low][0], curves[low][1], curves[high][1], alpha=0.2)
        axes.plot(*curves[value], marker=".", label=value)
    else:
        for name in sorted(filter(chart.shows, curves)):
            steps, values = curves[name]
            axes.plot(steps, values, label=name, marker="." if len(steps) < 15 else "")
    axes.legend(fontsize=6, frameon=False, ncols=math.ceil(len(axes.lines) / 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="folder of the run, with its events")
    parser.add_argument("picture", type=Path, help="file to write")
    arguments = parser.parse_args()
    draw(curves_of(arguments.run), arguments.picture)


if __name__ == "__main__":
    main()
