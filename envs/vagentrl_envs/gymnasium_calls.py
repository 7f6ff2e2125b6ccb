"""Calls of Gymnasium whose mistakes are explained: make, reset, step and render."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from vagentrl.errors import ConfigError, EnvError, seen

if TYPE_CHECKING:
    import gymnasium

    Game = gymnasium.Env[Any, Any]

API = (
    "wanted Gymnasium's API: reset(seed=..., options=...) returns (observation, info), and "
    "step(action) returns (observation, reward, terminated, truncated, info); a wrapper of the "
    "environment can translate an older one"
)


class Step(NamedTuple):
    """What a step of the library returns."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def make(id: str, images: bool, kwargs: Mapping[str, Any]) -> Game:
    """Make the environment.

    Raises:
        ConfigError: When it cannot be made, or when `kwargs` and `images` do not fit.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            f"GymnasiumEnvironment needs gymnasium ({error}); pip install vagentrl[gymnasium]"
        ) from error
    # The library's checker warns on every start, in words that nobody trains by.
    settings = {"disable_env_checker": True, **kwargs}
    if images and settings.setdefault("render_mode", "rgb_array") != "rgb_array":
        raise ConfigError(
            f"kwargs sets render_mode to {kwargs['render_mode']!r}, but images: true needs "
            "rgb_array, which it sets itself; leave render_mode out of kwargs"
        )
    try:
        return gymnasium.make(id, **settings)
    except Exception as error:  # the environment's constructor may raise anything
        raise ConfigError(
            f"gymnasium.make({id!r}, {dict(kwargs)}) fails: {type(error).__name__}: {error}; check "
            "id and kwargs (gymnasium.pprint_registry() lists the ids)"
        ) from error


def reset(game: Game, seed: int) -> tuple[Any, dict[str, Any]]:
    """Start an episode; returns the observation and the info beside it."""
    with _explained(game):
        answer: Any = game.reset(seed=seed)
    match answer:
        case (observation, dict() as info):
            return observation, info
    raise EnvError(f"{game}.reset returned {seen(answer)}; {API}")


def step(game: Game, action: Any) -> Step:
    """Play an action."""
    with _explained(game):
        observation, reward, terminated, truncated, info = game.step(action)
    try:
        reward = float(reward)
    except (TypeError, ValueError) as error:
        raise EnvError(
            f"{game}.step returned the reward {seen(reward)}, which is no number; {API}"
        ) from error
    if not isinstance(info, dict):
        raise EnvError(f"{game}.step returned the info {seen(info)}, which is no dictionary; {API}")
    return Step(observation, reward, bool(terminated), bool(truncated), info)


def render(game: Game) -> Image.Image:
    """The picture of the current state."""
    pixels: Any = game.render()
    is_picture = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3
    if not is_picture or pixels.shape[2] not in (1, 3, 4):
        raise EnvError(
            f"{game}.render() returned {seen(pixels)}; wanted uint8 pixels (height, width, 3), or "
            "with 1 channel for gray or 4 with transparency"
        )
    gray = pixels.shape[2] == 1
    return Image.fromarray(pixels[:, :, 0] if gray else pixels).convert("RGB")


@contextmanager
def _explained(game: Game) -> Iterator[None]:
    """Explain the errors by which an environment of an older API shows itself.

    Gymnasium's own wrappers unpack the answers, so that they raise before anybody can look.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(sign in str(error) for sign in ("unpack", "unexpected keyword argument")):
            raise
        raise EnvError(f"{game} fails: {error}; {API}") from error
