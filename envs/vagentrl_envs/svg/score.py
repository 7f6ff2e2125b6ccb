"""How alike a drawing and its target are: structure, edges and colours.

Every part is 1 for the target itself and 0 for the best sheet of a single colour, so an empty page
earns nothing however empty the target is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vagentrl.errors import ConfigError

Features = Callable[[np.ndarray], np.ndarray]
"""Maps a picture, `(height, width, 3)` from 0 to 1, to a vector."""

_WINDOW = 7
"""Pixels of the sides of the windows whose structure is compared."""
_C1, _C2 = 0.01**2, 0.03**2
"""The constants of SSIM (Wang et al. 2004) for values from 0 to 1."""
_LUMINANCE = np.array([0.299, 0.587, 0.114])
_BLUR = 3
"""Pixels over which edges are spread, so that an edge beside the true one counts in part."""


@dataclass(frozen=True)
class Weights:
    """How much each part counts; they are divided by their sum.

    Args:
        structure: Structural similarity (SSIM) of the luminance, at three scales.
        edges: Overlap of the edges.
        color: Agreement of the colours, pixel by pixel.
        features: Similarity of the features of a vision model, if there is one.
    """

    structure: float = 0.4
    edges: float = 0.3
    color: float = 0.3
    features: float = 0.0

    def __post_init__(self) -> None:
        parts = vars(self)
        if min(parts.values()) < 0 or sum(parts.values()) <= 0:
            raise ConfigError(f"the weights are {parts}; give 0 or more, and not 0 for all")


@dataclass(frozen=True)
class Score:
    """How alike a drawing is to its target; each part from 0 to 1."""

    structure: float = 0.0
    edges: float = 0.0
    color: float = 0.0
    features: float | None = None
    total: float = 0.0

    def parts(self) -> dict[str, float]:
        """The parts by name, without those that were not measured."""
        named = {"structure": self.structure, "edges": self.edges, "color": self.color}
        return named if self.features is None else named | {"features": self.features}


class Scorer:
    """Scores drawings against one target.

    Args:
        target: `(height, width, 3)`, from 0 to 1; at least 32 pixels high and wide.
        weights: Of the parts.
        features: Looks at pictures as a vision model does; None leaves that part out.

    Raises:
        ConfigError: When the target is of a single colour, to which nothing can come nearer.
    """

    def __init__(
        self, target: np.ndarray, weights: Weights, features: Features | None = None
    ) -> None:
        if np.ptp(target, axis=(0, 1)).max() < 0.02:
            raise ConfigError("the drawing is a sheet of a single colour; leave it out")
        self.target, self.weights, self.features = target, weights, features
        colors = np.ones(3), np.median(target, axis=(0, 1)), target.mean(axis=(0, 1))
        sheets = [np.broadcast_to(color, target.shape) for color in colors]
        self._scales = _scales(target @ _LUMINANCE)
        self._edges = _edges(self._scales[0])
        self._blank_ssim = [
            max(_ssim(np.full_like(seen, color @ _LUMINANCE), seen) for color in colors)
            for seen in self._scales
        ]
        self._blank_error = min(float(np.abs(color - target).mean()) for color in colors)
        if features is not None:
            self._seen = features(target)
            self._blank_seen = max(_cosine(features(sheet), self._seen) for sheet in sheets)

    def score(self, drawing: np.ndarray) -> Score:
        """Score a drawing of the target's size, from 0 to 1."""
        scales = _scales(drawing @ _LUMINANCE)
        compared = zip(scales, self._scales, self._blank_ssim, strict=True)
        structure = float(np.mean([_above(_ssim(a, b), blank) for a, b, blank in compared]))
        edges = _overlap(_edges(scales[0]), self._edges)
        error = float(np.abs(drawing - self.target).mean())
        color = _above(1 - error, 1 - self._blank_error)
        features = None
        if self.features is not None:
            features = _above(_cosine(self.features(drawing), self._seen), self._blank_seen)
        weights = self.weights
        weighted = [
            (structure, weights.structure),
            (edges, weights.edges),
            (color, weights.color),
            (features or 0.0, weights.features if features is not None else 0.0),
        ]
        total = sum(part * weight for part, weight in weighted)
        return Score(structure, edges, color, features, total / sum(w for _, w in weighted))


def _above(value: float, baseline: float) -> float:
    """Where a value lies between a baseline, 0, and the best, 1."""
    return float(np.clip((value - baseline) / max(1 - baseline, 1e-9), 0.0, 1.0))


def _scales(luminance: np.ndarray) -> list[np.ndarray]:
    """A picture at its own size, at half and at a quarter of it: the coarse ones forgive a shape
    that is a little misplaced."""
    found = [luminance]
    for _ in range(2):
        height, width = (side // 2 for side in found[-1].shape)
        cut = found[-1][: 2 * height, : 2 * width]
        found.append(cut.reshape(height, 2, width, 2).mean((1, 3)))
    return found


def _ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean structural similarity of two grey pictures over all windows."""
    mean_a, mean_b = _windows(a), _windows(b)
    var_a = _windows(a * a) - mean_a**2
    var_b = _windows(b * b) - mean_b**2
    covariance = _windows(a * b) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + _C1) * (2 * covariance + _C2)
    apart = (mean_a**2 + mean_b**2 + _C1) * (var_a + var_b + _C2)
    return float((alike / apart).mean())


def _windows(values: np.ndarray, side: int = _WINDOW) -> np.ndarray:
    """The mean of every window, by a table of sums."""
    table = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    total = (
        table[side:, side:] - table[:-side, side:] - table[side:, :-side] + table[:-side, :-side]
    )
    return total / side**2


def _edges(luminance: np.ndarray) -> np.ndarray:
    """How steep the luminance is at each pixel, spread over its neighbours."""
    padded = np.pad(luminance, 1, mode="edge")
    down = padded[2:, 1:-1] - padded[:-2, 1:-1]
    right = padded[1:-1, 2:] - padded[1:-1, :-2]
    return _windows(np.pad(np.hypot(down, right), _BLUR // 2), _BLUR)


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Twice what two maps share, divided by what they hold together."""
    together = float((a + b).sum())
    return 2 * float(np.minimum(a, b).sum()) / together if together > 1e-9 else 0.0


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(float), b.astype(float)
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-9))
