"""SVG reconstruction: see a drawing, write SVG, see what it renders to, improve."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from vagentrl.environment import (
    ActionEnvironment,
    Outcome,
    Split,
    index_of,
    split_of,
    split_of_state,
)
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, ReplyFormat
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, State, StepResult
from vagentrl_envs.svg.describing import (
    CELLS,
    COLORS,
    Shape,
    describe,
    visible_shapes,
)
from vagentrl_envs.svg.drawings import SIDE, Level, check_level, draw, read_drawings, svg
from vagentrl_envs.svg.markup import Limits, Refused, clean
from vagentrl_envs.svg.picture import as_image, check_renderer, on_paper
from vagentrl_envs.svg.score import Features, Score, Scorer, Weights

if TYPE_CHECKING:
    from PIL.Image import Image

SIGNATURE = "<svg>…</svg>"
DRAWS = 1000
FRAME_SIZE = 224
SCORED = 64
"""Pixels of the sides of the pictures that are compared, whatever the agent sees."""
SUGGESTIONS = 6
"""Drawings that random play and noisy demonstrators choose from in each episode."""


class SVGReconstruction(ActionEnvironment):
    """Write the SVG of a drawing that is seen, look at what it renders to, and improve it.

    A turn earns what the drawing has gained on the one before, from 0 (an empty page) to 1 (the
    target itself), so that an episode earns its last score. It succeeds when the score reaches
    ``success_score``. SVG that cannot be drawn changes nothing; the next observation says why.

    Args:
        level: Of the targets: 1 for one shape, 2 for shapes beside one another, 3 for shapes that
            overlap, 4 for strokes, gradients and paths.
        grid: Targets have positions and sizes that are multiples of so many hundredths of the
            picture: 1, 2, 5 or 10.
        files: A folder of ``.svg`` files to draw instead; `level` and `grid` do not matter then.
        size: Pixels of the sides of every picture.
        success_score: Score from which the task is solved.
        weights: How much the parts of the score count.
        features: Folder of a vision model, such as DINOv2, whose features are compared too, with
            ``weights.features``; None needs no model.
        limits: How much SVG is read.
        rough_oracle: Whether the oracle first draws the target in rough outline, and exactly only
            in the next turn: a demonstration of improving.
        feedback: Whether the agent is told what was wrong with a reply.
        turn_limit: Turns after which an episode is truncated.
        format: The format of replies. Its ``action_separator`` must be null: SVG has commas.
        **settings: The settings of ``ActionEnvironment``, except ``actions_per_turn`` and those of
            a default action.
    """

    def __init__(
        self,
        level: Level = 1,
        grid: int = 5,
        files: str | None = None,
        size: int = 224,
        success_score: float = 0.9,
        weights: Weights = Weights(),  # noqa: B008 (frozen)
        features: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        rough_oracle: bool = False,
        feedback: bool = True,
        turn_limit: int = 4,
        format: ReplyFormat | None = None,
        **settings: Any,
    ) -> None:
        format = FreeThink(action_separator=None) if format is None else format
        super().__init__(
            (SIGNATURE,), format=format, feedback=feedback, turn_limit=turn_limit, **settings
        )
        self._check_settings(size, success_score, limits)
        if (features is not None) != (weights.features > 0):
            raise ConfigError(
                f"features is {features!r} and weights.features {weights.features}; give a model "
                "and a weight above 0, or neither"
            )
        check_renderer()
        check_level(level, grid)
        self.level: Level = level
        self.grid = grid
        self.size = size
        self.success_score = success_score
        self.weights = weights
        self.limits = limits
        self.rough_oracle = rough_oracle
        self._features = None if features is None else _features(features)
        self._drawings = None if files is None else read_drawings(files, limits)
        self._target: str
        self._scorer: Scorer
        self._drawing: str | None = None
        self._score = Score()
        self._problem: str | None = None

    # -------------------------------------------------------------------------------- the episode

    @property
    def target(self) -> str:
        """The SVG of the drawing to be reproduced."""
        return self._target

    @property
    def score(self) -> Score:
        """How alike the agent's drawing is to the target now."""
        return self._score

    def start_count(self, split: Split) -> int | None:
        return None if self._drawings is None else len(self._drawings[split])

    def initial_state(self, seed: int) -> str:
        return self._draw_target(seed)

    def start_from(self, target: str) -> Observation:
        """Start an episode on a given SVG.

        Raises:
            ConfigError: When it is not drawn.
        """
        try:
            self._set_target(clean(target, self.limits))
        except Refused as error:
            raise ConfigError(f"the target is not drawn: {error}") from error
        self._suggest(np.random.default_rng(0))
        return self._begin()

    def oracle(self) -> tuple[str, ...] | None:
        """The target's own SVG; with `rough_oracle` a sketch of it in the first turn."""
        if self._over:
            return ()
        if self.rough_oracle and self._drawing is None and self.turn_limit > 1:
            return (_rough(self._target), self._target)
        return (self._target,)

    def random_actions(self, rng: Random) -> tuple[str, ...]:
        generator = np.random.default_rng(rng.getrandbits(64))
        return (draw(self.level, self.grid, generator),)

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        parts = {f"score_{name}": part for name, part in self._score.parts().items()}
        metrics = {**result.metrics, "score": self._score.total, **parts}
        return replace(result, metrics=metrics)

    def _start(self, seed: int, transition_seed: int) -> None:
        self._set_target(self._draw_target(seed))
        self._suggest(np.random.default_rng((seed, 1)))

    def _draw_target(self, seed: int) -> str:
        split = split_of(seed)
        if self._drawings is not None:
            drawings = self._drawings[split]
            return drawings[index_of(seed) % len(drawings)]
        rng = np.random.default_rng(seed)
        for _ in range(DRAWS):
            markup = clean(draw(self.level, self.grid, rng), Limits())
            if split_of_state(markup) == split:
                return markup
        raise EnvError(f"no drawing of level {self.level} in {DRAWS} draws for seed {seed}")

    def _set_target(self, markup: str) -> None:
        self._target = markup
        self._scorer = Scorer(on_paper(markup, SCORED), self.weights, self._features)
        self._drawing, self._score, self._problem = None, Score(), None

    def _suggest(self, rng: np.random.Generator) -> None:
        drawn = (draw(self.level, self.grid, rng) for _ in range(SUGGESTIONS))
        self.action_names = tuple(dict.fromkeys(drawn))

    def _asked(self, reply: Reply) -> list[str | None]:
        self._problem = None
        asked: list[str | None] = []
        for text in reply.actions[:1]:
            try:
                markup = clean(text, self.limits)
                on_paper(markup, SCORED)
                asked.append(markup)
            except Refused as error:
                self._problem = str(error)
                asked.append(None)
        return asked

    def _act(self, action: str) -> Outcome:
        before, changed = self._score.total, action != self._drawing
        self._drawing = action
        self._score = self._scorer.score(on_paper(action, SCORED))
        solved = self._score.total >= self.success_score
        return Outcome(self._score.total - before, done=solved, success=solved, changed=changed)

    # ------------------------------------------------------------------------------ what is shown

    def state(self) -> State:
        return describe(self._target, self._drawing)

    def rubric(self) -> str:
        return (
            "It names every shape of the target, and of the drawing if there is one, with its "
            "kind, its colour, and where it is: the centre, counted in hundredths of the picture "
            "from the upper left corner, right to within 5, or in words that leave no doubt, such "
            "as 'in the lower right corner'. Sizes may be left out, but must not be wrong by more "
            "than 10. It is wrong if a shape is missing, misplaced or of another colour, or if it "
            "names one that is not there. Order and wording do not matter."
        )

    def frame(self) -> Image:
        sides = [on_paper(self._target, FRAME_SIZE), on_paper(self._drawing, FRAME_SIZE)]
        return as_image(np.concatenate([sides[0], np.zeros((FRAME_SIZE, 4, 3)), sides[1]], axis=1))

    def _observe(self) -> Observation:
        pictures = [as_image(on_paper(self._target, self.size))]
        if self._drawing is None:
            return Observation(f"Target: {IMAGE_PLACEHOLDER}", tuple(pictures))
        pictures.append(as_image(on_paper(self._drawing, self.size)))
        parts = ", ".join(f"{name} {100 * part:.0f}" for name, part in self._score.parts().items())
        return Observation(
            f"Target: {IMAGE_PLACEHOLDER}\nYour drawing: {IMAGE_PLACEHOLDER}\n"
            f"Score: {100 * self._score.total:.0f} of 100 ({parts}).",
            tuple(pictures),
        )

    def _wrong_action(self) -> str:
        return f"the SVG is not drawn: {self._problem}"

    def system_prompt(self) -> str:
        return "\n".join(
            [
                "Reproduce the target picture as SVG. After each reply you see what your SVG "
                "renders to on white paper, and how alike it is to the target. You have "
                f"{self.turn_limit} turns; every reply is a whole drawing and replaces the one "
                "before.",
                f'Your answer is one element <svg viewBox="0 0 {SIDE} {SIDE}">…</svg> of at most '
                f"{self.limits.characters} characters and {self.limits.elements} elements: "
                "rect, circle, ellipse, line, polyline, polygon, path, g, linearGradient, "
                "radialGradient. Anything else is left out.",
                self.format.instructions(1, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        example = describe(*_EXAMPLE)
        told = "in hundredths of the picture from the upper left corner"
        match self.format.state:
            case "natural":
                return f"every shape, {told}, for example: {example.natural}"
            case "structured":
                return f"with centres and sizes {told}, for example: {example.structured}"
            case "symbolic":
                legend = ", ".join(f"{symbol} {name}" for name, (symbol, _) in COLORS.items())
                return (
                    f"{CELLS} lines of {CELLS} colours of the target, a bar, and {CELLS} of your "
                    f"drawing; {legend}; for example:\n{example.symbolic}"
                )
            case None:
                return None

    def _check_settings(self, size: int, success_score: float, limits: Limits) -> None:
        if not 16 <= size <= 1024:
            raise ConfigError(f"size is {size}; give 16 to 1024 pixels")
        if not 0 < success_score <= 1:
            raise ConfigError(f"success_score is {success_score}; give more than 0 and at most 1")
        if min(limits.characters, limits.elements) < 1 or limits.characters > 100_000:
            raise ConfigError(f"limits are {limits}; give 1 to 100000 characters, and elements")
        if self.actions_per_turn != 1 or self.format.action_separator is not None:
            raise ConfigError(
                f"actions_per_turn is {self.actions_per_turn} and the format's action_separator "
                f"{self.format.action_separator!r}; an answer is one SVG: give 1 and null"
            )
        if self.default_action is not None:
            raise ConfigError(
                f"default_action is {self.default_action!r}, but no drawing stands in for one that "
                "cannot be read; set invalid_action to skip or end_turn"
            )


def _features(folder: str) -> Features:
    from vagentrl_envs.svg.features import load_features  # needs torch

    return load_features(folder)


def _rough(markup: str) -> str:
    """A sketch of a drawing: its shapes, with positions and sizes rounded to fifths."""
    return svg("".join(map(_sketch, visible_shapes(markup))))


def _sketch(shape: Shape) -> str:
    rounded = (20 * round(n / 20) for n in (shape.x, shape.y, shape.width, shape.height))
    x, y, width, height = rounded
    width, height = max(width, 20), max(height, 20)
    left, top, low = x - width // 2, y - height // 2, y + height // 2
    match shape.shape:
        case "circle" | "ellipse":
            half = f'rx="{width // 2}" ry="{height // 2}"'
            return f'<ellipse cx="{x}" cy="{y}" {half} fill="{shape.color}"/>'
        case "polygon":
            points = f"{left},{low} {x},{top} {left + width},{low}"
            return f'<polygon points="{points}" fill="{shape.color}"/>'
        case "rectangle":
            box = f'x="{left}" y="{top}" width="{width}" height="{height}"'
            return f'<rect {box} fill="{shape.color}"/>'
        case _:
            curve = f"M{left} {low} Q{x} {top} {left + width} {low}"
            return f'<path d="{curve}" fill="none" stroke="{shape.color}" stroke-width="4"/>'


_EXAMPLE = (
    svg('<circle cx="30" cy="40" r="20" fill="red"/>'),
    svg('<rect x="10" y="20" width="40" height="40" fill="orange"/>'),
)
