"""Every error that vagentrl raises on purpose.

Each message says what was seen, what was wanted and what to try. Each subclass of `RolloutError`
stands for the part that failed (environment, judge, chat model or engine), so that failed episodes
can be counted by cause.
"""

import reprlib
import traceback
from pathlib import Path
from typing import Any, Self

_PACKAGE = f"{Path(__file__).parent}/"


class _Shortened(reprlib.Repr):
    """Shortens values; `reprlib` picks the method that is named after the class of the value."""

    def repr_Tensor(self, tensor: Any, level: int) -> str:
        return f"<{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}>"

    def repr_ndarray(self, array: Any, level: int) -> str:
        return f"<{array.dtype} {array.shape}>"


def seen(value: object) -> str:
    """A value as error messages show it: shortened, with its type."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{_Shortened().repr(value)} ({type(value).__name__})"


def where(error: BaseException) -> str:
    """The error in words, and the line of the user's code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    # "<string>" is the __init__ that `dataclass` makes
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<"))]
    place = (own or frames)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


class VagentError(Exception):
    """Root of all errors raised by vagentrl."""

    @classmethod
    def returned(cls, part: object, method: str, value: object, wanted: str) -> Self:
        """An error that says what `part.method` returned and what to return instead."""
        return cls(f"{type(part).__name__}.{method} returned {seen(value)}; {wanted}")


class ConfigError(VagentError, ValueError):
    """A setting, or a combination of settings, does not work; raised where it is given."""


class ShapeError(VagentError, ValueError):
    """Values do not fit together, such as tensors of different shapes."""


class PartError(VagentError, TypeError):
    """A part (an estimator, a loss, a judge, …) made or returned a value that cannot be used.

    The mistake is in the code of the part, so it ends the run; only that of an environment fails
    the episode, as an `EnvError`.
    """


class RolloutError(VagentError, RuntimeError):
    """An episode could not be played to its end."""


class EnvError(RolloutError):
    """The environment raised an error, did not answer in time, or returned an invalid result."""


class RowError(EnvError):
    """A row of a data set cannot be used as a task."""


class PromptTooLong(RolloutError):
    """An episode's first prompt leaves the model no room to reply."""


class JudgeError(RolloutError):
    """A judge gave no verdict.

    Attributes:
        caused_by_claim: Whether the claim is the cause, for instance because the judge's model
            refuses to read it. Such a claim counts as wrong; after another failure its score is
            unknown.
    """

    def __init__(self, message: str = "", *, caused_by_claim: bool = False) -> None:
        super().__init__(message)
        self.caused_by_claim = caused_by_claim


class ChatError(RolloutError):
    """A chat model that serves as a judge or gives hints did not reply.

    Attributes:
        caused_by_prompt: Whether the endpoint works but does not answer this prompt: it refused
            the prompt, found it too long, or did not come to an end.
        prompt_tokens: Prompt tokens of all attempts, which are paid for without a reply.
        reply_tokens: Tokens that the model wrote in these attempts.
        cost: Price of all of these tokens.
    """

    def __init__(
        self,
        message: str = "",
        *,
        caused_by_prompt: bool = False,
        prompt_tokens: int = 0,
        reply_tokens: int = 0,
        cost: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.caused_by_prompt = caused_by_prompt
        self.prompt_tokens = prompt_tokens
        self.reply_tokens = reply_tokens
        self.cost = cost


class EngineError(RolloutError):
    """The engine could not answer a generation request."""


class EngineDead(VagentError, RuntimeError):
    """The engine cannot answer any further request; the run ends.

    This is no `RolloutError`, which would only fail the episodes that are still running. The
    iteration would then learn from the finished episodes alone, which are mostly short ones.
    """
