"""Any Gymnasium environment whose actions can be named, told in words, in pictures, or in both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError, seen
from vagentrl.types import IMAGE_PLACEHOLDER, Observation

if TYPE_CHECKING:
    import gymnasium

Captioner = Callable[[Any, dict[str, Any]], str]
"""Tells an observation, with the `info` beside it, in words."""

DRAWS = 1000
"""Starts that are drawn for a seed until one belongs to the seed's split."""


class GymnasiumEnvironment(ActionEnvironment):
    """Any Gymnasium environment with named actions.

    The agent sees what `captioner` makes of the library's observation, the picture that `render()`
    draws, or both. The seed decides the start and the transition seed what is drawn later, as far
    as the environment draws from Gymnasium's own generator (`np_random`). Starts are drawn until
    one belongs to the seed's split, so training, validation and test share none. The library's
    time limit truncates an episode; it never terminates it.

    Args:
        id: The environment's id, such as ``Taxi-v4``; ``module:Id`` imports the module first.
        actions: Names of the actions: a list in the order of a ``Discrete`` space, or for a space
            of another kind each name with its action, such as ``{left: [-1.0], right: [1.0]}``.
        task: What the agent is to do, for the system prompt.
        captioner: Dotted path of a function that tells an observation and its ``info`` in words.
            Not needed where the library's observations are text.
        images: Whether the agent sees ``render()``'s picture.
        image_size: Width and height of the picture in pixels; None leaves it as it is.
        kwargs: Arguments of ``gymnasium.make``, such as ``map_name`` or ``max_episode_steps``.
        success_return: Sum of the library's rewards from which an ended episode is a success; None
            asks ``info`` for ``success`` or ``is_success``, and where it says nothing takes a
            terminated episode for a success if its last reward is positive.
        share_starts: Let the splits share their starts. An environment with one start needs it.
        turn_limit: Turns after which an episode is truncated, beside the library's own limit.
        **settings: The settings of ``ActionEnvironment``, such as ``aliases``.
    """

    def __init__(
        self,
        id: str,
        actions: list[str] | dict[str, Any],
        task: str,
        captioner: Captioner | None = None,
        images: bool = False,
        image_size: tuple[int, int] | None = None,
        kwargs: dict[str, Any] | None = None,
        success_return: float | None = None,
        share_starts: bool = False,
        turn_limit: int = 200,
        **settings: Any,
    ) -> None:
        super().__init__(action_names=list(actions), turn_limit=turn_limit, **settings)
        if not task.strip():
            raise ConfigError("task is empty; say what the agent is to do")
        self.task = task
        self.images = images
        self.image_size = image_size
        self.success_return = success_return
        self.share_starts = share_starts
        self._captioner = captioner
        self._game = _make(id, images, kwargs or {})
        self._values = _values(self._game.action_space, actions)
        self._check_observations()
        self._seen: Any = None
        self._info: dict[str, Any] = {}
        self._return = 0.0

    def _check_observations(self) -> None:
        """Raise unless the agent has something to see."""
        from gymnasium.spaces import Text

        if self._captioner is None and not self.images:
            space = self._game.observation_space
            if not isinstance(space, Text):
                raise ConfigError(
                    f"the observations are {space}, which nothing tells in words; give a "
                    "captioner, the dotted path of a function (observation, info) -> str, or "
                    "images: true"
                )
            self._captioner = _as_it_is
        modes = self._game.metadata.get("render_modes", ())
        if self.images and "rgb_array" not in modes:
            raise ConfigError(
                f"images is true, but {self._game} renders only {', '.join(modes) or 'nothing'}; "
                "give a captioner"
            )

    # -------------------------------------------------------------------------------- the episode

    def _start(self, seed: int, transition_seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(DRAWS):
            self._seen, self._info = self._game.reset(seed=int(rng.integers(2**31)))
            if self.share_starts or split_of_state(self._start_state()) == split_of(seed):
                break
        else:
            raise EnvError(
                f"{DRAWS} draws gave no start of the {split_of(seed)} split (seed {seed}): the "
                "environment has too few starts to keep the splits apart; share_starts: true "
                "trains and evaluates on the same ones"
            )
        # Trailing zeros do not change a seed, so the 1 separates this stream from the starts'.
        self._game.unwrapped.np_random = np.random.default_rng((seed, transition_seed, 1))
        self._return = 0.0

    def _start_state(self) -> str:
        """The start as text that tells different starts apart: a hash of the observation."""
        digest = hashlib.blake2b(digest_size=16)
        for part in _parts(self._seen):
            digest.update(part)
        return digest.hexdigest()

    def initial_state(self, seed: int) -> str:
        self._start(seed, 0)
        return self._start_state()

    def _act(self, action: str) -> Outcome:
        before = list(_parts(self._seen))
        self._seen, reward, terminated, truncated, self._info = self._game.step(
            self._values[action]
        )
        reward = float(reward)
        self._return += reward
        return Outcome(
            reward,
            done=bool(terminated),
            success=(terminated or truncated) and self._succeeded(reward, bool(terminated)),
            changed=before != list(_parts(self._seen)),
            truncated=bool(truncated),
        )

    def _succeeded(self, reward: float, terminated: bool) -> bool:
        if self.success_return is not None:
            return self._return >= self.success_return
        for key in ("success", "is_success"):
            if key in self._info:
                return bool(self._info[key])
        return terminated and reward > 0

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        text = ""
        if self._captioner is not None:
            text = self._captioner(self._seen, self._info)
            if not isinstance(text, str):
                raise EnvError(f"the captioner returned {seen(text)}; it must return a string")
            # The words are the library's, and may contain what stands for an image.
            text = text.replace(IMAGE_PLACEHOLDER, "")
        if not self.images:
            return Observation(text)
        return Observation(f"{IMAGE_PLACEHOLDER}\n{text}".strip(), (self._picture(),))

    def _picture(self) -> Image.Image:
        pixels: Any = self._game.render()
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
            raise EnvError(
                f"{self._game}.render() returned {seen(pixels)}; wanted uint8 pixels "
                "(height, width, 3)"
            )
        picture = Image.fromarray(pixels).convert("RGB")
        if self.image_size is None:
            return picture
        return picture.resize(self.image_size, Image.Resampling.LANCZOS)

    def frame(self) -> Image.Image | None:
        return self._picture() if self.images else None

    def system_prompt(self) -> str:
        return "\n".join(
            [
                self.task.strip(),
                f"Actions: {', '.join(self.action_names)}.",
                self.format.instructions(self.actions_per_turn),
            ]
        )

    def close(self) -> None:
        self._game.close()


def _make(id: str, images: bool, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make the environment.

    Raises:
        ConfigError: When the library, a module or the id is missing, or an argument is wrong.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            f"GymnasiumEnvironment needs gymnasium ({error}); pip install vagentrl[gymnasium]"
        ) from error
    settings = {"render_mode": "rgb_array"} if images else {}
    try:
        # The library's checker warns on every start, in words that nobody trains by.
        return gymnasium.make(id, disable_env_checker=True, **settings, **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(
            f"gymnasium.make({id!r}, {dict(kwargs)}) fails: {error}; see gymnasium.pprint_registry"
        ) from error


def _values(
    space: gymnasium.Space[Any], actions: Sequence[str] | Mapping[str, Any]
) -> dict[str, Any]:
    """Return each name with the library's action.

    Raises:
        ConfigError: When names and space do not fit.
    """
    from gymnasium.spaces import Discrete

    if isinstance(actions, Mapping):
        return {name: _value(space, name, given) for name, given in actions.items()}
    if not isinstance(space, Discrete):
        raise ConfigError(
            f"the actions are {space}, which has no order for a list of names; give each name with "
            "its action, such as actions: {left: [-1.0], right: [1.0]}"
        )
    if len(actions) != space.n:
        raise ConfigError(
            f"actions names {len(actions)} actions ({', '.join(actions)}), but the space is "
            f"{space}; name all {space.n} in order, or some with their number: {{left: 0}}"
        )
    return {name: int(space.start) + number for number, name in enumerate(actions)}


def _value(space: gymnasium.Space[Any], name: str, given: Any) -> Any:
    """The action that a name stands for, as an element of the space."""
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if isinstance(space, Box | MultiBinary | MultiDiscrete):
        try:
            given = np.asarray(given, dtype=space.dtype).reshape(space.shape)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"action {name!r} is {given!r}, but should be {space}") from error
    elif not isinstance(space, Discrete):
        raise ConfigError(
            f"the actions are {space}; only Discrete, Box, MultiBinary and MultiDiscrete spaces "
            "are supported: wrap the environment so that it has one of them"
        )
    if not space.contains(given):
        raise ConfigError(f"action {name!r} is {given!r}, which is not in {space}")
    return given


def _parts(observation: Any) -> list[bytes]:
    """An observation as bytes, in an order that is the same in every process."""
    match observation:
        case dict():
            return [part for key in sorted(observation) for part in _parts(observation[key])]
        case tuple() | list():
            return [part for item in observation for part in _parts(item)]
        case str():
            return [observation.encode()]
    array = np.asarray(observation)
    if array.dtype == object:
        raise EnvError(
            f"an observation holds {seen(observation)}; only numbers, text, arrays, and tuples and "
            "dictionaries of them can be told apart"
        )
    return [f"{array.dtype}{array.shape}".encode(), array.tobytes()]


def _as_it_is(observation: Any, info: dict[str, Any]) -> str:
    return str(observation)
