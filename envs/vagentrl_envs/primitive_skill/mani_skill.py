"""ManiSkill 3 as the simulator: a whole Panda that grasps. Unverified: ManiSkill needs Vulkan.

This was written from ManiSkill's published interface and is tested with a stand-in only. It plays
on the table of ``StackCube-v1``, which has a red and a green cube.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from vagentrl.errors import ConfigError
from vagentrl_envs.primitive_skill.backend import Backend
from vagentrl_envs.primitive_skill.scene import HALF, HAND, Position, Scene, Task, Thing, apart
from vagentrl_envs.primitive_skill.skills import (
    DROPPED,
    NOTHING,
    PICKED,
    PLACED,
    PUSHED,
    SLIPPED,
    UNMOVED,
    Skill,
    failure,
    grasped,
)

_BASE: Position = (-615.0, 0.0, 0.0)
"""Where the robot stands; its controller counts from there."""
_ABOVE = 120.0
"""Millimetres above a position from which the hand comes down to it."""
_OPEN, _CLOSED = 1.0, -1.0
_ACTORS = {"red cube": "cubeA", "green cube": "cubeB"}


class ManiSkill(Backend):
    """Skills as waypoints of the hand, by the controller ``pd_ee_pose``.

    Args:
        steps: Control steps in which the hand goes from one waypoint to the next.
    """

    colors = ("red", "green")
    tasks: tuple[Task, ...] = ("pick", "stack")

    def __init__(self, steps: int = 20) -> None:
        if steps < 1:
            raise ConfigError(f"ManiSkill.steps is {steps}; give at least 1")
        self.steps = steps
        self._env: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ManiSkill:
        return type(self)(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_env": None}

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def perform(self, scene: Scene, skill: Skill, slips: bool) -> Scene:
        problem = failure(scene, skill)
        if problem is not None:
            return replace(scene, result=problem)
        self._arrange(scene)
        match skill.verb:
            case "pick":
                return self._pick(scene, skill, slips)
            case "place":
                return self._place(scene, skill, slips)
            case _:
                return self._push(scene, skill)

    def picture(self, scene: Scene, size: int) -> Image.Image:
        self._arrange(scene)
        pixels = np.asarray(self._env.render())
        pixels = pixels.reshape(-1, *pixels.shape[-3:])[0]  # of the one environment
        return Image.fromarray(pixels.astype(np.uint8)).convert("RGB").resize((size, size))

    def _pick(self, scene: Scene, skill: Skill, slips: bool) -> Scene:
        thing = grasped(scene, skill.start)
        if thing is None:
            return replace(scene, result=NOTHING)
        self._go(_over(skill.start), _OPEN)
        self._go(skill.start, _OPEN)
        self._go(skill.start, _CLOSED)
        self._go(_over(skill.start), _OPEN if slips else _CLOSED)
        self._go(HAND, _OPEN if slips else _CLOSED)
        after = self._seen(scene)
        if after.thing(thing.name).position[2] < _ABOVE / 2:
            return replace(after, result=SLIPPED)
        return replace(after.moved(thing.name, HAND, held=thing.name), result=PICKED)

    def _place(self, scene: Scene, skill: Skill, slips: bool) -> Scene:
        name = scene.held or ""
        self._go(HAND, _CLOSED)
        self._go(_over(skill.start), _OPEN if slips else _CLOSED)
        self._go(skill.start, _OPEN if slips else _CLOSED)
        self._go(skill.start, _OPEN)
        self._go(_over(skill.start), _OPEN)
        after = replace(self._seen(scene), held=None)
        rested = after.thing(name).position
        fell = apart(rested, skill.start) > 15 or abs(rested[2] - skill.start[2]) > 15
        return replace(after, result=DROPPED if fell else PLACED)

    def _push(self, scene: Scene, skill: Skill) -> Scene:
        for position in (_over(skill.start), skill.start, skill.end, _over(skill.end)):
            self._go(position, _CLOSED)
        after = self._seen(scene)
        return replace(after, result=UNMOVED if after.things == scene.things else PUSHED)

    # ---------------------------------------------------------------------------- the simulator

    def _connect(self) -> Any:
        """Make ManiSkill's environment; called once."""
        try:
            import gymnasium
            import mani_skill.envs  # pyright: ignore[reportMissingImports]  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"ManiSkill cannot be imported ({error}): pip install mani-skill; it needs Vulkan"
            ) from error
        return gymnasium.make(
            "StackCube-v1",
            num_envs=1,
            control_mode="pd_ee_pose",
            render_mode="rgb_array",
            sim_backend="physx_cpu",
            max_episode_steps=1_000_000,
        )

    def _pose(self, position: Position, turn: tuple[float, ...]) -> Any:
        """A pose of ManiSkill: metres, and a quaternion (w, x, y, z)."""
        from mani_skill.utils.structs.pose import Pose  # pyright: ignore[reportMissingImports]

        metres = [number / 1000 for number in position]
        return Pose.create_from_pq(metres, [turn[3], *turn[:3]])

    def _arrange(self, scene: Scene) -> None:
        """Put the robot to rest and every cube where the scene has it."""
        if self._env is None:
            self._env = self._connect()
        self._env.reset(seed=0)
        for thing in scene.things:
            self._actor(thing).set_pose(self._pose(thing.position, thing.turn))
        if scene.held is not None:  # the hand closes on what is put into it
            self._go(HAND, _OPEN)
            held = scene.thing(scene.held)
            self._actor(held).set_pose(self._pose(HAND, held.turn))
            self._go(HAND, _CLOSED)

    def _actor(self, thing: Thing) -> Any:
        return getattr(self._env.unwrapped, _ACTORS[thing.name])

    def _go(self, position: Position, gripper: float) -> None:
        """Move the hand, pointing down, to a position."""
        goal = [(a - b) / 1000 for a, b in zip(position, _BASE, strict=True)]
        action = np.array([*goal, math.pi, 0.0, 0.0, gripper], np.float32)
        for _ in range(self.steps):
            self._env.step(action)

    def _seen(self, scene: Scene) -> Scene:
        """The scene with the cubes where the simulator has them."""
        things = []
        for thing in scene.things:
            pose = self._actor(thing).pose
            x, y, z = (round(1000 * float(n), 1) + 0.0 for n in np.ravel(pose.p)[:3])
            w, *turn = (round(float(n), 4) + 0.0 for n in np.ravel(pose.q)[:4])
            moved = math.dist((x, y, z), thing.position) > HALF / 10
            things.append(
                replace(thing, position=(x, y, z), turn=(turn[0], turn[1], turn[2], w))
                if moved
                else thing
            )
        return replace(scene, things=tuple(things))


def _over(position: Position) -> Position:
    return (position[0], position[1], position[2] + _ABOVE)
