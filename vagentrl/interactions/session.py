"""One conversation with an interaction, which is finalized exactly once, however it ends."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from copy import deepcopy
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

from vagentrl.errors import EnvError, where
from vagentrl.event_loops import SharedLoop
from vagentrl.interactions.answers import Answer, read_answer, read_final_score
from vagentrl.interactions.base import BaseInteraction

T = TypeVar("T")

log = logging.getLogger(__name__)

FINALIZE_S = 10.0
"""Seconds that `finalize_interaction` may take."""

LOOP = SharedLoop("interactions", watched=True)
"""The event loop that runs the coroutines of all interactions of a process."""

_open: set[Session] = set()  # sessions that were started and not finalized
_told: set[tuple[type, str]] = set()  # what was warned of, by class


class Session:
    """A conversation with an interaction. Its coroutines run on `LOOP`.

    A method that fails, takes too long or is cancelled ends the conversation: it is finalized
    before the error is raised.

    Args:
        interaction: Who answers.
        kwargs: The row's ``interaction_kwargs``.
        patience_s: Seconds that each method may take.

    Attributes:
        instance_id: Names the conversation among those of the interaction.
    """

    def __init__(
        self, interaction: BaseInteraction, kwargs: Mapping[str, Any], patience_s: float
    ) -> None:
        self.interaction = interaction
        self.instance_id = uuid4().hex
        # What the interaction does to its arguments must not reach other episodes of the row.
        self._kwargs = deepcopy(dict(kwargs))
        self._patience_s = patience_s
        self._called = False  # start_interaction may have stored something
        self._begun = False  # start_interaction has returned
        self._finalizing: asyncio.Task[None] | None = None

    def agent_instructions(self) -> str:
        """What the interaction wants the agent to know; nothing if its class is not of ours."""
        ours = isinstance(self.interaction, BaseInteraction)
        return self.interaction.agent_instructions() if ours else ""

    def best_reply(self) -> str | None:
        """The best first reply to the row, if the interaction knows one."""
        ours = isinstance(self.interaction, BaseInteraction)
        return self.interaction.best_reply(**self._kwargs) if ours else None

    def random_reply(self, rng: Random) -> str | None:
        """A random reply to the row, if the interaction can draw one."""
        ours = isinstance(self.interaction, BaseInteraction)
        return self.interaction.random_reply(rng, **self._kwargs) if ours else None

    async def start(self) -> None:
        """Begin the conversation.

        Raises:
            EnvError: When `start_interaction` fails.
        """
        self._called = True
        _open.add(self)
        returned = await self._call("start_interaction", self.instance_id, **self._kwargs)
        self._begun = True
        if isinstance(returned, str) and returned != self.instance_id:
            self._warn(
                "start_interaction",
                "returned another instance_id than it was given; as in verl, the given one is "
                "passed to the other methods",
            )

    async def take_turn(
        self, messages: Sequence[Mapping[str, Any]] | None, *, last: bool, scored: bool
    ) -> tuple[Answer | None, float | None]:
        """One turn, at the end of a conversation with its score, and with its finalization.

        Args:
            messages: The messages to answer; None asks for no answer.
            last: Whether a limit ends the conversation after this turn.
            scored: Whether the end has a score.

        Returns:
            The answer, and the score of the whole conversation.

        Raises:
            EnvError: When a method fails, or returns what cannot be used.
        """
        answer = None if messages is None else await self.respond(messages)
        over = last or (answer is not None and answer.over)
        score = await self.score() if over and scored else None
        if over:
            await self.finalize()
        return answer, score

    async def respond(self, messages: Sequence[Mapping[str, Any]]) -> Answer:
        """The interaction's answer to the last message.

        Raises:
            EnvError: When `generate_response` fails, or returns what cannot be used.
        """
        copies = [dict(message) for message in messages]
        returned = await self._call("generate_response", self.instance_id, copies, **self._kwargs)
        return await self._read("generate_response", read_answer, returned)

    async def score(self) -> float:
        """The interaction's score of the whole conversation.

        Raises:
            EnvError: When `calculate_score` fails, or returns no finite number.
        """
        returned = await self._call("calculate_score", *self._named("calculate_score"))
        return await self._read("calculate_score", read_final_score, returned)

    async def finalize(self) -> None:
        """Let the interaction forget the conversation. Only the first call has an effect; it also
        completes when the caller is cancelled."""
        if self._finalizing is None:
            self._finalizing = asyncio.get_running_loop().create_task(self._finalize())
        await asyncio.shield(self._finalizing)

    async def _finalize(self) -> None:
        if not self._called:
            return
        try:
            async with asyncio.timeout(FINALIZE_S):
                await self._await("finalize_interaction", *self._named("finalize_interaction"))
        except (Exception, asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
            if self._begun:  # otherwise there was probably nothing to forget
                self._warn(
                    "finalize_interaction",
                    f"failed, and may still hold what it should release: {where(error)}",
                )
        finally:
            _open.discard(self)

    async def _call(self, method: str, *arguments: Any, **kwargs: Any) -> Any:
        if self._finalizing is not None:
            raise EnvError(f"the conversation was closed before {method} was called")
        limit = asyncio.timeout(self._patience_s)
        try:
            async with limit:
                return await self._await(method, *arguments, **kwargs)
        except asyncio.CancelledError:
            await self.finalize()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EnvError(f"{self._name(method)} cancelled itself") from None
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            await self.finalize()
            if limit.expired():
                raise EnvError(
                    f"{self._name(method)} took more than {self._patience_s:g} s; raise patience_s "
                    "if it is meant to be that slow"
                ) from error
            raise EnvError(f"{self._name(method)} failed: {where(error)}") from error

    async def _read(self, method: str, read: Callable[[object, object], T], returned: object) -> T:
        """Read what a method returned."""
        try:
            return read(self.interaction, returned)
        except EnvError:
            await self.finalize()
            raise
        except Exception as error:  # the boundary: a picture can be broken in many ways
            await self.finalize()
            name = self._name(method)
            raise EnvError(f"{name} returned what cannot be read: {where(error)}") from error

    async def _await(self, method: str, *arguments: Any, **kwargs: Any) -> Any:
        result = getattr(self.interaction, method)(*arguments, **kwargs)
        if not inspect.isawaitable(result):
            raise TypeError(f"{method} is no coroutine; write it with `async def`")
        return await result

    def _named(self, method: str) -> tuple[str, ...]:
        return id_arguments(getattr(self.interaction, method), self.instance_id)

    def _name(self, method: str) -> str:
        return f"{type(self.interaction).__name__}.{method}"

    def _warn(self, method: str, message: str) -> None:
        """Warn once for each method of a class."""
        key = (type(self.interaction), method)
        if key not in _told:
            _told.add(key)
            log.warning("%s %s", self._name(method), message)


def id_arguments(method: Callable[..., Any], instance_id: str) -> tuple[str, ...]:
    """The instance_id, if the method takes it: that of verl's base class does not."""
    return (instance_id,) if accepts(method, instance_id) else ()


def accepts(method: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a method can be called with these arguments."""
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # it is not written in Python, and does not say
        return True
    return True


def run(session: Session, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Run a coroutine of a session and wait for it; the session is finalized if that fails.

    Raises:
        EnvError: When the coroutine fails, or gives no result in time because other code blocks
            the loop.
    """
    future = LOOP.submit(work)
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise EnvError(
            f"{type(session.interaction).__name__} gave no answer within {timeout_s:g} s; its "
            f"event loop executes {LOOP.place() or 'nothing'}. Code that blocks the loop stops all "
            "conversations: await what takes long, or move it to a thread"
        ) from error
    except CancelledError as error:
        name = type(session.interaction).__name__
        raise EnvError(f"{name} was cancelled by other code in its event loop") from error
    finally:
        if not future.done() or future.cancelled():
            future.cancel()
            LOOP.submit(session.finalize())


def finalize(session: Session) -> None:
    """Finalize a session and wait until it is done, or until that takes too long."""
    wait([LOOP.submit(session.finalize())], 2 * FINALIZE_S)


async def _finalize_all() -> None:
    await asyncio.gather(*(session.finalize() for session in list(_open)))


@atexit.register
def _finalize_at_exit() -> None:
    """Conversations may be unfinished when the program ends, for example after an interrupt."""
    if _open:
        wait([LOOP.submit(_finalize_all())], FINALIZE_S)
