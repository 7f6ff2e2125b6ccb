"""Every error that vagentrl raises on purpose.

Each message says what was seen, what was wanted and what to try. The errors of a rollout name the
boundary that failed, so that a failed episode can be counted under it.
"""

import reprlib
from typing import Any, Self


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


class VagentError(Exception):
    """Root of all errors raised by vagentrl."""

    @classmethod
    def returned(cls, part: object, method: str, value: object, wanted: str) -> Self:
        """An error that says what `part.method` returned and what to return instead."""
        return cls(f"{type(part).__name__}.{method} returned {seen(value)}; {wanted}")


class ConfigError(VagentError, ValueError):
    """Settings that cannot work, alone or together; raised where they are given."""


class ShapeError(VagentError, ValueError):
    """Values that do not line up with each other."""


class PartError(VagentError, TypeError):
    """A part (an estimator, a loss, a judge, …) made or returned a value that cannot be used.

    The mistake is in the code of the part, so it ends the run; only that of an environment fails
    the episode, as an `EnvError`.
    """


class RolloutError(VagentError, RuntimeError):
    """An episode could not be played to its end."""


class EnvError(RolloutError):
    """The environment raised, hung or answered nonsense."""


class PromptTooLong(RolloutError):
    """An episode's first prompt leaves the model no room to reply."""


class JudgeError(RolloutError):
    """A judge gave no verdict."""


class ChatError(RolloutError):
    """A chat model, which judges or advises, gave no reply."""


class EngineError(RolloutError):
    """The engine could not answer a generation request."""


class EngineDead(VagentError, RuntimeError):
    """The engine can answer nothing any more.

    No `RolloutError`, which fails one episode: those that had ended before would be learned from
    alone, and they are the short ones.
    """
