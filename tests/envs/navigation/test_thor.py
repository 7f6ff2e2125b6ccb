"""`ThorNavigation` with a stand-in for AI2-THOR's controller, after its documented API."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import Reply, StepResult
from vagentrl_envs.navigation.thor import ThorNavigation

LAPTOP = (2.0, 4.0)
"""Where it is: x and z in metres; z grows to the north, and angles clockwise from there."""


class FakeController:
    """A room of 5 × 5 m without furniture, with a laptop and a sofa."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.x = self.z = self.angle = 0.0
        self.stopped = False

    def reset(self, scene: str) -> Any:
        self.calls.append((scene, {}))
        return self._event(True)

    def step(self, action: str, **arguments: Any) -> Any:
        self.calls.append((action, arguments))
        if action == "Teleport":
            position = arguments["position"]
            self.angle = arguments["rotation"]["y"]
            return self._event(self._go(position["x"], position["z"]))
        if action.startswith("Rotate"):
            sign = 1 if action == "RotateRight" else -1
            self.angle = (self.angle + sign * arguments["degrees"]) % 360
            return self._event(True)
        turned = {"MoveAhead": 0, "MoveRight": 90, "MoveBack": 180, "MoveLeft": 270}[action]
        way, far = math.radians(self.angle + turned), arguments["moveMagnitude"]
        return self._event(self._go(self.x + far * math.sin(way), self.z + far * math.cos(way)))

    def stop(self) -> None:
        self.stopped = True

    def _go(self, x: float, z: float) -> bool:
        if not (0 <= x <= 5 and 0 <= z <= 5):
            return False
        self.x, self.z = x, z
        return True

    def _event(self, success: bool) -> Any:
        objects = [self._object("Laptop", *LAPTOP), self._object("Sofa", 4.0, 3.0)]
        metadata = {
            "lastActionSuccess": success,
            "errorMessage": "" if success else "blocked",
            "agent": {
                "position": {"x": self.x, "y": 0.9, "z": self.z},
                "rotation": {"x": 0.0, "y": self.angle, "z": 0.0},
            },
            "objects": objects,
        }
        frame = np.full((64, 64, 3), int(self.x * 10 + self.z + self.angle / 10), np.uint8)
        return SimpleNamespace(frame=frame, metadata=metadata)

    def _object(self, name: str, x: float, z: float) -> dict[str, Any]:
        way = math.degrees(math.atan2(x - self.x, z - self.z)) - self.angle
        visible = abs((way + 180) % 360 - 180) <= 50
        return {
            "objectType": name,
            "position": {"x": x, "y": 0.5, "z": z},
            "visible": visible,
            "objectId": f"{name}|{x}|{z}",
        }


def written_tasks(tmp_path: Path, count: int = 60, x: float = 2.0) -> str:
    tasks = [
        {
            "scene": f"FloorPlan{number}",
            "targetObjectType": "Laptop",
            "target_position": {"x": LAPTOP[0], "y": 0.5, "z": LAPTOP[1]},
            "agentPose": {"position": {"x": x, "y": 0.9, "z": 1.0}, "rotation": 0, "horizon": 0},
            "instruction": "navigate to the laptop",
        }
        for number in range(count)
    ]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps({"tasks": tasks}))
    return str(path)


def made(tmp_path: Path, **settings: Any) -> tuple[ThorNavigation, FakeController]:
    controller = FakeController()
    return ThorNavigation(written_tasks(tmp_path), controller=controller, **settings), controller


def play(env: ThorNavigation, action: str) -> StepResult:
    return env.step(Reply("", actions=(action,)))


def test_the_agent_is_put_at_the_start_of_its_task(tmp_path: Path):
    env, controller = made(tmp_path)
    observation = env.reset(0)
    assert observation.text == "<image>\nFind the Laptop."
    assert [name for name, _ in controller.calls][-1] == "Teleport"
    assert (controller.x, controller.z) == (2.0, 1.0)
    # The laptop is 3 m ahead; the sofa 2 m ahead and 2 m to the right.
    assert env.state().structured == '{"Laptop":[3.0,0.0],"Sofa":[[2.0,2.0]]}'
    assert env.state().natural == "the Laptop is 3.0 m ahead; a Sofa is 2.8 m ahead-right"


def test_actions_have_the_library_s_names_and_the_episode_ends_near_the_object(tmp_path: Path):
    env, controller = made(tmp_path)
    env.reset(0)
    results = [play(env, "moveahead") for _ in range(3)]
    assert controller.calls[-1] == ("MoveAhead", {"moveMagnitude": 0.5})
    assert [result.terminated for result in results] == [False, False, True]  # at 1.5 m
    assert results[-1].metrics["success"] == 1
    assert env.oracle() == ()


def test_a_wall_is_told(tmp_path: Path):
    env, controller = made(tmp_path)
    env.reset(0)
    results = [play(env, "moveback") for _ in range(3)]
    assert "in the way" not in results[1].observation.text
    assert "Something was in the way." in results[2].observation.text
    assert controller.z == 0


def test_the_object_must_be_seen_if_that_is_asked_for(tmp_path: Path):
    env, controller = made(tmp_path, must_see=True, turn_limit=9)
    env.reset(0)
    for action in ("rotateleft", "moveright", "moveright"):
        play(env, action)
    assert controller.calls[1 + 1] == ("RotateLeft", {"degrees": 90.0})
    assert not play(env, "moveright").terminated  # near, but it looks to the west
    assert play(env, "rotateright").terminated


def test_the_splits_have_different_tasks(tmp_path: Path):
    env, controller = made(tmp_path)
    found = {
        split: {env.initial_state(seed_of(split, index)) for index in range(60)}
        for split in ("train", "validation", "test")
    }
    assert controller.calls == []  # no scene is loaded to tell them apart
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 60


def test_a_start_that_is_impossible_fails_the_episode(tmp_path: Path):
    env = ThorNavigation(written_tasks(tmp_path, x=9.0), controller=FakeController())
    with pytest.raises(EnvError, match=r"cannot place the agent .* \(blocked\)"):
        env.reset(0)


def test_close_stops_the_player(tmp_path: Path):
    env, controller = made(tmp_path)
    env.close()
    assert controller.stopped


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": [{"scene": "FloorPlan1"}]}', '{"tasks": 1}'])
def test_files_that_are_no_tasks_are_refused(tmp_path: Path, text: str):
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        ThorNavigation(str(path), controller=FakeController())


def test_a_file_with_too_few_tasks_for_the_splits_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="leave none for"):
        ThorNavigation(written_tasks(tmp_path, count=1), controller=FakeController())


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path):
    with pytest.raises(ConfigError, match="pip install ai2thor"):
        ThorNavigation(written_tasks(tmp_path))
