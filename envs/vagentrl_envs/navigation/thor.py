"""Navigation in AI2-THOR (Kolve et al. 2017). Not verified: nobody has run it with AI2-THOR itself.

The tests play it with a stand-in that answers as the documented API of ai2thor 5 does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

from vagentrl.environment import Split, index_of, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import harmless
from vagentrl_envs.navigation.environment import FirstPerson
from vagentrl_envs.navigation.poses import ACTIONS
from vagentrl_envs.navigation.view import Sighting, View
from vagentrl_envs.navigation.world import World

_NAMES = {
    "moveahead": "MoveAhead",
    "moveback": "MoveBack",
    "moveleft": "MoveLeft",
    "moveright": "MoveRight",
    "rotateleft": "RotateLeft",
    "rotateright": "RotateRight",
}
"""AI2-THOR's names of the actions."""


class Event(Protocol):
    """AI2-THOR's answer to an action: the picture and what is known of the scene."""

    frame: Any
    metadata: Mapping[str, Any]


class Controller(Protocol):
    """The part of ``ai2thor.controller.Controller`` that is used here."""

    def reset(self, scene: str) -> Event: ...

    def step(self, action: str, **arguments: Any) -> Event: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class ThorTask:
    """A task of VAGEN's and EmbodiedBench's files: a scene, a start and a target.

    Attributes:
        scene: AI2-THOR's name of the scene.
        target: Type of the object that is looked for, such as ``Laptop``.
        target_x, target_z: Where it is, in metres.
        start: The agent's ``position``, ``rotation`` and ``horizon``, in AI2-THOR's words.
    """

    scene: str
    target: str
    target_x: float
    target_z: float
    start: Mapping[str, Any]

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> ThorTask:
        """A task as a file has it.

        Raises:
            KeyError: When a field is missing.
            TypeError: When a field is of the wrong type.
            ValueError: When a number is none.
        """
        pose, target = written["agentPose"], written["target_position"]
        start = {
            "position": {axis: float(pose["position"][axis]) for axis in "xyz"},
            "rotation": {"x": 0.0, "y": float(pose["rotation"]), "z": 0.0},
            "horizon": float(pose["horizon"]),
            "standing": True,
        }
        name = harmless(str(written["targetObjectType"]))
        return cls(str(written["scene"]), name, float(target["x"]), float(target["z"]), start)

    def fingerprint(self) -> str:
        """The whole task as text."""
        return f"{self.scene} {self.target} {self.target_x} {self.target_z} {dict(self.start)}"


class ThorWorld(World):
    """Scenes of AI2-THOR, played through its controller.

    Args:
        tasks: The tasks of each split.
        controller: AI2-THOR's controller, or what stands in for it.
        step: Metres of a move.
        turn_angle: Degrees of a turn.
        success_distance: Metres from which the target counts as reached.
        must_see: Whether it must be in sight too.
    """

    def __init__(
        self,
        tasks: Mapping[Split, Sequence[ThorTask]],
        controller: Controller,
        step: float,
        turn_angle: float,
        success_distance: float,
        must_see: bool,
    ) -> None:
        self._tasks, self._controller = tasks, controller
        self._step, self._turn_angle = step, turn_angle
        self._success_distance, self._must_see = success_distance, must_see
        self._task: ThorTask
        self._event: Event

    def _task_of(self, seed: int) -> ThorTask:
        tasks = self._tasks[split_of(seed)]
        return tasks[index_of(seed) % len(tasks)]

    @property
    def target(self) -> str:
        return self._task.target

    def start(self, seed: int) -> None:
        self._task = self._task_of(seed)
        self._controller.reset(scene=self._task.scene)
        self._event = self._controller.step("Teleport", **self._task.start)
        if not self._event.metadata["lastActionSuccess"]:
            reason = str(self._event.metadata.get("errorMessage", ""))[:200]
            raise EnvError(
                f"AI2-THOR cannot place the agent at the start of a task in {self._task.scene} "
                f"({reason}); correct agentPose"
            )

    def act(self, action: str) -> bool:
        if action.startswith("move"):
            self._event = self._controller.step(_NAMES[action], moveMagnitude=self._step)
        else:
            self._event = self._controller.step(_NAMES[action], degrees=self._turn_angle)
        return bool(self._event.metadata["lastActionSuccess"])

    def view(self) -> View:
        target = self._sighting(self._task.target, self._task.target_x, self._task.target_z)
        seen = [thing for thing in self._event.metadata["objects"] if thing["visible"]]
        others = [
            self._sighting(str(thing["objectType"]), thing["position"]["x"], thing["position"]["z"])
            for thing in seen
            if thing["objectType"] != self._task.target
        ]
        others.sort(key=lambda thing: (thing.distance, thing.name, thing.ahead))
        in_sight = len(others) < len(seen)
        return View(target, in_sight, tuple(others))

    def _sighting(self, name: str, x: float, z: float) -> Sighting:
        agent = self._event.metadata["agent"]
        east, north = x - agent["position"]["x"], z - agent["position"]["z"]
        return Sighting.of(name, east, north, agent["rotation"]["y"])

    def arrived(self) -> bool:
        view = self.view()
        near = view.target.distance <= self._success_distance
        return near and (view.in_sight or not self._must_see)

    def picture(self) -> Image.Image:
        return Image.fromarray(self._event.frame)

    def fingerprint(self) -> str:
        return self._task.fingerprint()

    def fingerprint_of(self, seed: int) -> str:
        """The start of a seed, without loading its scene."""
        return self._task_of(seed).fingerprint()

    def close(self) -> None:
        self._controller.stop()


class ThorNavigation(FirstPerson):
    """Find an object in the scenes of AI2-THOR. **Not verified**: nobody has run it with AI2-THOR.

    It needs ``pip install ai2thor``, which downloads its player (some hundred MB), and
    ``data.workers: process``. No shortest path is known, so there is no oracle. The settings are
    those of VAGEN's environment, which does not ask the agent to see the object.

    Args:
        tasks: A JSON file in the form of VAGEN's ``datasets/base.json``: ``{"tasks": [{"scene",
            "targetObjectType", "target_position", "agentPose"}]}``. The tasks are dealt to the
            splits by a hash.
        step: Metres of a move.
        turn_angle: Degrees of a turn.
        success_distance: Metres from which the object counts as reached.
        must_see: Whether it must be in sight too.
        size: Pixels on a side of the image.
        fov: Degrees from the left to the right edge of the image.
        observation: What the agent sees: an ``image``, the same in words as ``text``, or ``both``.
        controller: What stands in for AI2-THOR's controller, in Python; None for the real one.
        **settings: The settings of `FirstPerson` and ``ActionEnvironment``.
    """

    def __init__(
        self,
        tasks: str,
        step: float = 0.5,
        turn_angle: float = 90.0,
        success_distance: float = 1.5,
        must_see: bool = False,
        size: int = 224,
        fov: float = 100.0,
        observation: Literal["image", "text", "both"] = "image",
        controller: Controller | None = None,
        turn_limit: int = 20,
        **settings: Any,
    ) -> None:
        dealt = _deal(tasks)
        if controller is None:
            controller = _controller(size, fov)
        self.world: ThorWorld
        super().__init__(
            ThorWorld(dealt, controller, step, turn_angle, success_distance, must_see),
            ACTIONS,
            observation,
            step,
            turn_angle,
            success_distance,
            must_see,
            turn_limit=turn_limit,
            **settings,
        )

    def initial_state(self, seed: int) -> str:
        return self.world.fingerprint_of(seed)


def _deal(path: str) -> dict[Split, list[ThorTask]]:
    """The tasks of a file, by split."""
    try:
        written = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        tasks = [ThorTask.read(task) for task in written["tasks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"tasks is {path!r}, which cannot be read ({type(error).__name__}: {error}); give a "
            'JSON file {"tasks": [{"scene", "targetObjectType", "target_position", "agentPose"}]}'
        ) from error
    dealt: dict[Split, list[ThorTask]] = {"train": [], "validation": [], "test": []}
    for task in dict.fromkeys(task.fingerprint() for task in tasks):
        dealt[split_of_state(task)].append(next(t for t in tasks if t.fingerprint() == task))
    if missing := [split for split, found in dealt.items() if not found]:
        raise ConfigError(
            f"tasks is {path!r}, whose {len(tasks)} tasks leave none for {', '.join(missing)}; "
            "give more tasks: a tenth each is for validation and test"
        )
    return dealt


def _controller(size: int, fov: float) -> Controller:
    try:
        from ai2thor.controller import (  # pyright: ignore[reportMissingImports]
            Controller as RealController,
        )
        from ai2thor.platform import CloudRendering  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"ThorNavigation needs ai2thor ({error}); pip install ai2thor") from error
    return RealController(
        agentMode="default",
        gridSize=0.1,
        visibilityDistance=10,
        width=size,
        height=size,
        fieldOfView=fov,
        platform=CloudRendering,
    )
