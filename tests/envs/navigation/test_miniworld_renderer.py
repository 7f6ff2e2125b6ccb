"""MiniWorld draws the same houses: what is red in one picture is red in the other."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.envs.navigation.rooms import room, two_rooms
from tests.envs.navigation.test_raycaster import is_red
from vagentrl.errors import ConfigError, EnvError
from vagentrl.types import Reply
from vagentrl_envs.navigation import Navigation
from vagentrl_envs.navigation.house import House
from vagentrl_envs.navigation.miniworld_renderer import MiniWorldRenderer
from vagentrl_envs.navigation.raycaster import Raycaster

try:
    MiniWorldRenderer(16, 16, 90)
except ConfigError as error:  # neither the library nor EGL is part of every machine
    pytest.skip(str(error), allow_module_level=True)


def drawn(renderer: Raycaster | MiniWorldRenderer, house: House, pose: tuple[float, ...]):
    return np.asarray(renderer.picture(house, *pose)).astype(int)


POSES = [(2.0, 0.75, 0.0), (0.75, 2.25, 90.0), (3.25, 3.25, 225.0), (1.25, 1.25, 45.0)]


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("size", [(96, 96), (128, 64)])
def test_both_renderers_put_a_thing_in_the_same_place(
    pose: tuple[float, float, float], size: tuple[int, int]
):
    house = room(("ball", 2.25, 2.25))
    ours, theirs = Raycaster(*size, 90), MiniWorldRenderer(*size, 90)
    one, other = is_red(drawn(ours, house, pose)), is_red(drawn(theirs, house, pose))
    assert one.sum() > 20
    assert (one & other).sum() > 0.8 * (one | other).sum()


def test_both_renderers_hide_what_is_behind_a_wall():
    house = two_rooms(("ball", 6.25, 1.5))
    renderer = MiniWorldRenderer(96, 96, 90)
    assert is_red(drawn(renderer, house, (2.0, 1.5, 90))).any()  # through the doorway
    assert not is_red(drawn(renderer, house, (2.0, 3.25, 90))).any()


def test_houses_and_sizes_can_be_drawn_in_turn():
    small, large = MiniWorldRenderer(64, 64, 90), MiniWorldRenderer(96, 96, 90)
    first, second = room(("ball", 2.25, 2.25)), room(("lamp", 2.25, 2.25))
    pose = (2.0, 0.75, 0.0)
    before = drawn(small, first, pose)
    assert (drawn(small, second, pose) != before).any()
    assert is_red(drawn(large, first, pose)).any()
    assert (drawn(small, first, pose) == before).all()


def test_an_episode_can_be_played():
    env = Navigation(renderer="miniworld", size=64)
    env.reset(0)
    for action in env.oracle() or ():
        result = env.step(Reply("", actions=(action,)))
        assert result.observation.images[0].size == (64, 64)
    assert env.oracle() == ()


def test_a_second_thread_is_refused_with_the_way_out():
    drawn(MiniWorldRenderer(64, 64, 90), room(("ball", 2.25, 2.25)), (2.0, 0.75, 0.0))
    refused: list[str] = []

    def draw() -> None:
        try:
            drawn(MiniWorldRenderer(64, 64, 90), room(("ball", 2.25, 2.25)), (2.0, 0.75, 0.0))
        except EnvError as error:
            refused.append(str(error))

    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    assert "data.workers to process" in refused[0]


def test_triton_can_be_loaded_after_software_opengl():
    pytest.importorskip("triton")
    program = (
        "from vagentrl_envs.navigation.miniworld_renderer import MiniWorldRenderer;"
        "MiniWorldRenderer(16, 16, 90); import triton; print('loaded')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "loaded\n", done.stderr
