"""PyBullet: things on a table that fall, tumble and are pushed, and a Panda in the picture.

Two shortcuts make a skill cost milliseconds:

- The arm is not simulated. Reach is decided by geometry (`skills.is_reachable`), what the hand
  holds is carried without forces, and a push moves one finger through the world. Physics decides
  where things come to rest after a release or a push.
- The arm rests between skills, so its picture is taken once; the things are drawn before it by
  their depth.

Each skill begins in a world that is built anew from the scene, so nothing is left of earlier ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import pybullet  # pyright: ignore[reportMissingImports]
import pybullet_data  # pyright: ignore[reportMissingImports]
from PIL import Image

from vagentrl_envs.primitive_skill.backend import Backend
from vagentrl_envs.primitive_skill.scene import (
    COLORS,
    DEPTH,
    FRONT,
    HALF,
    HAND,
    SIDE,
    TOP,
    WIDTH,
    Position,
    Scene,
    Target,
    Thing,
    apart,
)
from vagentrl_envs.primitive_skill.skills import (
    DROPPED,
    PLACED,
    PUSHED,
    UNMOVED,
    Skill,
    failure,
    grips_handle,
    picked,
    pulled,
)

METRES = 0.001
"""Of a millimetre; PyBullet counts in metres."""
_STEPS = 240
"""Most steps of 1/240 s in which things come to rest."""
_STILL = 0.01
"""Metres and radians per second below which a thing is at rest."""
_ASK = 8
"""Steps after which the things are asked whether they are at rest."""
_ADVANCE = 1.0
"""Millimetres by which a finger pushes in a step."""
_STAYED = 1.0
"""Millimetres within which a thing counts as unmoved."""
_ARM = (0.0, -0.293, 0.0, -2.6, 0.0, 2.306, 0.785, 0.0, 0.0, 0.022, 0.022, 0.0)
"""Joints of the resting Panda; its hand is then at `HAND`."""
_CAMERA, _FOCUS, _ANGLE = (0.5, 0.0, 0.66), (-0.06, 0.0, 0.05), 42.0
_TABLE, _WOOD, _TRAY = (0.78, 0.74, 0.68, 1), (0.55, 0.38, 0.22, 1), (0.72, 0.55, 0.35, 1)
_SKY = (205, 220, 230)

Pixels = tuple[np.ndarray, np.ndarray]
"""Colours, `(size, size, 3)` of uint8, and depths, `(size, size)`."""


class PyBullet(Backend):
    """A simulator with a client of its own, which is connected at the first use."""

    def __init__(self) -> None:
        self._client: int | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PyBullet:
        return PyBullet()  # nothing is remembered, so a new one does the same

    def __getstate__(self) -> dict[str, Any]:
        return {"_client": None}

    @property
    def client(self) -> int:
        """The number of the physics client, which is connected here if it is not yet."""
        client: int | None = self._client
        if client is None:
            client = self._client = int(pybullet.connect(pybullet.DIRECT))
        return client

    def close(self) -> None:
        if self._client is not None:
            pybullet.disconnect(physicsClientId=self._client)
            self._client = None

    def __del__(self) -> None:
        self.close()

    def perform(self, scene: Scene, skill: Skill, slips: bool) -> Scene:
        problem = failure(scene, skill)
        if problem is not None:
            return replace(scene, result=problem)
        if skill.verb == "pick":
            return picked(scene, skill, slips)
        if skill.verb == "place":
            return self._place(scene, skill.start, slips)
        return pulled(scene, skill) if grips_handle(scene, skill) else self._push(scene, skill)

    def _place(self, scene: Scene, at: Position, slips: bool) -> Scene:
        """Let go of what is held: at a position, or half-way there if it slips."""
        name = scene.held or ""
        released = at
        if slips:
            released = ((at[0] + HAND[0]) / 2, (at[1] + HAND[1]) / 2, 150.0)
        after = self._settled(scene.moved(name, released))
        rested = after.thing(name).position
        fell = apart(rested, at) > 15 or abs(rested[2] - at[2]) > 15
        return replace(after, result=DROPPED if fell else PLACED)

    def _push(self, scene: Scene, skill: Skill) -> Scene:
        start, end = np.array(skill.start), np.array(skill.end)
        steps = max(1, ceil(float(np.linalg.norm(end - start)) / _ADVANCE))
        path = [start + (end - start) * k / steps for k in range(steps + 1)]
        after = self._settled(scene, path)
        return replace(after, result=UNMOVED if after.things == scene.things else PUSHED)

    def _settled(self, scene: Scene, path: list[np.ndarray] | None = None) -> Scene:
        """The scene after a finger went along a path, if any, and all things came to rest."""
        bodies = self._build(scene)
        self._box((1000.0, 1000.0, 50.0), (0.0, 0.0, -50.0), None)
        if path is not None:
            finger = self._box((10.0, 10.0, 15.0), path[0], None)
            for position in path:
                self._call(
                    "resetBasePositionAndOrientation", finger, position * METRES, (0, 0, 0, 1)
                )
                self._call("stepSimulation")
            self._call("removeBody", finger)
        for step in range(_STEPS):
            self._call("stepSimulation")
            if step % _ASK == 0 and all(self._is_still(body) for body in bodies.values()):
                break
        return replace(
            scene,
            things=tuple(
                self._seen(thing, bodies[thing.name]) if thing.name in bodies else thing
                for thing in scene.things
            ),
        )

    def _seen(self, thing: Thing, body: int) -> Thing:
        """The thing where its body is; a thing that has hardly moved is left as it was."""
        position, turn = self._call("getBasePositionAndOrientation", body)
        x, y, z = (round(number / METRES, 1) + 0.0 for number in position)
        moved = max(abs(a - b) for a, b in zip((x, y, z), thing.position, strict=True))
        if moved <= _STAYED:
            return thing
        qx, qy, qz, qw = (round(number, 4) + 0.0 for number in turn)
        return replace(thing, position=(x, y, z), turn=(qx, qy, qz, qw))

    def _is_still(self, body: int) -> bool:
        linear, angular = self._call("getBaseVelocity", body)
        return max(map(abs, (*linear, *angular))) < _STILL

    # ------------------------------------------------------------------------------- the world

    def _call(self, name: str, *arguments: Any, **settings: Any) -> Any:
        return getattr(pybullet, name)(*arguments, **settings, physicsClientId=self.client)

    def _build(self, scene: Scene) -> dict[str, int]:
        """Build the world anew; returns the body of each thing that the hand does not hold."""
        self._call("resetSimulation")
        self._call("setGravity", 0, 0, -9.81)
        for half, middle, color in _cabinet(scene):
            self._box(half, middle, color)
        return {thing.name: self._thing(thing) for thing in scene.lying()}

    def _thing(self, thing: Thing, mass: float = 0.05) -> int:
        color = (*COLORS[thing.color], 1)
        if not thing.is_apple:
            body = self._box((HALF, HALF, HALF), thing.position, color, mass, thing.turn)
        else:
            shape = {"radius": HALF * METRES}
            body = self._call(
                "createMultiBody",
                mass,
                self._call("createCollisionShape", pybullet.GEOM_SPHERE, **shape),
                self._call("createVisualShape", pybullet.GEOM_SPHERE, **shape, rgbaColor=color),
                [number * METRES for number in thing.position],
                thing.turn,
            )
        self._call(
            "changeDynamics", body, -1, lateralFriction=0.6, rollingFriction=0.003,
            spinningFriction=0.003,
        )  # fmt: skip
        return body

    def _box(
        self,
        half: tuple[float, float, float],
        middle: Any,
        color: tuple[float, ...] | None,
        mass: float = 0.0,
        turn: tuple[float, ...] = (0, 0, 0, 1),
    ) -> int:
        """A box; one without a colour is not for pictures."""
        extents = [number * METRES for number in half]
        solid = self._call("createCollisionShape", pybullet.GEOM_BOX, halfExtents=extents)
        seen = -1
        if color is not None:
            seen = self._call(
                "createVisualShape", pybullet.GEOM_BOX, halfExtents=extents, rgbaColor=color
            )
        place = [float(number) * METRES for number in middle]
        return self._call("createMultiBody", mass, solid, seen, place, turn)

    # ------------------------------------------------------------------------------ the picture

    def picture(self, scene: Scene, size: int) -> Image.Image:
        self._build(scene)
        for target in scene.targets:
            half, middle, color = _mark(target)
            self._box(half, middle, color)
        if scene.held is not None:
            self._thing(scene.thing(scene.held))
        colors, depths = _photograph(self.client, size)
        behind, far = _backdrop(size)
        nearer = (depths < far)[..., None]
        return Image.fromarray(np.where(nearer, colors, behind))


def _cabinet(scene: Scene) -> Iterator[tuple[tuple[float, float, float], Position, tuple]]:
    """Half the sides, the middle and the colour of each board of the cabinet and its drawer."""
    if scene.drawer is None:
        return
    deep, wide = DEPTH / 2, WIDTH / 2
    middle = FRONT + deep + 10
    yield (deep, wide + 10, 5), (middle, SIDE, TOP - 5), _WOOD
    yield (5, wide + 10, TOP / 2), (middle + deep, SIDE, TOP / 2), _WOOD
    for side in (-1, 1):
        yield (deep, 5, TOP / 2), (middle, SIDE + side * (wide + 5), TOP / 2), _WOOD
    left = FRONT - scene.drawer
    yield (deep, wide, 3), (left + deep, SIDE, 6), _TRAY
    yield (3, wide, 35), (left, SIDE, 40), _TRAY
    yield (3, wide, 30), (left + DEPTH - 3, SIDE, 35), _TRAY
    for side in (-1, 1):
        yield (deep, 3, 30), (left + deep, SIDE + side * (wide - 3), 35), _TRAY
    yield (6, 20, 6), (left - 12, SIDE, 45), (0.2, 0.2, 0.2, 1)


def _mark(target: Target) -> tuple[tuple[float, float, float], Position, tuple[float, ...]]:
    """The flat box that shows a target."""
    pale = tuple(0.5 + 0.5 * number for number in COLORS[target.color])
    if target.y is None:
        return (8, 250, 1), (target.x, 0.0, 1.0), (*pale, 1)
    return (30, 30, 1), (target.x, target.y, 1.0), (*pale, 1)


def _photograph(client: int, size: int) -> Pixels:
    view = pybullet.computeViewMatrix(_CAMERA, _FOCUS, (0, 0, 1))
    lens = pybullet.computeProjectionMatrixFOV(_ANGLE, 1.0, 0.1, 3.0)
    _, _, colors, depths, _ = pybullet.getCameraImage(
        size, size, view, lens, shadow=0, lightDirection=(1, 0.6, 2),
        renderer=pybullet.ER_TINY_RENDERER, physicsClientId=client,
    )  # fmt: skip
    colors = np.asarray(colors, np.uint8).reshape(size, size, 4)[..., :3]
    return colors, np.asarray(depths).reshape(size, size)


@lru_cache(maxsize=4)
def _backdrop(size: int) -> Pixels:
    """The table and the resting arm, as the camera sees them; taken once in a process."""
    client = pybullet.connect(pybullet.DIRECT)
    try:
        panda = pybullet.loadURDF(
            os.path.join(pybullet_data.getDataPath(), "franka_panda", "panda.urdf"),
            basePosition=(-0.615, 0, 0),
            useFixedBase=True,
            physicsClientId=client,
        )
        for joint, angle in enumerate(_ARM):
            pybullet.resetJointState(panda, joint, angle, physicsClientId=client)
        top = pybullet.createVisualShape(
            pybullet.GEOM_BOX, halfExtents=(0.8, 0.6, 0.05), rgbaColor=_TABLE,
            physicsClientId=client,
        )  # fmt: skip
        pybullet.createMultiBody(0, -1, top, (-0.35, 0, -0.05), physicsClientId=client)
        colors, depths = _photograph(client, size)
    finally:
        pybullet.disconnect(physicsClientId=client)
    colors = np.where((depths >= 1)[..., None], np.array(_SKY, np.uint8), colors)
    for array in (colors, depths):
        array.setflags(write=False)
    return colors, depths
