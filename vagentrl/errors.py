"""Every error that vagentrl raises on purpose.

Each message says what was seen, what was wanted and what to try. The errors of a rollout name the
boundary that failed, so that a failed episode can be counted under it.
"""


class VagentError(Exception):
    """Root of all errors raised by vagentrl."""


class ConfigError(VagentError, ValueError):
    """Settings that cannot work, alone or together; raised where they are given."""


class ShapeError(VagentError, ValueError):
    """Values that do not line up with each other."""


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
