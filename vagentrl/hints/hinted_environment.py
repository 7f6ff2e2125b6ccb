"""An environment that adds hints, to explore or to exploit, to the agent's observations."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from vagentrl.environment import Environment, Split, split_of
from vagentrl.errors import ChatError, ConfigError
from vagentrl.hints.base import Exchange, Hint, HintKind, HintModel, Situation
from vagentrl.schedules import Schedule, check_share, share_at
from vagentrl.types import Example, Observation, Reply, State, StepResult

if TYPE_CHECKING:
    from random import Random

    from PIL.Image import Image

log = logging.getLogger(__name__)

_STREAM = 6
"""Makes the random stream of this module differ from others that use the episode's seeds."""


@dataclass(frozen=True)
class _Asked:
    """A turn's request for a hint, whether it was answered or not; all 0 where there was none.

    Attributes:
        asked: 1 if a hint was requested.
        failed: 1 if the model did not give it.
        prompt_tokens: Prompt tokens of all attempts.
        reply_tokens: Reply tokens of all attempts.
        cost: Price of these tokens.
        seconds: Time until the answer or the failure.
    """

    asked: float = 0.0
    failed: float = 0.0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class HintedEnvironment(Environment):
    """Wraps an environment and asks a hint model for a hint before each turn.

    The kind of hint is drawn for every turn: z ~ Bernoulli(epsilon), where 1 explores and 0
    exploits. The hint follows the observation. It is part of the agent's context, and has no
    effect on the loss mask or the reward.

    Args:
        env: The environment to wrap.
        hint_model: Writes the hints.
        epsilon: Probability that a hint is to explore; with 0, all hints are to exploit. The
            probability that there is a hint is `hint_share`.
        hint_share: Probability that a turn has a hint; 1 is the published method. Turns without
            hints prepare the agent to act without them.
        hint_held_out: Whether validation and test episodes have hints too.
        note: A sentence about hints at the end of the system prompt; empty for none.
        shown_as: Text that the agent sees for a hint, with ``{hint}`` in place of the hint.
        on_failure: What to do when the hint model fails: ``no_hint`` plays the turn without a
            hint and counts the failure, ``fail_episode`` fails the episode.
        memory: Number of earlier turns that the hint model sees; None for all.
    """

    def __init__(
        self,
        env: Callable[[], Environment],
        hint_model: HintModel,
        epsilon: float | Schedule = 0.1,
        hint_share: float | Schedule = 1.0,
        hint_held_out: bool = False,
        note: str = "You may be given hints. They can be wrong.",
        shown_as: str = "Hint: {hint}",
        on_failure: Literal["no_hint", "fail_episode"] = "no_hint",
        memory: int | None = None,
    ) -> None:
        for name, share in (("epsilon", epsilon), ("hint_share", hint_share)):
            if not isinstance(share, Schedule):
                check_share(f"HintedEnvironment.{name}", share)
        if "{hint}" not in shown_as:
            raise ConfigError(
                f"shown_as is {shown_as!r}; write {{hint}} where the hint's text belongs"
            )
        if memory is not None and memory < 0:
            raise ConfigError(f"memory is {memory}; give a number of turns, or null for all")
        self.environment = env()
        super().__init__(self.environment.format)
        self.hint_model = hint_model
        self.epsilon = epsilon
        self.hint_share = hint_share
        self.hint_held_out = hint_held_out
        self.note = note
        self.shown_as = shown_as
        self.on_failure = on_failure
        self._past: deque[Exchange] = deque(maxlen=memory)
        self._iteration = 0
        self._kind: HintKind | None = None  # kind of the requested hint
        self._hint: Hint | None = None
        self._asked = _Asked()
        self._warned = False

    @property
    def hint(self) -> Hint | None:
        """The hint in the current observation."""
        return self._hint

    @property
    def replays(self) -> bool:
        return self.environment.replays and self.hint_model.replays

    @property
    def prompt_varies(self) -> bool:
        return self.environment.prompt_varies

    @property
    def waits_s(self) -> float:
        return self.environment.waits_s + self.hint_model.waits_s

    def at_iteration(self, iteration: int) -> None:
        self._iteration = iteration
        self.environment.at_iteration(iteration)

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self._seeds = (seed, transition_seed)
        self._turn = 0
        self._past.clear()
        self._observation = self._add_hint(self.environment.reset(seed, transition_seed))
        return self._observation

    def step(self, reply: Reply) -> StepResult:
        metrics = self._metrics(reply)
        result = self.environment.step(reply)
        self._past.append(Exchange(self._observation, reply))
        self._turn += 1
        self._observation, self._kind, self._hint = result.observation, None, None
        if not (result.terminated or result.truncated):
            self._observation = self._add_hint(result.observation)
        return replace(result, observation=self._observation, metrics={**result.metrics, **metrics})

    def _add_hint(self, observation: Observation) -> Observation:
        """Return the observation with a hint, if one is drawn for this turn."""
        self._kind, self._hint, self._asked = self._draw(), None, _Asked()
        if self._kind is None:
            return observation
        started = time.perf_counter()
        situation = Situation(
            self._kind,
            self.environment,
            tuple(self._past),
            observation,
            (*self._seeds, self._turn),
        )
        try:
            hint = self.hint_model.hint(situation)
        except ChatError as error:
            seconds = time.perf_counter() - started
            tokens = (error.prompt_tokens, error.reply_tokens)
            self._asked = _Asked(1.0, 1.0, *tokens, error.cost, seconds)
            if self.on_failure == "fail_episode":
                raise
            if not self._warned:  # all failures are counted, but only the first is logged
                log.warning("no hint in turn %d of seed %d: %s", self._turn, self._seeds[0], error)
            self._warned = True
            return observation
        seconds = time.perf_counter() - started
        if hint is None:
            self._asked = _Asked(asked=1.0, seconds=seconds)
            return observation
        self._asked = _Asked(1.0, 0.0, hint.prompt_tokens, hint.reply_tokens, hint.cost, seconds)
        self._hint = hint
        return replace(observation, hint=self.shown_as.replace("{hint}", self._hint.text))

    def _draw(self) -> HintKind | None:
        """Draw the kind of hint for this turn; None for no hint.

        Both random numbers are always drawn, so that runs with a different `hint_share` or
        `epsilon` differ only in the turns that this setting decides.
        """
        if split_of(self._seeds[0]) != "train" and not self.hint_held_out:
            return None
        rng = np.random.default_rng((_STREAM, *self._seeds, self._turn, 1))
        hinted, explored = rng.random(2)
        if hinted >= share_at(self.hint_share, self._iteration):
            return None
        return "explore" if explored < share_at(self.epsilon, self._iteration) else "exploit"

    def _metrics(self, reply: Reply) -> dict[str, float]:
        """Return the turn's metrics: what the request cost, and whether the hint was followed."""
        hint, asked = self._hint, self._asked
        metrics = {
            "hints": float(hint is not None),
            "hints_asked": asked.asked,
            "hint_failures": asked.failed,
            "hint_prompt_tokens": float(asked.prompt_tokens),
            "hint_reply_tokens": float(asked.reply_tokens),
            "hint_cost": asked.cost,
            "hint_seconds": asked.seconds if self.hint_model.waits_s else 0.0,
        }
        if hint is None:
            return metrics
        metrics["explore_hints"] = float(self._kind == "explore")
        if hint.action is not None:
            followed = [action.casefold() for action in reply.actions[:1]]
            metrics["hints_followed"] = float(hint.action.casefold() in followed)
        return metrics

    # ------------------------------------------------------- methods of the wrapped environment

    def system_prompt(self) -> str:
        return "\n".join(filter(None, (self.environment.system_prompt(), self.note)))

    def examples(self) -> tuple[Example, ...]:
        return self.environment.examples()

    def start_count(self, split: Split) -> int | None:
        return self.environment.start_count(split)

    def state(self) -> State | None:
        return self.environment.state()

    def initial_state(self, seed: int) -> Hashable | None:
        return self.environment.initial_state(seed)  # without asking for a hint

    def rubric(self) -> str:
        return self.environment.rubric()

    def oracle(self) -> tuple[str, ...] | None:
        return self.environment.oracle()

    def random_actions(self, rng: Random) -> tuple[str, ...] | None:
        return self.environment.random_actions(rng)

    def frame(self) -> Image | None:
        return self.environment.frame()

    def probe(self) -> None:
        self.environment.probe()
        self.hint_model.probe()

    def close(self) -> None:
        self.environment.close()
