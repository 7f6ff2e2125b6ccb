"""FrozenLake: cross the ice to the goal without falling into a hole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vagentrl.environment import (
    ActionEnvironment,
    Outcome,
    Split,
    split_of,
    split_of_state,
)
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, State
from vagentrl_envs.frozen_lake_sprites import render

if TYPE_CHECKING:
    from PIL.Image import Image

Cell = tuple[int, int]

FROZEN, HOLE, GOAL, PLAYER, FALLEN, ARRIVED = range(6)
DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that a move up, down, left, right goes."""
SIDEWAYS = ((2, 3), (2, 3), (0, 1), (0, 1))
"""The directions at right angles to each."""

MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": (
        "SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF",
        "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG",
    ),
}  # fmt: skip
"""Gymnasium's, in its letters: start, frozen, hole, goal."""

FEWEST_LAKES = 5
"""Different lakes that each split needs at least."""
TRIALS = 1000
"""Lakes that are drawn to count the different ones."""
DRAWS = 10_000
"""Lakes that are drawn before a seed is given up: ample where `TRIALS` gave `FEWEST_LAKES`."""

FRAME_CELL = 48


@dataclass(frozen=True)
class Vocabulary:
    """The names of things.

    Args:
        actions: Up, down, left and right.
        symbols: Ice, hole, goal, player, player in a hole, player at the goal.
        player: What the player is called.
        hole: What a hole is called.
        goal: What the goal is called.
    """

    actions: tuple[str, str, str, str] = ("Up", "Down", "Left", "Right")
    symbols: str = "_OGPX*"
    player: str = "player"
    hole: str = "hole"
    goal: str = "goal"

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != 6 or len(self.symbols) != 6:
            raise ConfigError(
                f"symbols is {self.symbols!r}; give six different characters: ice, hole, goal, "
                "player, player in a hole, player at the goal"
            )
        if len(self.actions) != 4:
            raise ConfigError(f"actions is {self.actions}; give names for up, down, left, right")

    def legend(self) -> str:
        ice, hole, goal, player, fallen, arrived = self.symbols
        return (
            f"{ice} ice, {hole} {self.hole}, {goal} {self.goal}, {player} {self.player}, "
            f"{fallen} {self.player} in a {self.hole}, {arrived} {self.player} at the {self.goal}"
        )


VOCABULARIES = {
    "standard": Vocabulary(),
    "new": Vocabulary(
        actions=("North", "South", "West", "East"),
        symbols=".VFA!@",
        player="agent",
        hole="pit",
        goal="flag",
    ),
}


@dataclass(frozen=True)
class Lake:
    """Ice with holes and a goal, as cells ``(row, column)``."""

    size: tuple[int, int]
    holes: frozenset[Cell]
    goal: Cell

    @classmethod
    def parse(cls, lines: Sequence[str]) -> tuple[Lake, Cell]:
        """A lake and its start, from one line of Gymnasium's letters per row."""
        letters = "".join(lines)
        if (
            len({len(line) for line in lines}) != 1
            or not set(letters) <= set("SFHG")
            or (letters.count("S"), letters.count("G")) != (1, 1)
        ):
            raise ConfigError(
                f"map is {lines!r}; give lines of equal length made of S (start), F (frozen), "
                f"H (hole) and G (goal), with one S and one G in all, or {' or '.join(MAPS)}"
            )
        columns = len(lines[0])
        cells = [divmod(index, columns) for index in range(len(letters))]
        holes = frozenset(
            cell for cell, letter in zip(cells, letters, strict=True) if letter == "H"
        )
        goal, start = cells[letters.index("G")], cells[letters.index("S")]
        return cls((len(lines), columns), holes, goal), start

    def move(self, cell: Cell, direction: int) -> Cell:
        """Where a move ends; at the goal and in a hole the game is over, so nothing moves."""
        return cell if cell == self.goal or cell in self.holes else self.beside(cell, direction)

    def beside(self, cell: Cell, direction: int) -> Cell:
        """The next cell in a direction; at the edge the same one."""
        down, right = DIRECTIONS[direction]
        row, column = cell[0] + down, cell[1] + right
        inside = 0 <= row < self.size[0] and 0 <= column < self.size[1]
        return (row, column) if inside else cell

    def distances(self) -> dict[Cell, int]:
        """Moves from each cell to the goal if none slips; only cells that can reach it."""
        return _distances(self)

    def codes(self, player: Cell) -> np.ndarray:
        """What stands on each cell: `(rows, columns)` of FROZEN, HOLE, GOAL, PLAYER, …"""
        codes = np.full(self.size, FROZEN, dtype=np.uint8)
        for hole in self.holes:
            codes[hole] = HOLE
        codes[self.goal] = GOAL
        codes[player] += PLAYER  # FROZEN, HOLE, GOAL become PLAYER, FALLEN, ARRIVED
        return codes

    @property
    def split(self) -> Split:
        """The split of the lake itself, whatever its seed."""
        return split_of_state(repr((self.size, sorted(self.holes), self.goal)))


@lru_cache(maxsize=128)
def _distances(lake: Lake) -> dict[Cell, int]:
    found = {lake.goal: 0}
    queue = [lake.goal]
    for cell in queue:  # which grows
        for before in (lake.beside(cell, direction) for direction in range(4)):
            if before not in found and before not in lake.holes:
                found[before] = found[cell] + 1
                queue.append(before)
    return found


def ways(direction: int, slip: float) -> dict[int, float]:
    """The directions that a move may take instead of `direction`, it included: probabilities."""
    return {direction: 1 - slip} | {side: slip / 2 for side in SIDEWAYS[direction]}


@dataclass(frozen=True)
class LakeSpec:
    """Which lakes to draw and where to start.

    Attributes:
        size: Rows and columns.
        holes: Holes.
        random_start: Start anywhere, not at the top left.
        shortest: Fewest moves from the start to the goal.
        longest: Most moves from the start to the goal.
    """

    size: tuple[int, int]
    holes: int
    random_start: bool
    shortest: int
    longest: int

    def draw(self, seed: int) -> tuple[Lake, Cell]:
        """The lake of a seed and the cell to start from.

        The lake is of its seed's split, so that no lake occurs in two of them.
        """
        rng, split = np.random.default_rng(seed), split_of(seed)
        for _ in range(DRAWS):
            lake = self._lake(rng)
            if lake.split == split and (starts := self.starts(lake, (0, 0))):
                return lake, starts[rng.integers(len(starts))]
        raise EnvError(f"no lake of {self} in {DRAWS} draws (seed {seed}); ask for fewer holes")

    def starts(self, lake: Lake, start: Cell) -> list[Cell]:
        """The cells that an episode may start from; `start` is where it does if not anywhere."""
        return [
            cell
            for cell, moves in lake.distances().items()
            if self.shortest <= moves <= self.longest and (self.random_start or cell == start)
        ]

    def check(self) -> None:
        """Raise unless each split has several lakes."""
        found: dict[Split, set[Lake]] = {split: set() for split in get_args(Split)}
        rng = np.random.default_rng(0)
        for _ in range(TRIALS):
            lake = self._lake(rng)
            if self.starts(lake, (0, 0)):
                found[lake.split].add(lake)
            if min(map(len, found.values())) == FEWEST_LAKES:
                return
        counts = ", ".join(f"{len(lakes)} for {split}" for split, lakes in found.items())
        raise ConfigError(
            f"size {self.size}, {self.holes} holes and {self.shortest} to {self.longest} moves "
            f"from the start to the goal: {TRIALS} draws gave these numbers of different lakes: "
            f"{counts}; each split needs {FEWEST_LAKES}. Try another hole_share, a larger size or "
            "turn_limit, a smaller min_solution, random_start, or play on one map with map="
        )

    def _lake(self, rng: np.random.Generator) -> Lake:
        """Holes anywhere but at the goal and at a start that is fixed; perhaps with no way."""
        rows, columns = self.size
        first = 0 if self.random_start else 1
        chosen = first + rng.permutation(rows * columns - 1 - first)[: self.holes]
        holes = frozenset(divmod(index, columns) for index in chosen.tolist())
        return Lake(self.size, holes, (rows - 1, columns - 1))


@lru_cache(maxsize=32)
def _drawn(size: int | tuple[int, int], hole_share: float, *limits: Any) -> LakeSpec:
    """Lakes of a size; checked once, and not for each of many equal environments."""
    rows, columns = (size, size) if isinstance(size, int) else size
    if min(rows, columns) < 2 or not 0 <= hole_share < 1:
        raise ConfigError(
            f"size is {(rows, columns)} and hole_share {hole_share}; give at least 2 rows and 2 "
            "columns, and a share from 0 up to below 1"
        )
    spec = LakeSpec((rows, columns), round(hole_share * rows * columns), *limits)
    spec.check()
    return spec


def _mapped(lake: Lake, start: Cell, *limits: Any) -> LakeSpec:
    """What says where to start on one map."""
    spec = LakeSpec(lake.size, len(lake.holes), *limits)
    if not spec.starts(lake, start):
        raise ConfigError(
            f"the map of size {lake.size} has no start from which the goal is {spec.shortest} to "
            f"{spec.longest} moves away; check its holes, min_solution, turn_limit, random_start"
        )
    return spec


class FrozenLake(ActionEnvironment):
    """Cross the ice to the goal; a hole ends the game.

    The goal earns 1 and a hole nothing. The lake is drawn from the seed, with the goal at the
    bottom right, and can always be crossed within the limits of an episode. Training, validation
    and test share no lake. The transitions are those of Gymnasium's ``FrozenLake-v1``.

    Args:
        size: Rows and columns, one number for a square; None for 4, or the map's own.
        slip: Probability that a move goes to one of the two sides instead, half of it to each; 0
            for firm ground. Gymnasium's ``is_slippery`` is 2/3, and its ``success_rate`` is
            1 - ``slip``.
        hole_share: Share of the cells that are holes, rounded to whole ones; None for 0.2, or the
            map's own.
        random_start: Start on any ice the goal can be reached from, not at the top left or the S
            of the map.
        map: A map of your own to play on, in Gymnasium's letters S, F, H, G, or the name of one
            of Gymnasium's. It is the same in every split.
        min_solution: Fewest moves from the start to the goal, if none slips.
        step_cost: Subtracted for each move.
        observation: What the agent sees: an ``image``, or the grid as ``text``.
        cell: Pixels per cell of the image.
        vocabulary: ``standard``, ``new`` (other symbols, other words), or your own.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        slip: float = 0.0,
        hole_share: float | None = None,
        random_start: bool = False,
        map: Literal["4x4", "8x8"] | list[str] | None = None,
        min_solution: int = 1,
        step_cost: float = 0.0,
        observation: Literal["image", "text"] = "image",
        cell: int = 14,
        vocabulary: Literal["standard", "new"] | Vocabulary = "standard",
        **settings: Any,
    ) -> None:
        words = VOCABULARIES[vocabulary] if isinstance(vocabulary, str) else vocabulary
        super().__init__(action_names=words.actions, **settings)
        self.vocabulary = words
        self.slip = slip
        self.step_cost = step_cost
        self.observation = observation
        self.cell = cell
        self._check_numbers(min_solution)
        limits = (random_start, min_solution, self.longest_episode)
        self._map: tuple[Lake, Cell] | None = None
        if map is None:
            self.spec = _drawn(size or 4, 0.2 if hole_share is None else hole_share, *limits)
        elif (size, hole_share) == (None, None):
            self._map = Lake.parse(MAPS.get(map, map) if isinstance(map, str) else map)
            self.spec = _mapped(*self._map, *limits)
        else:
            raise ConfigError(
                f"size is {size} and hole_share {hole_share}, but the map decides both; leave "
                "them out, or leave out the map"
            )
        self._lake: Lake
        self._player: Cell
        self._slips: np.random.Generator

    # -------------------------------------------------------------------------------- the episode

    def start_from(self, lake: Lake, player: Cell, transition_seed: int = 0) -> Observation:
        """Start an episode on a lake of your own."""
        self._lake, self._player = lake, player
        self._slips = np.random.default_rng(transition_seed)
        return self._begin()

    @property
    def lake(self) -> Lake:
        """The lake of this episode."""
        return self._lake

    @property
    def player(self) -> Cell:
        """Where the player is now."""
        return self._player

    def oracle(self) -> tuple[str, ...] | None:
        """The shortest way if no move slips; on slippery ice a longer one may be safer."""
        distances = self._lake.distances()
        cell, plan = self._player, []
        if cell not in distances:
            return None
        while distances[cell]:
            nearer = distances[cell] - 1
            direction = next(
                d for d in range(4) if distances.get(self._lake.move(cell, d)) == nearer
            )
            cell = self._lake.move(cell, direction)
            plan.append(self.action_names[direction])
        return tuple(plan)

    def state(self) -> State:
        lake = self._lake
        return State(
            natural=self._in_words(lake, self._player),
            structured=json.dumps(
                {"player": self._player, "goal": lake.goal, "holes": sorted(lake.holes)},
                separators=(",", ":"),
            ),
            symbolic=self._grid(self._lake, self._player),
        )

    def rubric(self) -> str:
        words = self.vocabulary
        return (
            f"It says where the {words.player} is, where the {words.goal} is and where every "
            f"{words.hole} is, each exactly: the row and the column, counted from 0 at the top "
            f"left corner, or how far above or below and how far left or right of something else "
            f"it is. Rows grow downwards, columns to the right. Neither the order nor the wording "
            f"matters; ice need not be told in words. It is wrong if one of these things is "
            f"missing, misplaced or only vaguely placed, or if it names one that is not there."
        )

    def frame(self) -> Image:
        return render(self._lake.codes(self._player), FRAME_CELL)

    def _start(self, seed: int, transition_seed: int) -> None:
        if self._map is None:
            self._lake, self._player = self.spec.draw(seed)
        else:
            self._lake, start = self._map
            starts = self.spec.starts(self._lake, start)
            self._player = starts[np.random.default_rng(seed).integers(len(starts))]
        # trailing zeros do not change a seed: the 1 keeps this apart from the map's stream
        self._slips = np.random.default_rng((seed, transition_seed, 1))

    def _act(self, action: str) -> Outcome:
        possible = ways(self.action_names.index(action), self.slip)
        direction = self._slips.choice(list(possible), p=list(possible.values()))
        before = self._player
        self._player = self._lake.move(before, direction)
        arrived = self._player == self._lake.goal
        return Outcome(
            arrived - self.step_cost,
            done=arrived or self._player in self._lake.holes,
            success=arrived,
            changed=self._player != before,
        )

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        if self.observation == "text":
            return Observation(self._grid(self._lake, self._player))
        picture = render(self._lake.codes(self._player), self.cell)
        return Observation(IMAGE_PLACEHOLDER, (picture,))

    def _grid(self, lake: Lake, player: Cell) -> str:
        symbols, codes = self.vocabulary.symbols, lake.codes(player)
        return "\n".join("".join(symbols[code] for code in row) for row in codes.tolist())

    def system_prompt(self) -> str:
        words = self.vocabulary
        moves = f"Actions of the {words.player}: {', '.join(words.actions)}."
        if self.slip:
            moves += (
                f" The ice is slippery: {self.slip:.0%} of the moves go to one of the two sides of "
                "the way you choose."
            )
        if self.observation == "text":
            shown = f"Symbols: {words.legend()}."
        else:
            shown = (
                f"In the image, the {words.player} wears a green coat and a yellow hat, a "
                f"{words.hole} is dark water and the {words.goal} is a red pennant on a pole."
            )
        return "\n".join(
            [
                f"Bring the {words.player} across the ice to the {words.goal}, in as few moves as "
                f"you can. A {words.hole} ends the game.",
                moves,
                shown,
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """How the reply format's representation writes a state."""
        match self.format.state:
            case "natural":
                return (
                    "where everything is, with rows and columns counted from 0 at the top left "
                    f"corner, for example: {self._in_words(*_EXAMPLE)}"
                )
            case "structured":
                return (
                    '{"player":[row,column],"goal":[row,column],"holes":[[row,column]]}, '
                    "rows and columns counted from 0 at the top left corner."
                )
            case "symbolic":
                example = self._grid(*_EXAMPLE)
                return f"one line per row, {self.vocabulary.legend()}, for example:\n{example}"
            case None:
                return None

    def _in_words(self, lake: Lake, player: Cell) -> str:
        words = self.vocabulary
        named = [(f"the {words.player}", player), (f"the {words.goal}", lake.goal)]
        named += [(f"a {words.hole}", hole) for hole in sorted(lake.holes)]
        return "; ".join(
            f"{name} is at row {row}, column {column}" for name, (row, column) in named
        )

    def _check_numbers(self, min_solution: int) -> None:
        if not 0 <= self.slip <= 1:
            raise ConfigError(
                f"slip is {self.slip}; it is a probability, and 2/3 is Gymnasium's slippery ice"
            )
        if self.step_cost < 0:
            raise ConfigError(f"step_cost is {self.step_cost}; it is subtracted, so give 0 or more")
        if self.cell < 1:
            raise ConfigError(f"cell is {self.cell}; give at least 1 pixel")
        if not 1 <= min_solution <= self.longest_episode:
            raise ConfigError(
                f"min_solution is {min_solution}, but turn_limit, actions_per_turn and "
                f"actions_per_episode end an episode after {self.longest_episode} moves; give 1 "
                "to that many"
            )


_EXAMPLE = Lake((2, 2), frozenset({(0, 1)}), (1, 1)), (0, 0)
