"""Any Gymnasium environment whose actions can be named, told in words, in pictures, or in both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vagentrl.environment import ActionEnvironment, Outcome, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError, seen
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, StepResult, harmless
from vagentrl_envs import gymnasium_calls as calls
from vagentrl_envs.gymnasium_success import reaches, registered_threshold, told_by, warn_untold

if TYPE_CHECKING:
    import gymnasium

Captioner = Callable[[Any, dict[str, Any]], str]
"""Tells an observation, with the `info` beside it, in words."""

DRAWS = 1000
"""Starts that are drawn for a seed until one belongs to the seed's split."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tab and newline."""


class GymnasiumEnvironment(ActionEnvironment):
    """Any Gymnasium environment with named actions.

    The agent sees what `captioner` makes of the library's observation, the picture that `render()`
    draws, or both. The seed decides the start and the transition seed what is drawn later, as far
    as the environment draws from Gymnasium's own generator (`np_random`). Starts are drawn until
    one belongs to the seed's split, so training, validation and test share none; two starts are
    the same if the agent is shown the same. The library's time limit truncates an episode; it
    never terminates it.

    Args:
        id: The environment's id, such as ``Taxi-v4``; ``module:Id`` imports the module first.
        actions: Names of the actions: a list in the order of a ``Discrete`` space, or for a space
            of another kind each name with its action, such as ``{left: [-1.0], right: [1.0]}``.
            Quote names that YAML reads as booleans, such as ``'on'`` and ``'off'``.
        task: What the agent is to do, for the system prompt.
        captioner: Dotted path of a function that tells an observation and its ``info`` in words.
            Not needed where the library's observations are text.
        images: Whether the agent sees ``render()``'s picture.
        image_size: Width and height of the picture in pixels; None leaves it as it is.
        kwargs: Arguments of ``gymnasium.make``, such as ``map_name`` or ``max_episode_steps``.
        success_return: Sum of the library's rewards from which an episode is a success, whatever
            ends it; one of 0 or less counts only if the library ends it. None asks ``info`` for
            ``success`` or ``is_success``. Where it says nothing, an episode is a success that
            reaches the id's ``reward_threshold``, or that terminates with a positive reward. Where
            the rewards do not tell, as when every step is paid, ``success`` is left out of the
            metrics.
        share_starts: Let the splits share their starts. An environment with one start needs it.
        turn_limit: Turns after which an episode is truncated, beside the library's own limit.
        **settings: The settings of ``ActionEnvironment``, such as ``aliases``.
    """

    def __init__(
        self,
        id: str,
        actions: list[str | bool] | dict[str, Any],
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
        super().__init__(action_names=_names(actions), turn_limit=turn_limit, **settings)
        if not task.strip():
            raise ConfigError("task is empty; say what the agent is to do")
        if image_size is not None and min(image_size) < 1:
            raise ConfigError(
                f"image_size is {list(image_size)}; give width and height of at least 1 pixel, or "
                "null for the size of the library's picture"
            )
        self.task = task
        self.images = images
        self.image_size = image_size
        self.success_return = success_return
        self.share_starts = share_starts
        self._captioner = captioner
        self._id = id
        self._game = calls.make(id, images, kwargs or {})
        self._values = _values(self._game.action_space, self.action_names, actions)
        self._check_observations()
        self._threshold = registered_threshold(self._game, self.longest_episode)
        self._seen: Any = None
        self._info: dict[str, Any] = {}
        self._shown = Observation("")
        self._rewards: list[float] = []
        self._success: bool | None = False

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
            self._seen, self._info = calls.reset(self._game, int(rng.integers(2**31)))
            self._shown = self._look()
            if self.share_starts or split_of_state(self._start_state()) == split_of(seed):
                break
        else:
            raise EnvError(
                f"{DRAWS} draws gave no start of the {split_of(seed)} split (seed {seed}): the "
                "agent is shown too few different starts to keep the splits apart; share_starts: "
                "true trains and evaluates on the same ones"
            )
        # Trailing zeros do not change a seed, so the 1 separates this stream from the starts'.
        self._game.unwrapped.np_random = np.random.default_rng((seed, transition_seed, 1))
        self._rewards = []
        self._success = False

    def _start_state(self) -> str:
        """The start as text that tells different starts apart: a hash of what the agent is shown.

        Starts that read alike are thus the same, even if the library's numbers differ in digits
        that the captioner rounds off.
        """
        digest = hashlib.blake2b(self._shown.text.encode(), digest_size=16)
        for image in self._shown.images:
            digest.update(image.tobytes())
        return digest.hexdigest()

    def initial_state(self, seed: int) -> str:
        self._start(seed, 0)
        return self._start_state()

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if self._success is not None or not (result.terminated or result.truncated):
            return result
        warn_untold(self._id)
        told = {name: value for name, value in result.metrics.items() if name != "success"}
        return replace(result, metrics=told)

    def _act(self, action: str) -> Outcome:
        before = self._shown
        self._seen, reward, terminated, truncated, self._info = calls.step(
            self._game, self._values[action]
        )
        self._rewards.append(reward)
        self._success = self._succeeds(terminated, truncated)
        self._shown = self._look()
        return Outcome(
            reward,
            done=terminated,
            success=bool(self._success),
            changed=before != self._shown,
            truncated=truncated,
        )

    def _succeeds(self, terminated: bool, truncated: bool) -> bool | None:
        """Whether the episode is a success if it ends here; None if nothing tells."""
        total, ended = sum(self._rewards), terminated or truncated
        if self.success_return is not None:
            return reaches(total, self.success_return, ended)
        for key in ("success", "is_success"):
            if key in self._info:
                return bool(self._info[key])
        told = told_by(self._rewards, terminated)
        if self._threshold is None:
            return told
        return bool(told) or reaches(total, self._threshold, ended)

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        return self._shown

    def _look(self) -> Observation:
        """The library's observation as the agent is shown it."""
        text = ""
        if self._captioner is not None:
            text = self._captioner(self._seen, self._info)
            if not isinstance(text, str):
                raise EnvError(f"the captioner returned {seen(text)}; it must return a string")
            # The words are the library's, and may contain anything.
            text = CONTROLS.sub(" ", harmless(text))
        if not self.images:
            return Observation(text)
        return Observation(f"{IMAGE_PLACEHOLDER}\n{text}".strip(), (self._picture(),))

    def _picture(self) -> Image.Image:
        picture = calls.render(self._game)
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


def _names(actions: Sequence[str | bool] | Mapping[str, Any]) -> list[str]:
    """The names of the actions.

    Raises:
        ConfigError: When there are none, or when one is no text.
    """
    if not actions:
        raise ConfigError(f"actions is {actions!r}; name at least one action")
    for name in actions:
        if not isinstance(name, str):
            raise ConfigError(
                f"actions has the name {seen(name)}, which is no text; YAML reads on, off, yes and "
                "no as booleans: quote them, such as ['on', 'off']"
            )
    return [str(name) for name in actions]


def _values(
    space: gymnasium.Space[Any],
    names: Sequence[str],
    actions: Sequence[str | bool] | Mapping[str, Any],
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
    if len(names) != space.n:
        raise ConfigError(
            f"actions names {len(names)} actions ({', '.join(names)}), but the space is "
            f"{space}; name all {space.n} in order, or some with their number: {{left: 0}}"
        )
    return {name: int(space.start) + number for number, name in enumerate(names)}


def _value(space: gymnasium.Space[Any], name: str, given: Any) -> Any:
    """The action that a name stands for, as an element of the space."""
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
        raise ConfigError(
            f"the actions are {space}; only Discrete, Box, MultiBinary and MultiDiscrete spaces "
            "are supported: wrap the environment so that it has one of them"
        )
    try:
        written = np.asarray(given).reshape(space.shape)
        value = written.astype(space.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"action {name!r} is {given!r}, but should be {space}") from error
    if value.dtype.kind != "f" and not np.array_equal(value, written):
        raise ConfigError(
            f"action {name!r} is {given!r}, but {space} holds whole numbers; give whole ones"
        )
    action = value.item() if isinstance(space, Discrete) else value
    if not space.contains(action):
        raise ConfigError(f"action {name!r} is {given!r}, which is not in {space}")
    return action


def _as_it_is(observation: Any, info: dict[str, Any]) -> str:
    return str(observation)
