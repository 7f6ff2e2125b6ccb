"""BabyAI as an environment: missions in words, a view in words or pixels, a bot as the oracle."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from PIL import Image

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, State
from vagentrl_envs.babyai.view import LEGEND, Thing, View

if TYPE_CHECKING:
    from vagentrl_envs.babyai.levels import Level

Kind = Literal["goto", "pickup", "pick_up_seq_go_to", "putnext", "open"]
"""The kinds of missions."""
Task = Literal["goto", "pickup", "pick_up_seq_go_to", "putnext", "open", "mix"]

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""Names of the library's actions 0 to 5, in its order."""

ALIASES = {
    "left": "turn left",
    "rotate left": "turn left",
    "right": "turn right",
    "rotate right": "turn right",
    "forward": "go forward",
    "move forward": "go forward",
    "step forward": "go forward",
    "walk forward": "go forward",
    "go ahead": "go forward",
    "ahead": "go forward",
    "pickup": "pick up",
    "pick": "pick up",
    "take": "pick up",
    "grab": "pick up",
    "put down": "drop",
    "release": "drop",
    "open": "toggle",
    "open door": "toggle",
    "unlock": "toggle",
    "use": "toggle",
}
"""Other names that agents give to the actions."""

DRAWS = 1000
"""Levels that are drawn for a seed until one belongs to the seed's split."""
FRAME_CELL = 32
"""Pixels of a cell in pictures for people."""


class BabyAI(ActionEnvironment):
    """Carry out a mission in a room that is seen only in part.

    The agent sees a square of 7 × 7 cells ahead of it, told in words that are relative to it, or as
    an image. A mission that is accomplished earns 1 − 0.9 · steps / limit, where the limit is the
    library's; anything else earns nothing. Training, validation and test share no level.

    Args:
        task: The kind of mission: ``goto``, ``pickup``, ``pick_up_seq_go_to`` (pick up one thing,
            then go to another), ``putnext`` (put one thing next to another), ``open`` (a door
            between two rooms), a list of kinds to draw from, or a ``mix`` of all.
        room_size: Rows and columns of a room, walls included.
        distractors: Number of things in the rooms, the mission's included.
        max_steps: Actions after which the library truncates an episode; None for its own rule, the
            cells of the rooms for each place that the mission leads to (64 for ``goto``).
        observation: What the agent sees beside its mission: ``text``, or an ``image`` of its view.
        cell: Pixels per cell of the image, which is 7 cells wide and high.
        turn_limit: Turns after which an episode is truncated, beside the library's limit.
        aliases: Names of actions beside `ALIASES` that are repaired.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        task: Task | list[Kind] = "goto",
        room_size: int = 8,
        distractors: int = 8,
        max_steps: int | None = None,
        observation: Literal["text", "image"] = "text",
        cell: int = 14,
        turn_limit: int = 128,
        aliases: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            ACTIONS, turn_limit=turn_limit, aliases=ALIASES | (aliases or {}), **settings
        )
        if cell < 1 or (max_steps is not None and max_steps < 1):
            raise ConfigError(f"cell is {cell} and max_steps {max_steps}; give at least 1 of each")
        most = (room_size - 2) ** 2 // 2
        if room_size < 4 or not 1 <= distractors <= most:
            raise ConfigError(
                f"room_size is {room_size} and distractors {distractors}; give a room_size of at "
                f"least 4, and 1 to {max(most, 2)} distractors, so that the agent can pass"
            )
        kinds = _kinds(task)
        if distractors < 2 and {"putnext", "pick_up_seq_go_to"} & set(kinds):
            raise ConfigError(
                f"distractors is {distractors}, but {task} needs two things; give at least 2"
            )
        try:
            from vagentrl_envs.babyai.levels import Level, fingerprint
        except ImportError as error:
            raise ConfigError(
                f"BabyAI needs minigrid ({error}); pip install vagentrl[babyai]"
            ) from error
        self.observation = observation
        self.cell = cell
        self._fingerprint = fingerprint
        self._levels = [Level(kind, room_size, distractors, max_steps) for kind in kinds]
        self._level: Level = self._levels[0]
        self._level_seed = 0
        self._played: list[int] = []
        self._shadow: _Shadow | None = None

    # -------------------------------------------------------------------------------- the episode

    @property
    def level(self) -> Level:
        """The library's level of this episode."""
        return self._level

    def _start(self, seed: int, transition_seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(DRAWS):
            self._level = self._levels[rng.integers(len(self._levels))]
            self._level_seed = int(rng.integers(2**31))
            self._level.reset(seed=self._level_seed)
            if split_of_state(self._fingerprint(self._level)) == split_of(seed):
                self._played, self._shadow = [], None
                return
        raise EnvError(
            f"{DRAWS} draws gave no level of the {split_of(seed)} split (seed {seed}); give a "
            "larger room_size or more distractors"
        )

    def initial_state(self, seed: int) -> str:
        self._start(seed, 0)
        return self._fingerprint(self._level)

    def _act(self, action: str) -> Outcome:
        number = self.action_names.index(action)
        before = self._reach()
        _, earned, terminated, truncated, _ = self._level.step(number)
        reward = float(earned) if terminated else 0.0
        self._played.append(number)
        return Outcome(
            reward,
            done=bool(terminated),
            success=reward > 0,
            changed=before != self._reach(),
            truncated=bool(truncated),
        )

    def _reach(self) -> tuple[object, ...]:
        """All that a single action can change: where the agent is, what it carries and faces."""
        level = self._level
        ahead = level.grid.get(*level.front_pos)
        faced = None if ahead is None else (id(ahead), ahead.encode())
        return (*level.agent_pos, level.agent_dir, level.carrying, faced)

    def oracle(self) -> tuple[str, ...] | None:
        """The plan of the library's bot, which knows only what the agent has seen; None where it
        finds none, for example after a box that the mission needs was opened."""
        if self._over:
            return ()
        if self._shadow is None:
            kind = self._levels.index(self._level)
            self._shadow = _Shadow(copy.deepcopy(self._levels[kind]), self._level_seed)
        plan = self._shadow.plan(self._played)
        return None if plan is None else tuple(self.action_names[number] for number in plan)

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        mission = f"Mission: {self._level.mission}."
        if self.observation == "text":
            return Observation(f"{mission}\n{View.of(self._level).sentences()}")
        pixels = self._level.get_pov_render(self.cell)
        carried = View.of(self._level).carried
        carrying = "nothing" if carried is None else f"a {carried}"
        return Observation(
            f"{IMAGE_PLACEHOLDER}\n{mission} You carry {carrying}.", (Image.fromarray(pixels),)
        )

    def state(self) -> State:
        return View.of(self._level).state()

    def rubric(self) -> str:
        return (
            "It names every thing in sight (balls, boxes, keys, doors) with its colour and says "
            "how many steps ahead and how many to the left or right of the agent it is, whether a "
            "door is open, closed or locked, and what the agent carries. Neither order nor wording "
            "matters; walls and floor need not be told. It is wrong if a thing is missing, "
            "misplaced or only vaguely placed, or if it names one that is not in sight."
        )

    def frame(self) -> Image.Image:
        return Image.fromarray(self._level.get_full_render(True, FRAME_CELL))

    def system_prompt(self) -> str:
        if self.observation == "text":
            shown = "You are told what is in sight: up to 6 steps ahead and 3 to each side."
        else:
            shown = (
                "The image shows what is in sight, up to 6 steps ahead and 3 to each side: you are "
                "the red triangle at the bottom, facing up; grey is wall, dark is out of sight."
            )
        return "\n".join(
            [
                "You are in a room with balls, boxes, keys and doors. Carry out the mission, in as "
                "few actions as you can.",
                f"Actions: {', '.join(self.action_names)}. You go forward to the cell ahead if "
                "nothing is in it. pick up takes the thing right ahead of you, if you carry "
                "nothing; drop puts it down right ahead of you; toggle opens or closes a door "
                "right ahead. You have gone to a thing when it is right ahead of you.",
                shown,
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        match self.format.state:
            case "natural":
                return f"what is in sight and what you carry, for example: {_EXAMPLE.natural}"
            case "structured":
                return (
                    '{"things":[[name,steps ahead,steps to the right]],"carried":name or null}, '
                    f"negative to the left, for example: {_EXAMPLE.structured}"
                )
            case "symbolic":
                return (
                    f"7 rows of 7 cells, the nearest last, {LEGEND}; then what you carry, for "
                    f"example:\n{_EXAMPLE.symbolic}"
                )
            case None:
                return None


def _kinds(task: Task | list[Kind]) -> list[Kind]:
    """The kinds of missions to draw from."""
    known: list[Kind] = list(get_args(Kind))
    kinds: list[Kind] = task if isinstance(task, list) else known if task == "mix" else [task]
    if not kinds or not set(kinds) <= set(known) or len(set(kinds)) < len(kinds):
        raise ConfigError(f"task is {task!r}; give {', '.join(known)}, a list of them, or mix")
    return kinds


class _Shadow:
    """A copy of the level that the bot watches, so that it knows what the agent has done and seen.

    The bot is asked only when a plan is wanted: it is several times slower than the level.
    """

    def __init__(self, level: Level, seed: int) -> None:
        from minigrid.utils.baby_ai_bot import (  # pyright: ignore[reportMissingImports]
            BabyAIBot,
            DisappearedBoxError,
        )

        level.reset(seed=seed)
        self._pair: tuple[Level, Any] = (level, BabyAIBot(level))
        self._followed = 0
        self._last: int | None = None
        # The bot states what it takes for granted by assertions, and looks things up where they
        # were; both fail in positions to which it would never have come itself.
        self._lost = (AssertionError, DisappearedBoxError, IndexError, KeyError, ValueError)
        self._gave_up = False

    def plan(self, played: list[int]) -> list[int] | None:
        """The numbers of the actions from here to success; None if the bot finds none.

        Args:
            played: All actions of the episode.
        """
        level, bot = self._pair
        try:
            for action in played[self._followed :]:
                if not self._gave_up:
                    bot.replan(self._last)
                level.step(action)
                self._followed, self._last = self._followed + 1, action
        except self._lost:
            self._gave_up = True
        return None if self._gave_up else self._think_ahead()

    def _think_ahead(self) -> list[int] | None:
        level, bot = copy.deepcopy(self._pair)
        plan: list[int] = []
        last = self._last
        try:
            while True:
                action = int(bot.replan(last))
                last = None
                plan.append(action)
                _, reward, terminated, truncated, _ = level.step(action)
                if terminated or truncated:
                    return plan if terminated and float(reward) > 0 else None
        except self._lost:
            return None


_EXAMPLE = View(
    things=(Thing(2, -1, "red ball"), Thing(4, 0, "green door")),
    walls=(None, None, None),
    carried="blue key",
    rows=(
        "##############", "##############", "######gd######", "..__________..",
        "..__ro______..", "__________..__", "______^^______",
    ),
).state()  # fmt: skip
