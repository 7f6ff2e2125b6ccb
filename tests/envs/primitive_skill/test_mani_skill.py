"""The ManiSkill backend against a stand-in: cubes stick to a hand that moves at once."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vagentrl.errors import ConfigError
from vagentrl.types import Reply
from vagentrl_envs.primitive_skill import PrimitiveSkill
from vagentrl_envs.primitive_skill.mani_skill import ManiSkill


class Cube:
    """An actor with a pose."""

    def __init__(self) -> None:
        self.pose = SimpleNamespace(p=np.zeros((1, 3)), q=np.array([[1.0, 0, 0, 0]]))

    def set_pose(self, pose: Any) -> None:
        self.pose = pose


class Table:
    """Stands for ManiSkill's environment: cubes fall straight down and stand on one another."""

    def __init__(self) -> None:
        self.cubeA, self.cubeB = Cube(), Cube()
        self.unwrapped, self.closed = self, False
        self.held: Cube | None = None

    def reset(self, seed: int) -> None:
        self.held = None

    def step(self, action: np.ndarray) -> None:
        hand = np.add(action[:3], [-0.615, 0, 0])
        cubes = [self.cubeA, self.cubeB]
        if action[6] > 0:
            self.held = None
        elif self.held is None:
            near = [cube for cube in cubes if np.abs(cube.pose.p[0] - hand).max() < 0.015]
            self.held = near[0] if near else None
        for cube in sorted(cubes, key=lambda cube: cube.pose.p[0][2]):
            if cube is self.held:
                cube.pose = SimpleNamespace(p=hand[None], q=cube.pose.q)
            else:
                self.drop(cube, [other for other in cubes if other is not cube])

    def drop(self, cube: Cube, others: list[Cube]) -> None:
        x, y, z = cube.pose.p[0]
        below = [o for o in others if np.abs(o.pose.p[0][:2] - [x, y]).max() < 0.04]
        rest = max([0.02, *(o.pose.p[0][2] + 0.04 for o in below if o.pose.p[0][2] < z)])
        cube.pose = SimpleNamespace(p=np.array([[x, y, rest]]), q=cube.pose.q)

    def render(self) -> np.ndarray:
        return np.full((1, 8, 8, 3), 100, np.uint8)

    def close(self) -> None:
        self.closed = True


class OnTable(ManiSkill):
    """The backend with a stand-in behind it."""

    def _connect(self) -> Any:
        return Table()

    def _pose(self, position: Any, turn: Any) -> Any:
        metres = np.array([position]) / 1000
        return SimpleNamespace(p=metres, q=np.array([[turn[3], *turn[:3]]]))


def make(**settings: Any) -> PrimitiveSkill:
    return PrimitiveSkill("stack", backend=OnTable(steps=2), size=32, **settings)


def test_the_oracles_plan_stacks_the_cubes():
    env = make()
    for seed in range(3):
        env.reset(seed)
        results = [env.step(Reply("", actions=(skill,))) for skill in env.oracle() or ()]
        result = results[-1]
        assert result.terminated and env.scene.result == "placed"
        assert result.observation.images[0].size == (32, 32)


def test_what_slips_stays_on_the_table():
    env = make(slip=0.999)
    env.reset(0)
    env.step(Reply("", actions=(env.oracle() or ())[:1]))
    assert env.scene.result == "slipped" and env.scene.held is None


def test_only_what_it_has_is_asked_of_it():
    too_much: tuple[dict[str, Any], ...] = ({"task": "drawer"}, {"task": "stack", "cubes": 3})
    for settings in too_much:
        with pytest.raises(ConfigError, match="ManiSkill has no"):
            PrimitiveSkill(**settings, backend=ManiSkill())
    with pytest.raises(ConfigError, match="steps"):
        ManiSkill(steps=0)


def test_a_copy_has_a_simulator_of_its_own_and_close_closes_it():
    env = make()
    env.reset(0)
    assert isinstance(env.backend, ManiSkill)
    table = env.backend._env
    assert copy.deepcopy(env).backend._env is None  # pyright: ignore
    env.close()
    env.close()
    assert table.closed


def test_without_the_library_it_says_what_to_install():
    with pytest.raises(ConfigError, match="mani-skill"):
        ManiSkill()._connect()
