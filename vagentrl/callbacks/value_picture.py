"""Draws the critic's values against the returns that it should have foreseen."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

CELLS = 48
"""Cells of the picture along each axis."""


def value_picture(
    values: np.ndarray, returns: np.ndarray, explained_variance: float
) -> Image.Image:
    """A two-dimensional histogram, with the line on which a perfect critic's tokens would lie.

    Args:
        values: The critic's value before each token, ``(N,)``.
        returns: The return after each token, ``(N,)``.
        explained_variance: Share of the variance of the returns that the values explain.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes = figure.subplots()
    finite = np.isfinite(values) & np.isfinite(returns)
    values, returns = values[finite], returns[finite]
    if len(values):
        ends = (min(values.min(), returns.min()), max(values.max(), returns.max()))
        cells = axes.hist2d(returns, values, bins=CELLS, norm=LogNorm(), cmap="viridis")[3]
        figure.colorbar(cells, ax=axes, label="tokens")
        axes.plot(ends, ends, color="tab:red", linewidth=1)
    axes.set(title=f"explained variance {explained_variance:.2f}", xlabel="return", ylabel="value")
    file = io.BytesIO()
    figure.savefig(file, dpi=100, format="png")
    return Image.open(file).convert("RGB")
