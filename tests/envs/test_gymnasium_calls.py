from typing import Any

import gymnasium
import numpy as np
import pytest

from vagentrl.errors import ConfigError, EnvError
from vagentrl_envs import gymnasium_calls as calls


class Answering(gymnasium.Env):
    """It returns what it is given, or raises it when it is made."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's way)
    action_space = gymnasium.spaces.Discrete(1)
    observation_space = gymnasium.spaces.Discrete(1)

    def __init__(
        self,
        start: Any = (0, {}),
        answer: Any = (0, 1, False, True, {}),
        pixels: Any = None,
        error: Exception | None = None,
        render_mode: str | None = None,
    ) -> None:
        if error is not None:
            raise error
        self.start = start
        self.answer = answer
        self.pixels = pixels
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.start

    def step(self, action: Any) -> Any:
        return self.answer

    def render(self) -> Any:
        return self.pixels


class Seedless(Answering):
    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 0


gymnasium.register("Answering-v0", f"{__name__}:Answering", max_episode_steps=9)
gymnasium.register("Seedless-v0", f"{__name__}:Seedless")


def made(images: bool = False, **kwargs: Any) -> gymnasium.Env:
    return calls.make(f"{__name__}:Answering-v0", images, kwargs)


def test_answers_by_the_rules_are_passed_on():
    game = made()
    assert calls.reset(game, seed=0) == (0, {})
    assert calls.step(game, 0) == calls.Step(0, 1.0, False, True, {})


@pytest.mark.parametrize("start", [0, np.zeros(2), (4, 7)])  # the last two unpack into two
def test_a_reset_without_info_is_explained(start: Any):
    with pytest.raises(EnvError, match=r"reset returned .*; wanted Gymnasium's API"):
        calls.reset(made(start=start), seed=0)


def test_a_reset_that_takes_no_seed_is_explained():
    game = calls.make(f"{__name__}:Seedless-v0", False, {})
    with pytest.raises(EnvError, match=r"keyword argument 'seed'; wanted Gymnasium's API"):
        calls.reset(game, seed=0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((0, 0.0, False, {}), "expected 5, got 4"),
        (None, "unpack .*NoneType"),
        ((0, None, False, False, {}), "the reward None, which is no number"),
        ((0, 0.0, False, False, None), "the info None, which is no dictionary"),
    ],
)
def test_a_step_of_another_api_is_explained(answer: Any, message: str):
    game = made(answer=answer)
    calls.reset(game, seed=0)
    with pytest.raises(EnvError, match=f"{message}.*; wanted Gymnasium's API"):
        calls.step(game, 0)


@pytest.mark.parametrize(
    "error", [AssertionError("no"), RuntimeError("no"), FileNotFoundError("no")]
)
def test_what_the_constructor_raises_names_id_and_kwargs(error: Exception):
    name = type(error).__name__
    with pytest.raises(ConfigError, match=rf"Answering-v0.*'error': .* fails: {name}: no; check"):
        made(error=error)


def test_gray_pixels_become_a_picture_in_colour():
    game = made(images=True, pixels=np.full((24, 32, 1), 200, dtype=np.uint8))
    calls.reset(game, seed=0)
    picture = calls.render(game)
    assert (picture.size, picture.mode, picture.getpixel((0, 0))) == (
        (32, 24),
        "RGB",
        (200, 200, 200),
    )


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((3, 24, 32), dtype=np.uint8),
        np.zeros((24, 32), dtype=np.uint8),
        np.zeros((24, 32, 2), dtype=np.uint8),
        np.zeros((24, 32, 3)),
        None,
    ],
)
def test_other_pixels_are_refused(pixels: Any):
    game = made(images=True, pixels=pixels)
    calls.reset(game, seed=0)
    with pytest.raises(EnvError, match=r"render\(\) returned .*; wanted uint8 pixels \(height, wi"):
        calls.render(game)


def test_images_set_the_render_mode_and_may_be_told_it():
    assert made(images=True).render_mode == "rgb_array"
    assert made(images=True, render_mode="rgb_array").render_mode == "rgb_array"
    with pytest.raises(ConfigError, match=r"render_mode to 'human', but images: true .* leave"):
        made(images=True, render_mode="human")
