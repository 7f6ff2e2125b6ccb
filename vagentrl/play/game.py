"""One episode, played reply by reply by whoever has the agent's seat.

The environment runs in a worker, as in training, so that one that hangs or fails costs the game
alone. All code of others runs there: the environment's, and that of its reply format.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.seeds import mix
from vagentrl.rollout.worker_kinds import ProcessWorker, ThreadWorker
from vagentrl.rollout.workers import Beginning, reset, step, traits
from vagentrl.types import (
    Claim,
    Finish,
    Reply,
    State,
    StepResult,
    Stop,
    Trajectory,
    Turn,
    untokenized_turn,
)

Factory = Callable[[], Environment]
WorkerKind = Literal["thread", "process"]

UNSAID = State("(not said)", '"(not said)"', "(not said)")
"""What stands in the place of a claim that a person need not write."""


@dataclass(frozen=True)
class GameStart:
    """What decides an episode, together with the replies.

    Attributes:
        environment: Name of the environment.
        seed: Seed of the initial state.
        transition_seed: Seed of the transitions.
        iteration: Training iteration that the environment is told.
    """

    environment: str
    seed: int
    transition_seed: int
    iteration: int = 0

    @classmethod
    def new(cls, environment: str, seed: int) -> GameStart:
        """A game of a seed, which decides the transitions too."""
        return cls(environment, seed, mix(seed, 6))


class Advice(NamedTuple):
    """What the oracle advises.

    Attributes:
        actions: The actions of the next reply; empty if none are known.
        reply: They as a reply that can be typed.
        steps: Number of actions to the end of the episode.
    """

    actions: tuple[str, ...]
    reply: str
    steps: int


class Game:
    """An episode in progress. Made, it has begun; `close` it in the end.

    Args:
        factory: Makes the environment.
        start: What to play.
        workers: Run the environment in a thread, or in a process, which can be killed if it hangs.
        timeout_s: Seconds that the environment may take for an answer, its own waiting aside.

    Attributes:
        start: What is played.
        episode: A name that no other game has.
        system_prompt: What the agent is told first.
        action_names: Names of the actions, where the environment names them.
        replays: Whether the same seeds and replies lead to the same episode.
        observation: What the agent sees now.
        turns: The turns so far.
        stop: How the episode ended; None while it runs.
        error: The error of a failed episode.

    Raises:
        EnvError: When the environment cannot be made or reset.
    """

    def __init__(
        self,
        factory: Factory,
        start: GameStart,
        *,
        workers: WorkerKind = "process",
        timeout_s: float = 60.0,
    ) -> None:
        self.start = start
        self.episode = uuid.uuid4().hex
        self.turns: list[Turn] = []
        self.stop: Stop | None = None
        self.error: str | None = None
        self._timeout_s = timeout_s
        self._closed = False
        self._worker = ThreadWorker(factory) if workers == "thread" else ProcessWorker(factory)
        try:
            told = self._ask(traits)
            self.replays = told.replays
            self._timeout_s += told.waits_s
            begun: Beginning = self._ask(reset, start.seed, start.transition_seed, start.iteration)
            self.action_names: tuple[str, ...] = self._ask(action_names)
        except BaseException:
            self.close()
            raise
        self.system_prompt = begun.system_prompt
        self.examples = begun.examples
        self.observation = begun.observation

    def reply(self, text: str, *, exactly: bool = False) -> Turn:
        """Play a turn.

        Args:
            text: A reply, or only its actions, which are then written as the format wants them.
            exactly: Send the text as it stands, however wrong it is.

        Raises:
            ConfigError: When the episode is over.
            EnvError: When the environment fails, which ends the episode.
        """
        return self._play(text, exactly)

    def replay(self, text: str, finish: Finish, problem: str | None) -> Turn:
        """Play a turn of an earlier episode again; otherwise as `reply`.

        Args:
            text: The reply.
            finish: How the reply ended.
            problem: What was wrong with it, where a limit cut it off.
        """
        cut_off = (problem or "cut off") if finish == "length" else None
        return self._play(text, True, cut_off, finish)

    def _play(
        self, text: str, exactly: bool, cut_off: str | None = None, finish: Finish = "stop"
    ) -> Turn:
        if self.stop is not None:
            raise ConfigError(f"the episode is over ({self.stop}); start another")
        try:
            reply, result, claims = self._ask(answer, text, exactly, cut_off)
        except EnvError as error:
            self.stop, self.error = "failed", f"{type(error).__name__}: {error}"
            raise
        turn = untokenized_turn(self.observation, reply, result, claims, finish)
        self.turns.append(turn)
        self.observation = result.observation
        if result.terminated or result.truncated:
            self.stop = "terminated" if result.terminated else "truncated"
        return turn

    def advice(self) -> Advice:
        """What the environment's oracle would do now; without actions where it does not know.

        Raises:
            EnvError: When the oracle fails; the episode goes on.
        """
        return self._ask(advice)

    def trajectory(self) -> Trajectory:
        """The episode so far; ``cut`` if it is not over."""
        return Trajectory(
            environment=self.start.environment,
            seed=self.start.seed,
            group_id=0,
            turns=tuple(self.turns),
            stop=self.stop or "cut",
            final_observation=None if self.stop == "failed" else self.observation,
            error=self.error,
            transition_seed=self.start.transition_seed,
        )

    def close(self) -> None:
        """Close the environment."""
        if not self._closed:
            self._closed = True
            self._worker.close()

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._closed or not self._worker.alive:
            raise EnvError("the environment is closed; start another game")
        try:
            return self._worker.submit(function, *arguments).result(self._timeout_s)
        except TimeoutError as error:
            self.close()
            self.stop = "failed"
            self.error = (
                f"environment {self.start.environment!r} did not answer {function.__name__} within "
                f"{self._timeout_s:g} s"
            )
            raise EnvError(self.error) from error


# ------------------------------------------------------------------------------ in the worker


def answer(
    environment: Environment, text: str, exactly: bool, cut_off: str | None
) -> tuple[Reply, StepResult, tuple[Claim, ...]]:
    """Parse a reply and step with it; returns it with the result and its claims."""
    form = environment.format
    reply = form(text if exactly else spelt_out(form, text))
    if cut_off is not None:
        reply = replace(reply, actions=(), problem=cut_off)
    return (reply, *step(environment, reply))


def spelt_out(form: ReplyFormat, text: str) -> str:
    """The reply that a person means: bare actions are written as the format wants them.

    A text that is well formed, or that has an answer's tag, stays as it is; so does one that the
    format cannot carry, which the environment then answers as malformed.
    """
    if form(text).problem is None or "<answer>" in text:
        return text
    separator = form.action_separator
    parts = [text] if separator is None else text.split(separator)
    actions = [action for part in parts if (action := part.strip())]
    try:
        return form.write(actions, observation=UNSAID, prediction=UNSAID)
    except ConfigError:
        return text


def advice(environment: Environment) -> Advice:
    """The oracle's next actions."""
    plan = environment.oracle()
    if plan is not None and not (isinstance(plan, tuple) and all(map(_is_text, plan))):
        raise EnvError.returned(environment, "oracle", plan, "return a tuple of actions, or None")
    if not plan:
        return Advice((), "", 0)
    size = environment.actions_per_turn if isinstance(environment, ActionEnvironment) else 1
    actions = plan[:size]
    return Advice(actions, _joined(environment.format, actions), len(plan))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _joined(form: ReplyFormat, actions: Sequence[str]) -> str:
    return (form.action_separator or " ").join(actions)


def action_names(environment: Environment) -> tuple[str, ...]:
    """Names of the actions; none where replies are free text."""
    return environment.action_names if isinstance(environment, ActionEnvironment) else ()
