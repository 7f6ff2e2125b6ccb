"""Baba Is AI: win by following the rules, or by changing them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, State
from vagentrl_envs.baba.game import DIRECTIONS, Room
from vagentrl_envs.baba.game import State as Board
from vagentrl_envs.baba.solver import SEARCH_LIMIT, SearchLimit, solve
from vagentrl_envs.baba.sprites import render
from vagentrl_envs.baba.tasks import ONE_ROOM, Task, find_tasks
from vagentrl_envs.baba.words import EXAMPLE, grid, in_words, legend, named, seen_from_you

if TYPE_CHECKING:
    from PIL.Image import Image

DRAWS = 2000
"""Number of levels that are drawn before a reset fails."""

FRAME_CELL = 48

ALIASES = {
    **{f"{verb} {way}": way for verb in ("move", "go", "step", "push") for way in DIRECTIONS},
    **dict(zip(("north", "east", "south", "west"), DIRECTIONS, strict=True)),
    **{way[0]: way for way in DIRECTIONS},
    **dict.fromkeys(("noop", "wait", "stay", "none", "do nothing"), "idle"),
}

PUBLISHED_LIMIT = 100
"""Number of actions after which the benchmark ends an episode."""


class Baba(ActionEnvironment):
    """Baba Is AI: reach what wins, where the rules are text blocks that can be pushed.

    The 40 tasks, their rooms and their limit of 100 actions are those of the benchmark (Cloos et
    al. 2024). Three blocks in a row, read to the right or downwards, are a rule: NOUN IS PROPERTY,
    or NOUN IS NOUN, which turns objects into others. A win earns 1. If nothing is YOU any more, the
    episode ends. Every level was solved by a search before it is played; training, validation and
    test share no level.

    Args:
        tasks: A task's name, or several, or patterns in which ``*`` stands for anything. The seed
            decides which of the tasks is played.
        observation: What the agent sees: ``text`` names the rules and where everything is, seen
            from YOU, as in BALROG; ``grid`` has a symbol for each cell; ``image`` is a picture.
        published_reward: Pay as the benchmark does: a win earns 1 minus 0.9 times the share of the
            100 actions that was used, and losing every YOU to DEFEAT costs 1. Otherwise a win earns
            1 and all else 0, as Verlog and BALROG have it.
        cell: Pixels per cell of the image.
        search_limit: Number of states after which the search for a solution gives up. A level for
            which it gives up is not played.
        turn_limit: Turns after which an episode is truncated.
        repair: Whether other spellings of an action, such as ``move up``, are accepted; the metric
            ``repaired_actions`` is their share.
        **settings: The other settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        tasks: str | list[str] = "goto_win",
        observation: Literal["text", "grid", "image"] = "text",
        published_reward: bool = False,
        cell: int = 16,
        search_limit: int = SEARCH_LIMIT,
        turn_limit: int = 100,
        repair: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(
            action_names=("idle", *DIRECTIONS),
            turn_limit=turn_limit,
            aliases=ALIASES if repair else None,
            **settings,
        )
        self.tasks = find_tasks(tasks)
        self.observation = observation
        self.published_reward = published_reward
        self.cell = cell
        self.search_limit = search_limit
        if observation not in ("text", "grid", "image"):
            raise ConfigError(f"observation is {observation!r}; give text, grid or image")
        if cell < 4:
            raise ConfigError(f"cell is {cell}; give at least 4 pixels")
        if search_limit < 1:
            raise ConfigError(f"search_limit is {search_limit}; give at least 1 state")
        self._room: Room
        self._board: Board
        self._task: Task | None
        self._moves: int
        self._plan: tuple[Board, tuple[str, ...]] | None = None

    # -------------------------------------------------------------------------------- the episode

    def start_from(self, room: Room, board: Board) -> Observation:
        """Start an episode in a given level."""
        self._room, self._board, self._task = room, board, None
        self._moves, self._plan = 0, None
        return self._begin()

    @property
    def room(self) -> Room:
        """The empty room of this episode."""
        return self._room

    @property
    def board(self) -> Board:
        """Where everything is now."""
        return self._board

    @property
    def task(self) -> Task | None:
        """The task of this episode; None if it was started from a given level."""
        return self._task

    def oracle(self) -> tuple[str, ...] | None:
        """Return a short solution; None if there is none or the search gave up."""
        if self._plan is None or self._plan[0] != self._board:
            try:
                plan = solve(self._room, self._board, self.search_limit)
            except SearchLimit:
                return None
            if plan is None:
                return None
            self._plan = self._board, tuple(DIRECTIONS[direction] for direction in plan)
        return self._plan[1]

    def state(self) -> State:
        room, board = self._room, self._board
        rules, places = room.rules(board).sentences(), named(room, board)
        return State(
            natural=in_words(rules, places),
            structured=json.dumps({"rules": rules, "cells": places}, separators=(",", ":")),
            symbolic=grid(room, board),
        )

    def rubric(self) -> str:
        return (
            "It says which rules hold, and where every object and every text block is, each "
            "exactly: the row and the column, counted from 0 at the top left corner with the "
            "border included, or how far above or below and how far left or right of something "
            "else it is. Rows grow downwards, columns to the right. Neither the order nor the "
            "wording matters, and floor and border need not be told in words. It is wrong if a "
            "rule, an object or a text block is missing, misplaced or only vaguely placed, or if "
            "it names one that is not there. An object and the text block with its name are "
            "different things."
        )

    def frame(self) -> Image:
        return render(self._room, self._board, FRAME_CELL)

    def _start(self, seed: int, transition_seed: int) -> None:
        self._task, self._board = _draw(self.tasks, seed, self.search_limit, self.longest_episode)
        self._room, self._moves, self._plan = self._task.room, 0, None

    def _act(self, action: str) -> Outcome:
        self._moves += 1
        if action == "idle":
            return Outcome(0.0, changed=False)
        before = self._board
        step = self._room.step(before, DIRECTIONS.index(action))
        self._board = step.state
        if self._plan is not None and self._plan[0] == before and self._plan[1][:1] == (action,):
            self._plan = step.state, self._plan[1][1:]  # the rest of a solution is a solution
        reward = float(step.won)
        if self.published_reward:
            reward *= 1 - 0.9 * self._moves / PUBLISHED_LIMIT
            reward -= float(step.lost and step.defeated)
        return Outcome(
            reward, done=step.won or step.lost, success=step.won, changed=step.state != before
        )

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        if self.observation == "text":
            return Observation(seen_from_you(self._room, self._board))
        if self.observation == "grid":
            rules = "; ".join(self._room.rules(self._board).sentences())
            return Observation(f"Rules: {rules or 'none'}\n{grid(self._room, self._board)}")
        return Observation(IMAGE_PLACEHOLDER, (render(self._room, self._board, self.cell),))

    def system_prompt(self) -> str:
        shown = {
            "text": "You are told which rules hold, and where everything is, seen from you. The "
            "room has a border that nothing can enter.",
            "grid": f"Symbols: {legend()}.",
            "image": "In the picture, blocks with a word are text, the white animal is baba, "
            "brown bricks are a wall, the green disc is a ball, the blue thing is a key and the "
            "red thing is a door. The grey border cannot be entered.",
        }
        return "\n".join(
            [
                "This is a puzzle about rules. You move whatever is YOU, and you win when it "
                "enters the cell of something that is WIN.",
                "Three text blocks in a row, read to the right or downwards, are a rule, such as "
                "KEY IS WIN. Text can be pushed: push it apart to break a rule, push it together "
                "to make one. What is PUSH can be pushed too, what is STOP cannot be entered, "
                "what is DEFEAT destroys you, and anything else can be walked over. If nothing is "
                "YOU, you have lost.",
                f"Actions: {', '.join(self.action_names)}.",
                shown[self.observation],
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        rules = ONE_ROOM.rules(EXAMPLE).sentences()
        match self.format.state:
            case "natural":
                return (
                    "the rules, and where every object and text block is, with rows and columns "
                    "counted from 0 at the top left corner, border included, for example: "
                    f"{in_words(rules, named(ONE_ROOM, EXAMPLE))}"
                )
            case "structured":
                return (
                    '{"rules":["noun is property"],"cells":{"noun":[[row,column]],"text word":'
                    "[[row,column]]}}, rows and columns counted from 0 at the top left corner, "
                    "border included."
                )
            case "symbolic":
                return f"one line per row, {legend()}, for example:\n{grid(ONE_ROOM, EXAMPLE)}"
            case None:
                return None


@lru_cache(maxsize=256)
def _draw(tasks: tuple[Task, ...], seed: int, limit: int, longest: int) -> tuple[Task, Board]:
    """Draw a task and a level of it that was solved, and that belongs to the seed's split.

    The members of a group ask for the same level, so it is kept.
    """
    rng, split = np.random.default_rng(seed), split_of(seed)
    task = tasks[rng.integers(len(tasks))]
    for _ in range(DRAWS):
        board = task.draw(rng)
        if split_of_state(grid(task.room, board)) != split:
            continue
        try:
            plan = solve(task.room, board, limit)
        except SearchLimit:
            continue
        if plan and len(plan) <= longest:
            return task, board
    raise EnvError(
        f"no level of the task {task.name} was solved within {longest} moves in {DRAWS} draws "
        f"(seed {seed}, for {split}); raise turn_limit, or search_limit, which is {limit}"
    )
