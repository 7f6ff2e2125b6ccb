"""PrimitiveSkill: a robot arm that picks, places and pushes by named skills with coordinates."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, ReplyFormat
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, State, StepResult
from vagentrl_envs.primitive_skill.backend import Backend
from vagentrl_envs.primitive_skill.scene import (
    CELL,
    HALF,
    SIZE,
    Scene,
    Target,
    Task,
    Thing,
    describe,
)
from vagentrl_envs.primitive_skill.skills import RESULTS, SIGNATURES, Skill, read_skill
from vagentrl_envs.primitive_skill.tasks import draw_scene, goal_in_words, plan, subgoals

if TYPE_CHECKING:
    from PIL.Image import Image

FEWEST: dict[Task, int] = {
    "pick": 1, "push": 1, "place": 1, "stack": 2, "align": 2, "open": 0, "drawer": 0
}  # fmt: skip
"""Cubes that each task needs."""
DRAWS = 5000
FRAME_SIZE = 336


class PrimitiveSkill(ActionEnvironment):
    """Move things on a table with ``pick(x, y, z)``, ``place(x, y, z)`` and ``push(…)``.

    Coordinates are whole millimetres. Each part of the task that gets done earns its share of 1,
    and costs it again if it comes undone; success, with all parts done, ends the episode. A skill
    that fails (out of reach, collision, slipped, dropped, …) leaves a state that says so.

    Args:
        task: ``pick`` up a cube, ``push`` one onto its target, ``place`` each on its target,
            ``stack`` all, ``align`` all on a line, ``open`` the drawer, or put the apple into the
            ``drawer``, which has to be opened first.
        cubes: Cubes on the table, 1 to 5; those that the task is not about are in the way.
        grid: Things start at multiples of so many millimetres.
        slip: Probability that what is picked slips out of the hand, and that what is placed does on
            the way.
        observation: What the agent sees: an ``image``, or the state as ``text``.
        size: Pixels of the sides of the image.
        backend: The simulator; None for PyBullet.
        turn_limit: Turns after which an episode is truncated.
        format: The format of replies. Its ``action_separator`` must not be a comma; None for
            `FreeThink` with ``|``.
        **settings: The settings of ``ActionEnvironment``, except those of a default action.
    """

    def __init__(
        self,
        task: Task = "place",
        cubes: int = 2,
        grid: int = 10,
        slip: float = 0.0,
        observation: Literal["image", "text"] = "image",
        size: int = 224,
        backend: Backend | None = None,
        turn_limit: int = 8,
        format: ReplyFormat | None = None,
        **settings: Any,
    ) -> None:
        format = FreeThink(action_separator="|") if format is None else format
        if format.action_separator is not None and "," in format.action_separator:
            raise ConfigError(
                f"the format's action_separator is {format.action_separator!r}, but skills have "
                "commas; set action_separator to '|', or to null for one skill in a turn"
            )
        super().__init__(SIGNATURES, format=format, turn_limit=turn_limit, **settings)
        self._check_settings(task, cubes, grid, slip, size)
        self.task: Task = task
        self.cubes = cubes
        self.grid = grid
        self.slip = slip
        self.observation = observation
        self.size = size
        self.backend = _pybullet() if backend is None else backend
        if task not in self.backend.tasks or cubes > len(self.backend.colors):
            name = type(self.backend).__name__
            raise ConfigError(
                f"{name} has no {task} with {cubes} cubes; it has {', '.join(self.backend.tasks)}, "
                f"with at most {len(self.backend.colors)}"
            )
        self._scene: Scene
        self._luck: np.random.Generator
        self._done = 0.0

    # -------------------------------------------------------------------------------- the episode

    @property
    def scene(self) -> Scene:
        """What stands where now."""
        return self._scene

    def initial_state(self, seed: int) -> Scene:
        return self._draw(seed)

    def start_from(self, scene: Scene, transition_seed: int = 0) -> Observation:
        """Start an episode on a given scene."""
        self._luck = np.random.default_rng(transition_seed)
        self._set(scene)
        return self._begin()

    def close(self) -> None:
        self.backend.close()

    def oracle(self) -> tuple[str, ...] | None:
        """Skills that solve the task if none of them slips; None if no way is known."""
        found = plan(self._scene)
        return None if found is None else tuple(map(str, found))

    def random_actions(self, rng: Random) -> tuple[str, ...]:
        """Mostly skills that suggest themselves, sometimes anywhere on the table."""
        return tuple(self._random_skill(rng) for _ in range(self.actions_per_turn))

    def step(self, reply: Reply) -> StepResult:
        if not self._over:
            self._scene = replace(self._scene, result="none")
        return super().step(reply)

    def _start(self, seed: int, transition_seed: int) -> None:
        self._luck = np.random.default_rng((seed, transition_seed, 1))
        self._set(self._draw(seed))

    def _draw(self, seed: int) -> Scene:
        """The scene of a seed, whose split it belongs to."""
        rng, split = np.random.default_rng(seed), split_of(seed)
        for _ in range(DRAWS):
            scene = draw_scene(self.task, self.backend.colors, self.cubes, self.grid, rng)
            if scene is not None and split_of_state(repr(scene)) == split and plan(scene):
                return scene
        raise EnvError(
            f"no scene of {self.task} with {self.cubes} cubes on a grid of {self.grid} in {DRAWS} "
            f"draws (seed {seed}); ask for fewer cubes or a finer grid"
        )

    def _set(self, scene: Scene) -> None:
        self._scene = scene
        parts = subgoals(scene)
        self._done = sum(parts) / len(parts)
        self.action_names = tuple(map(str, _suggested(scene)))

    def _asked(self, reply: Reply) -> list[str | None]:
        read = [read_skill(action) for action in reply.actions[: self.actions_per_turn]]
        asked = [None if skill is None else str(skill) for skill in read]
        if self.invalid_action == "end_turn" and None in asked:
            return asked[: asked.index(None) + 1]
        return asked

    def _act(self, action: str) -> Outcome:
        skill, before, done = read_skill(action), self._scene, self._done
        if skill is None:
            return Outcome(0.0, changed=False)
        slips = bool(self._luck.random() < self.slip)
        after = self.backend.perform(before, skill, slips)
        changed = replace(after, result=before.result) != before
        if before.result != "none":
            after = replace(after, result=f"{before.result}, {after.result}")
        self._set(after)
        solved = self._done == 1
        return Outcome(self._done - done, done=solved, success=solved, changed=changed)

    def _random_skill(self, rng: Random) -> str:
        if rng.random() < 0.75:
            return rng.choice(self.action_names)
        numbers = [rng.randrange(-200, 201, 10) for _ in range(4)]
        start, end = (numbers[0], numbers[1], HALF), (numbers[2], numbers[3], HALF)
        return str(Skill(rng.choice(("pick", "place", "push")), start, end))

    # ------------------------------------------------------------------------------ what is shown

    def state(self) -> State:
        return describe(self._scene)

    def rubric(self) -> str:
        return (
            "It says where everything is that stands on the table: the three coordinates of each "
            "cube and of the apple, the two of each target or the x of the line, every number "
            "right to within 20 millimetres; what the hand holds; how far the drawer is open, to "
            "within 20, if there is one; and the result of the last skill. Where things are may "
            "also be told by how far they are from one another. It is wrong if something is "
            "missing, misplaced or not there. Order and wording do not matter."
        )

    def frame(self) -> Image:
        return self.backend.picture(self._scene, FRAME_SIZE)

    def _observe(self) -> Observation:
        scene = self._scene
        task = f"Task: {goal_in_words(scene)}."
        if self.observation == "text":
            return Observation(f"{task}\n{describe(scene).natural}")
        result = "" if scene.result == "none" else f"\nResult: {scene.result}."
        picture = self.backend.picture(scene, self.size)
        return Observation(f"{task}\n{IMAGE_PLACEHOLDER}{result}", (picture,))

    def _wrong_action(self) -> str:
        return f"unknown skill; the skills are {', '.join(SIGNATURES)}"

    def system_prompt(self) -> str:
        shown = (
            "" if self.observation == "text" else " The picture is taken from opposite the robot."
        )
        return "\n".join(
            [
                "You control a robot arm with a gripper at a table. Skills: pick(x, y, z) grasps "
                "what is there and lifts it, place(x, y, z) lets go of it there, push(x1, y1, z1, "
                "x2, y2, z2) moves the closed gripper from one point to another; begun at the "
                "drawer's handle it pulls the drawer.",
                "Coordinates are whole millimetres from the middle of the table: x away from the "
                "robot, y to its left, z up. They are those of a thing's centre; cubes are "
                f"{SIZE:g} high, so one on the table has z = {HALF:g}.{shown}",
                f"A skill may fail: {', '.join(RESULTS[4:])}.",
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        """Describe how to write a state in the reply format's representation."""
        example = describe(_EXAMPLE)
        match self.format.state:
            case "natural":
                return f"with coordinates in millimetres, for example: {example.natural}"
            case "structured":
                return f"with coordinates in millimetres, for example: {example.structured}"
            case "symbolic":
                return (
                    f"a map of cells of {CELL} millimetres from above, the row farthest from the "
                    "robot first and its left side first, a capital for a thing and a small letter "
                    f"for a target, by the first letter of its colour or of apple; for example:\n"
                    f"{example.symbolic}"
                )
            case None:
                return None

    def _check_settings(self, task: Task, cubes: int, grid: int, slip: float, size: int) -> None:
        if task not in get_args(Task):
            raise ConfigError(f"task is {task!r}; give one of {', '.join(get_args(Task))}")
        if cubes < FEWEST[task]:
            raise ConfigError(f"cubes is {cubes}, but {task} needs at least {FEWEST[task]}")
        if not 1 <= grid <= 50:
            raise ConfigError(f"grid is {grid}; give 1 to 50 millimetres")
        if not 0 <= slip < 1:
            raise ConfigError(f"slip is {slip}; it is a probability below 1")
        if not 16 <= size <= 1024:
            raise ConfigError(f"size is {size}; give 16 to 1024 pixels")
        if self.default_action is not None:
            raise ConfigError(
                f"default_action is {self.default_action!r}, but what stands where differs; set "
                "invalid_action to skip or end_turn"
            )


def _suggested(scene: Scene) -> list[Skill]:
    """Skills that do something: of these random play and noisy demonstrators draw."""
    if scene.held is not None:
        spots = [t.position for t in scene.targets] + [(-100.0, -100.0, HALF), (0.0, 0.0, HALF)]
        spots += [(x, y, z + SIZE) for x, y, z in (t.position for t in scene.lying())]
        return [Skill("place", spot) for spot in spots]
    picks = [Skill("pick", thing.position) for thing in scene.things]
    pushes = [
        Skill("push", (x, y - 50, HALF), (x, y + 50, HALF))
        for x, y, _ in (thing.position for thing in scene.things)
    ]
    if scene.handle is not None:
        x, y, z = scene.handle
        pushes.append(Skill("push", scene.handle, (x - 60, y, z)))
    return list(dict.fromkeys(picks + pushes))


def _pybullet() -> Backend:
    try:
        from vagentrl_envs.primitive_skill.bullet import PyBullet
    except ImportError as error:
        raise ConfigError(
            f"the robot's simulator cannot be imported ({error}): pip install 'vagentrl[pybullet]'"
        ) from error
    return PyBullet()


_EXAMPLE = Scene(
    "place",
    ("red cube",),
    (Thing("red cube", "red", (100.0, -50.0, HALF)),),
    (Target("red target", "red", -50.0, 120.0),),
)
