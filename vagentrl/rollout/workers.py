"""Workers that run environments outside the event loop, in threads or processes of their own.

A worker holds one environment and plays one episode at a time. If the environment raises an error
or hangs, it is discarded with its worker, and the next episode gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from vagentrl.environment import Environment, seed_of
from vagentrl.errors import ConfigError, EnvError, VagentError, seen, where
from vagentrl.formats import ReplyFormat
from vagentrl.rollout.worker_kinds import ProcessWorker, ThreadWorker
from vagentrl.signatures import check_signatures
from vagentrl.types import Claim, ClaimKind, Example, Observation, Reply, State, StepResult

EnvironmentFactory = Callable[[], Environment]

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Advantages are computed in float32, in which a larger reward is infinite."""


class Beginning(NamedTuple):
    """How an episode begins."""

    system_prompt: str
    format: ReplyFormat
    observation: Observation
    examples: tuple[Example, ...]


def reset(
    environment: Environment, seed: int, transition_seed: int, iteration: int = 0
) -> Beginning:
    """Start an episode."""
    environment.at_iteration(iteration)
    observation = environment.reset(seed, transition_seed)
    if not isinstance(observation, Observation):
        raise EnvError.returned(environment, "reset", observation, "return an Observation alone")
    prompt = environment.system_prompt()
    if not isinstance(prompt, str):
        raise EnvError.returned(environment, "system_prompt", prompt, "return a string")
    examples = environment.examples()
    if not isinstance(examples, tuple) or not all(isinstance(one, Example) for one in examples):
        wanted = "return a tuple of Example(observation, reply)"
        raise EnvError.returned(environment, "examples", examples, wanted)
    return Beginning(prompt, environment.format, observation, examples)


def opening(environment: Environment) -> tuple[str, ReplyFormat, State | None]:
    """The system prompt, the reply format and the true state at the start of some episode."""
    environment.reset(seed_of("train", 0))
    return environment.system_prompt(), environment.format, state_of(environment)


def initial_state(environment: Environment, seed: int) -> Hashable | None:
    """The initial state of a seed, as in the first iteration of training; None if unknown."""
    environment.at_iteration(0)
    return environment.initial_state(seed)


class Traits(NamedTuple):
    """What an environment says about itself.

    Attributes:
        replays: Whether an episode can be played again.
        waits_s: Seconds that an answer may take beyond the time-out.
        starts: Number of training's initial states; None if they are not numbered.
    """

    replays: bool
    waits_s: float
    starts: int | None


def traits(environment: Environment) -> Traits:
    """What an environment says about itself, after a check that it can be used."""
    check_signatures(environment)
    if not environment.initialised:
        raise ConfigError(
            f"{type(environment).__name__}.__init__ does not call its base's; begin it with "
            "super().__init__(…), which takes the reply format"
        )
    starts = environment.start_count("train")
    if starts is not None and starts < 1:
        raise EnvError.returned(environment, "start_count", starts, "return 1 or more, or None")
    return Traits(environment.replays, environment.waits_s, starts)


def probed_traits(environment: Environment) -> Traits:
    """As `traits`, once the services that episodes need have answered."""
    found = traits(environment)
    environment.probe()
    return found


def class_name(environment: Environment) -> str:
    """Name of the environment's class."""
    return type(environment).__name__


def step(environment: Environment, reply: Reply) -> tuple[StepResult, tuple[Claim, ...]]:
    """Step with a reply; returns the result, and the reply's claims with the true states."""
    observed, predicted = _claimed(reply)
    claiming = observed is not None or predicted is not None
    before = state_of(environment) if claiming else None
    result = environment.step(reply)
    _check_result(environment, result)
    after = state_of(environment) if predicted is not None else None
    given: tuple[tuple[ClaimKind, str | None, State | None], ...] = (
        ("observation", observed, before),
        ("prediction", predicted, after),
    )
    representation = environment.format.state
    claims = tuple(
        Claim(
            kind,
            text,
            representation,
            state,
            environment.rubric(),
            before if kind == "prediction" else None,
        )
        for kind, text, state in given
        if text is not None and state is not None and representation is not None
    )
    return result, claims


def with_pictures(
    claims: tuple[Claim, ...], seen: Observation, result: StepResult
) -> tuple[Claim, ...]:
    """The claims of a turn with the pictures of the states that they are about.

    Args:
        claims: The claims that `step` returned.
        seen: The observation that the agent replied to.
        result: The result that `step` returned.
    """
    shown = {"observation": seen.images, "prediction": result.observation.images}
    return tuple(
        replace(claim, images=shown[claim.kind]) if shown[claim.kind] else claim for claim in claims
    )


def state_of(environment: Environment) -> State | None:
    """The true state.

    Raises:
        EnvError: If `state` returned something else.
    """
    state = environment.state()
    if state is not None and not isinstance(state, State):
        wanted = "return State(natural, structured, symbolic), or None"
        raise EnvError.returned(environment, "state", state, wanted)
    return state


def _check_result(environment: Environment, result: object) -> None:
    """Raise unless `step` returned what can be learned from."""
    if not isinstance(result, StepResult):
        wanted = "return StepResult(observation, reward, terminated, truncated, metrics)"
        raise EnvError.returned(environment, "step", result, wanted)
    name = f"{type(environment).__name__}.step returned a StepResult"
    if not isinstance(result.observation, Observation):
        raise EnvError(f"{name} whose observation is {seen(result.observation)}")
    if not _is_number(result.reward):
        raise EnvError(f"{name} whose reward is {seen(result.reward)}; give a float")
    if not abs(result.reward) <= LARGEST_REWARD:
        raise EnvError(f"the reward is {result.reward}; nothing can be learned from that")
    for field, value in (("terminated", result.terminated), ("truncated", result.truncated)):
        if not isinstance(value, bool | np.bool_):
            raise EnvError(f"{name} whose {field} is {seen(value)}; give True or False")
    if not isinstance(result.metrics, Mapping):
        raise EnvError(f"{name} whose metrics are {seen(result.metrics)}; give a dictionary")
    for metric, value in result.metrics.items():
        if not isinstance(metric, str):
            raise EnvError(f"{name} with a metric named {seen(metric)}; give a string")
        if not isinstance(value, Real | np.bool_):
            raise EnvError(f"{name} whose metric {metric!r} is {seen(value)}; give a float")


def _is_number(value: object) -> bool:
    """A bool is none: one in the reward's place mostly belongs in the next."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _claimed(reply: Reply) -> tuple[str | None, str | None]:
    if reply.problem is not None:
        return None, None
    return reply.observation_claim, reply.prediction_claim


Worker = ThreadWorker | ProcessWorker


class WorkerPool:
    """The workers of one environment, which are reused from episode to episode.

    Args:
        factory: Makes an environment.
        name: Name of the environment in errors.
        kind: Threads for environments in pure Python, processes for those with OpenGL, physics or
            signals.
        size: Maximum number of episodes at the same time.
        timeout_s: Seconds that one reset or step may take; the first reset includes starting the
            worker and making the environment.
        closes: Whether workers close their environment at the end. False, with threads only, for a
            factory that returns an existing environment.
        memory_gb: GiB of memory that a process may take; None sets no limit.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        name: str,
        *,
        kind: Literal["thread", "process"] = "thread",
        size: int = 256,
        timeout_s: float = 60.0,
        closes: bool = True,
        memory_gb: float | None = None,
    ) -> None:
        if size < 1 or timeout_s <= 0:
            raise ConfigError(
                f"environment {name!r} has {size} workers with {timeout_s:g} s for an answer; "
                "give it at least 1 worker and more than 0 s"
            )
        if memory_gb is not None and (kind == "thread" or memory_gb <= 0):
            raise ConfigError(
                f"environment {name!r} has {memory_gb:g} GiB of memory and workers of the kind "
                f"{kind}; give more than 0, and process, since threads share the trainer's memory"
            )
        if kind == "process":
            _check_picklable(factory, name)
        self.name = name
        self.timeout_s = timeout_s
        self._make = lambda: (
            ThreadWorker(factory, closes) if kind == "thread" else ProcessWorker(factory, memory_gb)
        )
        self._size = size
        self._idle: list[Worker] = []
        self.open()

    def open(self) -> None:
        """Prepare for a new event loop. Call this at the start of each one that runs episodes."""
        self._episodes = asyncio.Semaphore(self._size)

    @contextlib.asynccontextmanager
    async def reserve(self) -> AsyncIterator[Worker]:
        """A worker for one episode; waits while `size` episodes are running."""
        async with self._episodes:
            worker = self.acquire()
            healthy = False
            try:
                yield worker
                healthy = True
            finally:
                self.release(worker, healthy=healthy)

    def acquire(self) -> Worker:
        """Take a worker until `release`. It does not count towards `size`."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.close()  # its process ended after its last episode
        return self._make()

    def release(self, worker: Worker, *, healthy: bool = True) -> None:
        """Return a worker to the pool, or close it if its environment failed."""
        if healthy:
            self._idle.append(worker)
        else:
            worker.close()

    def ask(self, function: Callable) -> Any:
        """Call a function with an environment, outside of any episode.

        Raises:
            EnvError: When the environment raises or takes longer than `timeout_s`.
        """
        worker = self.acquire()
        try:
            answer = worker.submit(function).result(self.timeout_s)
        except TimeoutError as error:
            worker.close()
            raise self._too_slow(function) from error
        self.release(worker)
        return answer

    async def run(self, worker: Worker, function: Callable, *arguments: Any) -> Any:
        """Call a function with the worker's environment, without blocking the event loop.

        Raises:
            EnvError: When the environment raises or takes longer than `timeout_s`.
        """
        answer = asyncio.wrap_future(worker.submit(function, *arguments))
        try:
            return await asyncio.wait_for(answer, self.timeout_s)
        except TimeoutError as error:
            raise self._too_slow(function) from error
        except EnvError as error:
            raise EnvError(
                f"environment {self.name!r} failed in {function.__name__}: {error}"
            ) from error

    def _too_slow(self, function: Callable) -> EnvError:
        return EnvError(
            f"environment {self.name!r} did not answer {function.__name__} within "
            f"{self.timeout_s:g} s; raise timeout_s if it is meant to be that slow"
        )

    def close(self) -> None:
        """Stop all idle workers."""
        while self._idle:
            self._idle.pop().close()


def check_factory(factory: object, name: str) -> None:
    """Refuse a factory that does not make environments.

    Args:
        factory: A class, or a function without arguments.
        name: The setting's name in the error.

    Raises:
        ConfigError: When it is an environment already, not callable, or not a complete subclass of
            `Environment`.
    """
    advice = "give a class that derives from vagentrl.Environment, or a function that makes one"
    if isinstance(factory, Environment):
        kind = type(factory).__name__
        raise ConfigError(
            f"{name} is an environment already, and a run makes many; give its class, {kind}, or "
            f"functools.partial({kind}, ...) with its settings"
        )
    if not callable(factory):
        raise ConfigError(f"{name} is {factory!r}; {advice}")
    if not isinstance(factory, type):
        return
    if not issubclass(factory, Environment):
        raise ConfigError(f"{name} is {factory.__name__}, which is no Environment; {advice}")
    if missing := sorted(factory.__abstractmethods__):
        raise ConfigError(
            f"{name} is {factory.__name__}, which lacks {', '.join(missing)}; see "
            "vagentrl.Environment for what these methods do"
        )


def make(factory: EnvironmentFactory, name: str) -> Environment:
    """Make an environment in the current thread.

    Raises:
        ConfigError: When the factory raises or makes none.
    """
    try:
        environment = factory()
    except VagentError:
        raise
    except Exception as error:  # the boundary
        raise ConfigError(
            f"environment {name!r} cannot be made: {where(error)}{_too_early(error)}"
        ) from error
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"environment {name!r} is made by {factory!r}, which gives a "
            f"{type(environment).__name__}; let it return a vagentrl.Environment"
        )
    return environment


def _too_early(error: Exception) -> str:
    """Advice where an `__init__` uses what its base's sets."""
    if (
        isinstance(error, AttributeError)
        and isinstance(error.obj, Environment)
        and not error.obj.initialised
    ):
        return "; begin its __init__ with super().__init__(…)"
    return ""


def _check_picklable(factory: EnvironmentFactory, name: str) -> None:
    try:
        pickle.dumps(factory)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"environment {name!r} cannot be sent to a process of its own ({error}); make it from "
            "a class or function at the top of a module, or set data.workers to thread"
        ) from error
