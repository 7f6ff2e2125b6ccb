"""The interface of environments, and the base class of those with named actions.

An environment neither parses replies nor writes prompts: it receives a parsed reply and returns an
observation. One instance plays one episode at a time; `reset` starts the next.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from vagentrl.errors import ConfigError, EnvError, seen
from vagentrl.formats import FreeThink, ReplyFormat
from vagentrl.spellings import Spellings
from vagentrl.types import Example, Observation, Reply, State, StepResult

if TYPE_CHECKING:
    from PIL.Image import Image


Split = Literal["train", "validation", "test"]
"""What a seed or a state is used for. No seed and no state belongs to two splits."""


def seed_of(split: Split, index: int) -> int:
    """The ``index``-th seed of a split: even for training, odd for validation and test."""
    match split:
        case "train":
            return 2 * index
        case "validation":
            return 4 * index + 1
        case "test":
            return 4 * index + 3


def split_of(seed: int) -> Split:
    """The split that a seed belongs to."""
    if seed % 2 == 0:
        return "train"
    return "validation" if seed % 4 == 1 else "test"


def index_of(seed: int) -> int:
    """The place of a seed among those of its split: ``seed_of(split_of(seed), i) == seed``."""
    return seed // (2 if split_of(seed) == "train" else 4)


def split_of_state(state: str) -> Split:
    """The split that an initial state belongs to: a tenth of the states each is for validation and
    for test.

    If an environment has few states, seeds of different splits may start from the same one. To
    keep the states of the splits apart too, draw again until
    ``split_of_state(state) == split_of(seed)``.

    Args:
        state: The state as text. The split depends only on its hash, which never changes.
    """
    digest = hashlib.blake2b(state.encode(), digest_size=4).digest()
    match int.from_bytes(digest, "little") % 10:
        case 0:
            return "validation"
        case 5:
            return "test"
        case _:
            return "train"


class Environment(ABC):
    """A task that the agent plays over several turns.

    Args:
        format: The format of replies.
    """

    initialised = False
    """Whether `Environment.__init__` was called, which subclasses may forget."""

    def __init__(self, format: ReplyFormat | None = None) -> None:
        if format is not None and not isinstance(format, ReplyFormat):
            raise ConfigError(
                f"format is {seen(format)}; give an instance of a reply format, such as NoThink()"
            )
        self.format = format if format is not None else FreeThink()
        self.initialised = True

    @property
    def replays(self) -> bool:
        """Whether an episode can be replayed: its seeds and replies determine all it shows."""
        return True

    @property
    def waits_s(self) -> float:
        """Seconds that a reset or step may take beyond `data.timeout_s`, for example while it waits
        for a hint model."""
        return 0.0

    @property
    def prompt_varies(self) -> bool:
        """Whether the system prompt belongs to the episode: it then may differ between episodes, or
        be empty. It is read after each `reset`."""
        return False

    def start_count(self, split: Split) -> int | None:
        """Number of different initial states of a split, such as the rows of a data set; None if
        there are too many to number.

        Where it is a number n, training goes through the seeds ``seed_of("train", i)`` with i < n
        in epochs, each in another order. Otherwise it draws seeds at random.
        """
        return None

    def examples(self) -> tuple[Example, ...]:
        """Exchanges that every prompt of the current episode shows after the system prompt."""
        return ()

    def at_iteration(self, iteration: int) -> None:  # noqa: B027 (most environments do not change)
        """Called before each `reset` with the training iteration that the episode is for."""

    @abstractmethod
    def system_prompt(self) -> str:
        """Describes the task and the reply format; the same for every episode, unless
        `prompt_varies`."""

    @abstractmethod
    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        """Start an episode.

        Args:
            seed: Determines the initial state. A seed must give the same state in every process.
            transition_seed: Seeds the randomness of the transitions. The members of a group share
                ``seed`` but differ in ``transition_seed``.
        """

    @abstractmethod
    def step(self, reply: Reply) -> StepResult:
        """Play one parsed reply. A malformed reply must be answered too; it must not raise."""

    def state(self) -> State | None:
        """The true current state, for judges and demonstrators; None if there is none to report."""
        return None

    def initial_state(self, seed: int) -> Hashable | None:
        """The initial state of a seed, as a value that is equal for equal states; None if unknown.

        Evaluations use it to choose seeds with different initial states. Override it if `state`
        does not describe the whole state, or if `reset` is slow.
        """
        self.reset(seed)
        return self.state()

    def rubric(self) -> str:
        """Instructions for a judge on what makes a claim about the state right; may be empty."""
        return ""

    def oracle(self) -> tuple[str, ...] | None:
        """The best actions from the current state to the end; None if unknown or unsolvable."""
        return None

    def random_actions(self, rng: Random) -> tuple[str, ...] | None:
        """The actions of one reply, drawn at random among those that are possible now; None if the
        environment cannot say which are.

        `vagentrl check-env` measures random play with it.

        Args:
            rng: The only source of randomness, so that the draw can be repeated.
        """
        return None

    def frame(self) -> Image | None:
        """A picture of the current state for people to look at; None if there is none."""
        return None

    def probe(self) -> None:  # noqa: B027 (most environments need no service)
        """Ask each service that episodes need, such as a hint model's endpoint, if it answers.

        Called once when a run starts, and by ``vagentrl check``.

        Raises:
            RolloutError: When one does not answer.
        """

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Release the environment's resources."""


class Outcome(NamedTuple):
    """The result of one action.

    Attributes:
        reward: The action's reward.
        done: Whether the task is over.
        success: Whether the task is over because it was solved.
        changed: Whether the action changed the state.
        truncated: Whether a limit of the task's own ended the episode, such as a library's time
            limit. It counts only where the task is not over.
    """

    reward: float
    done: bool = False
    success: bool = False
    changed: bool = True
    truncated: bool = False


class ActionEnvironment(Environment):
    """An environment whose replies are lists of named actions.

    It implements the rules that do not depend on the task: what a malformed reply or an unknown
    action costs, and how many actions and turns an episode may have. A subclass implements what an
    action does.

    Args:
        action_names: The names of the actions; the agent may write them in upper or lower case.
        format: The format of replies.
        actions_per_turn: Maximum number of actions in a reply; further actions are ignored.
        actions_per_episode: Actions after which an episode is truncated; None sets no limit.
        turn_limit: Turns after which an episode is truncated.
        format_reward: Added for a well-formed reply.
        format_penalty: Subtracted for a malformed reply.
        invalid_action: How an unknown action is handled: ``skip`` it, play the ``default`` action
            instead, or ``end_turn`` there and ignore the remaining actions. With ``default`` a
            malformed reply plays the default action once; otherwise it plays no action.
        default_action: The action that ``invalid_action: default`` plays.
        invalid_penalty: Subtracted for each unknown action.
        reward_scale: Multiplies every reward and penalty.
        feedback: Whether the next observation says what was wrong with the reply.
        show_turns_left: Whether every observation says how many turns are left, and how many
            actions if `actions_per_episode` limits them. Agent and critic then know how near the
            limit is, even if the context does not show the earlier turns.
        aliases: Other names of actions, such as ``{forward: Up}``. Replies may then use them, and
            write ``_`` or ``-`` for a space and a full stop at the end; the metric
            ``repaired_actions`` is the share of actions that needed it. None reads names as they
            are.
    """

    def __init__(
        self,
        action_names: Sequence[str],
        format: ReplyFormat | None = None,
        actions_per_turn: int = 1,
        actions_per_episode: int | None = None,
        turn_limit: int = 12,
        format_reward: float = 0.0,
        format_penalty: float = 0.1,
        invalid_action: Literal["skip", "default", "end_turn"] = "skip",
        default_action: str | None = None,
        invalid_penalty: float = 0.0,
        reward_scale: float = 1.0,
        feedback: bool = False,
        show_turns_left: bool = False,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(format)
        self.action_names = tuple(action_names)
        self.aliases = aliases
        self._spellings = Spellings(self.action_names, aliases)
        self.actions_per_turn = actions_per_turn
        self.actions_per_episode = actions_per_episode
        self.turn_limit = turn_limit
        self.format_reward = format_reward
        self.format_penalty = format_penalty
        self.invalid_action = invalid_action
        self.default_action = default_action
        self.invalid_penalty = invalid_penalty
        self.reward_scale = reward_scale
        self.feedback = feedback
        self.show_turns_left = show_turns_left
        self._check()
        self._over = True
        self._solved = False
        self._turns = 0
        self._actions = 0

    # ------------------------------------------------------------------ what a subclass provides

    @abstractmethod
    def _start(self, seed: int, transition_seed: int) -> None:
        """Set up the initial state."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Play one action, given in the spelling of ``action_names``."""

    @abstractmethod
    def _observe(self) -> Observation:
        """What the agent sees now."""

    # --------------------------------------------------------------------------- the shared rules

    @property
    def longest_episode(self) -> int:
        """The maximum number of actions in an episode under the limits."""
        by_turns = self.turn_limit * self.actions_per_turn
        return min(by_turns, self.actions_per_episode or by_turns)

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self._start(seed, transition_seed)
        return self._begin()

    def random_actions(self, rng: Random) -> tuple[str, ...]:
        return tuple(rng.choice(self.action_names) for _ in range(self.actions_per_turn))

    def step(self, reply: Reply) -> StepResult:
        if self._over:
            raise EnvError(
                f"{type(self).__name__} got a reply, but no episode is running; call reset"
            )
        malformed = reply.problem is not None
        asked = [] if malformed else self._asked(reply)
        reward = -self.format_penalty if malformed else self.format_reward
        reward -= self.invalid_penalty * asked.count(None)
        self._turns += 1
        played = changed = 0
        terminated = truncated = False
        for action in self._executable([None] if malformed else asked):
            outcome = self._act(action)
            if not isinstance(outcome, Outcome) or not isinstance(outcome.reward, Real):
                wanted = "return Outcome(reward, done, success), the reward a float"
                raise EnvError.returned(self, "_act", outcome, wanted)
            reward += outcome.reward
            played += 1
            changed += outcome.changed
            self._actions += 1
            terminated, self._solved = outcome.done, outcome.success
            truncated = outcome.truncated or self._actions == self.actions_per_episode
            if terminated or truncated:
                break
        truncated = truncated or self._turns == self.turn_limit
        self._over = terminated or truncated
        metrics = {
            "success": float(self._solved),
            "format_valid": float(not malformed),
            "valid_actions": 1 - asked.count(None) / len(asked) if asked else 0.0,
            "effective_actions": changed / played if played else 0.0,
        }
        if self.aliases is not None:
            written = reply.actions[: self.actions_per_turn]
            metrics["repaired_actions"] = self._spellings.repaired(written)
        return StepResult(
            observation=self._answer(reply, unknown=None in asked),
            reward=self.reward_scale * reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            metrics=metrics,
        )

    def _begin(self) -> Observation:
        """Reset the counters for a new episode; returns its first observation."""
        self._over = self._solved = False
        self._turns = self._actions = 0
        return self._show()

    def _show(self) -> Observation:
        """The current observation, with the remaining turns and actions if they are shown."""
        observation = self._observe()
        if not isinstance(observation, Observation):
            raise EnvError.returned(self, "_observe", observation, "return an Observation")
        if not self.show_turns_left:
            return observation
        left = f"Turns left: {self.turn_limit - self._turns}."
        if self.actions_per_episode is not None:
            left += f" Actions left: {self.actions_per_episode - self._actions}."
        return replace(observation, text=f"{observation.text}\n{left}")

    def _asked(self, reply: Reply) -> list[str | None]:
        """The actions of the reply as spelt in ``action_names``, None for unknown ones."""
        written = reply.actions[: self.actions_per_turn]
        asked = [self._spellings.find(action) for action in written]
        if self.invalid_action == "end_turn" and None in asked:
            return asked[: asked.index(None) + 1]
        return asked

    def _executable(self, asked: Sequence[str | None]) -> list[str]:
        stand_in = self.default_action if self.invalid_action == "default" else None
        return [action for name in asked if (action := name or stand_in) is not None]

    def _answer(self, reply: Reply, unknown: bool) -> Observation:
        """The next observation, preceded by feedback on the reply if that is switched on."""
        observation = self._show()
        if not self.feedback or (reply.problem is None and not unknown):
            return observation
        wrong = reply.problem or self._wrong_action()
        return replace(observation, text=f"Your reply was wrong: {wrong}.\n{observation.text}")

    def _wrong_action(self) -> str:
        """What was wrong with an action of the last reply, for the feedback.

        It must not quote the agent, whose text may contain an image placeholder.
        """
        return f"unknown action; the actions are {', '.join(self.action_names)}"

    def _check(self) -> None:
        """Raise on settings that cannot work, alone or together."""
        for name in ("actions_per_turn", "actions_per_episode", "turn_limit"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"{name} is {limit}; give at least 1")
        for name in ("format_penalty", "invalid_penalty"):
            penalty = getattr(self, name)
            if penalty < 0:
                raise ConfigError(f"{name} is {penalty}; it is subtracted, so give 0 or more")
        if (
            self.actions_per_episode is not None
            and self.actions_per_episode < self.actions_per_turn
        ):
            raise ConfigError(
                f"actions_per_episode is {self.actions_per_episode} but actions_per_turn is "
                f"{self.actions_per_turn}, which no episode allows; lower actions_per_turn"
            )
        if (self.invalid_action == "default") != (self.default_action is not None):
            raise ConfigError(
                f"invalid_action is {self.invalid_action!r} and default_action is "
                f"{self.default_action!r}; only 'default' needs a default_action: give both or "
                "neither"
            )
        if self.default_action is not None and self.default_action not in self.action_names:
            raise ConfigError(
                f"default_action is {self.default_action!r}; give one of "
                f"{', '.join(self.action_names)}"
            )
        separator = self.format.action_separator
        if separator is None and self.actions_per_turn > 1:
            raise ConfigError(
                f"actions_per_turn is {self.actions_per_turn} but the format's action_separator "
                "is null, so an answer is one action; give a separator"
            )
        if separator is not None and any(separator in name for name in self.action_names):
            raise ConfigError(
                f"the format's action_separator {separator!r} occurs in one of the action names "
                f"{', '.join(self.action_names)}; choose another"
            )
