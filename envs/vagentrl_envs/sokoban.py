"""Sokoban: push every box onto a target."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vagentrl.environment import ActionEnvironment, Outcome
from vagentrl.errors import ConfigError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, State, StepResult
from vagentrl_envs.sokoban_rooms import (
    STANDARD_SYMBOLS,
    Room,
    RoomSpec,
    check_size,
    room_at,
    solve,
)
from vagentrl_envs.sokoban_solver import LONGEST_SEARCH, Cell, Position, Solver
from vagentrl_envs.sokoban_sprites import render

if TYPE_CHECKING:
    from PIL.Image import Image

STEP_REWARD = -0.1
BOX_ON_TARGET_REWARD = 1.0
BOX_OFF_TARGET_REWARD = -1.0
SOLVED_REWARD = 10.0

FRAME_CELL = 48


@dataclass(frozen=True)
class Vocabulary:
    """The names of actions and objects.

    Args:
        actions: Up, down, left and right.
        symbols: Wall, floor, target, box, box on target, player, player on target.
        player: What the player is called.
        box: What a box is called.
        target: What a target is called.
    """

    actions: tuple[str, str, str, str] = ("Up", "Down", "Left", "Right")
    symbols: str = STANDARD_SYMBOLS
    player: str = "player"
    box: str = "box"
    target: str = "target"

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != 7 or len(self.symbols) != 7:
            raise ConfigError(
                f"symbols is {self.symbols!r}; give seven different characters: wall, floor, "
                "target, box, box on target, player, player on target"
            )
        if len(self.actions) != 4:
            raise ConfigError(f"actions is {self.actions}; give names for up, down, left, right")

    def legend(self) -> str:
        wall, floor, target, box, home, player, arrived = self.symbols
        return (
            f"{wall} wall, {floor} floor, {target} {self.target}, {box} {self.box}, "
            f"{home} {self.box} on {self.target}, {player} {self.player}, "
            f"{arrived} {self.player} on {self.target}"
        )


VOCABULARIES = {
    "standard": Vocabulary(),
    "new": Vocabulary(
        actions=("North", "South", "West", "East"),
        symbols="W.GBCA@",
        player="agent",
        box="crate",
        target="goal",
    ),
}


class Sokoban(ActionEnvironment):
    """Push every box onto a target, in a room drawn from the seed.

    A move costs 0.1; a box pushed onto a target earns 1 and pushed off it costs 1; the solved room
    earns 10. Training, validation and test share no room.

    Args:
        size: Rows and columns, outer walls included; one number for a square.
        boxes: Boxes, and as many targets.
        inner_walls: Wall cells at random places inside, or ``walk`` to carve the floor by a
            random walk. The floor is always connected.
        min_solution: Fewest moves of the shortest solution.
        max_solution: Most moves of the shortest solution; None for as many as a search back from
            the solution over about 60,000 positions reaches.
        observation: What the agent sees: an ``image``, or the grid as ``text``.
        cell: Pixels per cell of the image.
        vocabulary: ``standard``, ``new`` (other symbols, other words), or your own.
        potential_shaping: Coefficient of potential-based shaping by the distance to the solution,
            which does not change the optimal policy (Ng et al. 1999); 0 for none. The distance of
            an unsolvable position is the number of cells inside the walls, or `max_solution` if
            that is larger.
        shaping_gamma: Discount of the shaping; give the discount between turns.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        size: int | tuple[int, int] = 6,
        boxes: int = 1,
        inner_walls: int | Literal["walk"] = 0,
        min_solution: int = 1,
        max_solution: int | None = 10,
        observation: Literal["image", "text"] = "image",
        cell: int = 14,
        vocabulary: Literal["standard", "new"] | Vocabulary = "standard",
        potential_shaping: float = 0.0,
        shaping_gamma: float = 1.0,
        **settings: Any,
    ) -> None:
        words = VOCABULARIES[vocabulary] if isinstance(vocabulary, str) else vocabulary
        super().__init__(action_names=words.actions, **settings)
        self.vocabulary = words
        self.observation = observation
        self.cell = cell
        self.potential_shaping = potential_shaping
        self.shaping_gamma = shaping_gamma
        self.spec = RoomSpec(
            size=(size, size) if isinstance(size, int) else (size[0], size[1]),
            boxes=boxes,
            inner_walls=inner_walls,
            min_solution=min_solution,
            max_solution=LONGEST_SEARCH if max_solution is None else max_solution,
        )
        self._check_rooms()
        rows, columns = self.spec.size
        self._hopeless = max((rows - 2) * (columns - 2), max_solution or 0)
        self._solver: Solver
        self._position: Position

    # -------------------------------------------------------------------------------- the episode

    def start_from(self, room: Room) -> Observation:
        """Start an episode in a given room."""
        self._solver, self._position = solve(room)
        return self._begin()

    def room(self) -> Room:
        """The room as it is now."""
        return room_at(self._solver, self._position)

    def oracle(self) -> tuple[str, ...] | None:
        plan = self._solver.plan(self._position)
        if plan is None:
            return None
        return tuple(self.action_names[direction] for direction in plan)

    def state(self) -> State:
        room = self.room()
        return State(
            natural=self._in_words(room),
            structured=json.dumps(
                {
                    "player": room.player,
                    "boxes": sorted(room.boxes),
                    "targets": sorted(room.targets),
                },
                separators=(",", ":"),
            ),
            symbolic=room.grid(self.vocabulary.symbols),
        )

    def rubric(self) -> str:
        words = self.vocabulary
        return (
            f"It says where the {words.player} is, where every {words.box} is and where every "
            f"{words.target} is, each exactly: the row and the column, counted from 0 at the top "
            f"left corner with the walls included, or how far above or below and how far left or "
            f"right of something else it is. Rows grow downwards, columns to the right. Which "
            f"{words.box} is called the first does not matter, nor the order, nor the wording; "
            f"walls and floor need not be told in words. It is wrong if one of these things is "
            f"missing, misplaced or only vaguely placed, or if it names one that is not there."
        )

    def frame(self) -> Image:
        return render(self.room().codes(), FRAME_CELL)

    def step(self, reply: Reply) -> StepResult:
        if not self.potential_shaping:
            return super().step(reply)
        before = self._potential()
        result = super().step(reply)
        shaping = self.potential_shaping * (self.shaping_gamma * self._potential() - before)
        return replace(result, reward=result.reward + self.reward_scale * shaping)

    def _start(self, seed: int, transition_seed: int) -> None:
        self._solver, self._position = self.spec.draw(seed)

    def _act(self, action: str) -> Outcome:
        before = self._position
        after = self._solver.move(before, self.action_names.index(action))
        if after is None:
            return Outcome(STEP_REWARD, changed=False)
        self._position = after
        targets = self._solver.targets
        reward = STEP_REWARD
        match (after[1] & targets).bit_count() - (before[1] & targets).bit_count():
            case 1:
                reward += BOX_ON_TARGET_REWARD
            case -1:
                reward += BOX_OFF_TARGET_REWARD
        solved = after[1] == targets
        return Outcome(reward + SOLVED_REWARD * solved, done=solved, success=solved)

    def _potential(self) -> float:
        distance = self._solver.distance(self._position)
        return -min(self._hopeless if distance is None else distance, self._hopeless)

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        if self.observation == "text":
            return Observation(self.room().grid(self.vocabulary.symbols))
        return Observation(IMAGE_PLACEHOLDER, (render(self.room().codes(), self.cell),))

    def system_prompt(self) -> str:
        words = self.vocabulary
        if self.observation == "text":
            shown = f"Symbols: {words.legend()}."
        else:
            shown = (
                f"In the image, walls are brown bricks, the {words.player} wears blue, a "
                f"{words.box} is a wooden crate (green once on a {words.target}) and a "
                f"{words.target} is a red ring."
            )
        return "\n".join(
            [
                f"Push every {words.box} onto a {words.target}, in as few moves as you can.",
                f"Actions of the {words.player}: {', '.join(words.actions)}. Walking into a "
                f"{words.box} pushes it if the cell behind it is free; it cannot be pulled.",
                shown,
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        match self.format.state:
            case "natural":
                words = self.vocabulary
                example = _EXAMPLE if self.spec.boxes == 1 else _EXAMPLE_OF_MORE
                return (
                    f"where the {words.player} is, with rows and columns counted from 0 at the top "
                    f"left corner, walls included, and where each {words.box} and {words.target} "
                    f"is, seen from the {words.player}, for example: {self._in_words(example)}"
                )
            case "structured":
                return (
                    '{"player":[row,column],"boxes":[[row,column]],"targets":[[row,column]]}, '
                    "rows and columns counted from 0 at the top left corner, walls included."
                )
            case "symbolic":
                example = _EXAMPLE.grid(self.vocabulary.symbols)
                return f"one line per row, {self.vocabulary.legend()}, for example:\n{example}"
            case None:
                return None

    def _in_words(self, room: Room) -> str:
        words = self.vocabulary
        row, column = room.player
        parts = [f"the {words.player} is at row {row}, column {column}"]
        for name, cells in ((words.box, room.boxes), (words.target, room.targets)):
            for number, cell in enumerate(sorted(cells), start=1):
                which = f"{name} {number}" if len(cells) > 1 else f"the {name}"
                parts.append(f"{which} is {_relation(cell, room.player, words.player)}")
        return "; ".join(parts)

    def _check_rooms(self) -> None:
        spec = self.spec
        check_size(spec.size, spec.boxes)
        rows, columns = spec.size
        inside = (rows - 2) * (columns - 2)
        if self.cell < 1:
            raise ConfigError(f"cell is {self.cell}; give at least 1 pixel")
        if spec.inner_walls != "walk" and not 0 <= spec.inner_walls <= inside - 2 * spec.boxes - 1:
            raise ConfigError(
                f"inner_walls is {spec.inner_walls}, but size {spec.size} and boxes {spec.boxes} "
                f"leave room for 0 to {inside - 2 * spec.boxes - 1}"
            )
        if not 1 <= spec.min_solution <= spec.max_solution <= LONGEST_SEARCH:
            raise ConfigError(
                f"min_solution is {spec.min_solution} and max_solution {spec.max_solution}; "
                f"they must be in order, from 1 to {LONGEST_SEARCH}"
            )
        if spec.min_solution > self.longest_episode:
            raise ConfigError(
                f"min_solution is {spec.min_solution}, but turn_limit, actions_per_turn and "
                f"actions_per_episode end an episode after {self.longest_episode} moves"
            )


class SokobanNewVocab(Sokoban):
    """A `Sokoban` told in other symbols and other words: does the agent read what they mean?

    Args:
        vocabulary: As `Sokoban`'s.
        observation: As `Sokoban`'s.
        **settings: The settings of `Sokoban`.
    """

    def __init__(
        self,
        vocabulary: Literal["standard", "new"] | Vocabulary = "new",
        observation: Literal["image", "text"] = "text",
        **settings: Any,
    ) -> None:
        super().__init__(vocabulary=vocabulary, observation=observation, **settings)


class LargeSokoban(Sokoban):
    """A `Sokoban` with larger rooms and two boxes: does the agent plan further than it learned to?

    Args:
        size: As `Sokoban`'s.
        boxes: As `Sokoban`'s.
        max_solution: As `Sokoban`'s.
        turn_limit: Turns after which an episode is truncated.
        **settings: The settings of `Sokoban`.
    """

    def __init__(
        self,
        size: int | tuple[int, int] = 8,
        boxes: int = 2,
        max_solution: int | None = 20,
        turn_limit: int = 30,
        **settings: Any,
    ) -> None:
        super().__init__(
            size=size, boxes=boxes, max_solution=max_solution, turn_limit=turn_limit, **settings
        )


_EXAMPLE = Room.parse("#####\n#P__#\n#X__#\n#__O#\n#####")
_EXAMPLE_OF_MORE = Room.parse("######\n#P___#\n#X_X_#\n#O__O#\n######")


def _relation(cell: Cell, other: Cell, name: str) -> str:
    """Describe a cell relative to another, such as "1 below and 2 to the right of the player"."""
    down, right = cell[0] - other[0], cell[1] - other[1]
    if not down and not right:
        return f"where the {name} is"
    vertical = f"{abs(down)} {'below' if down > 0 else 'above'}"
    horizontal = f"{abs(right)} to the {'right' if right > 0 else 'left'} of"
    return " and ".join([vertical] * bool(down) + [horizontal] * bool(right)) + f" the {name}"
