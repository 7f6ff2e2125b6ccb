"""Every error that vagentrl raises on purpose.

Each message says what was seen, what was wanted and what to try. Each subclass of `RolloutError`
stands for the part that failed (environment, judge, chat model or engine), so that failed episodes
can be counted by cause.
"""


class VagentError(Exception):
    """Root of all errors raised by vagentrl."""


class ConfigError(VagentError, ValueError):
    """A setting, or a combination of settings, does not work; raised where it is given."""


class ShapeError(VagentError, ValueError):
    """Values do not fit together, such as tensors of different shapes."""


class RolloutError(VagentError, RuntimeError):
    """An episode could not be played to its end."""


class EnvError(RolloutError):
    """The environment raised an error, did not answer in time, or returned an invalid result."""


class JudgeError(RolloutError):
    """A judge gave no verdict."""


class ChatError(RolloutError):
    """A chat model that serves as a judge or gives hints did not reply."""


class EngineError(RolloutError):
    """The engine could not answer a generation request."""


class EngineDead(VagentError, RuntimeError):
    """The engine cannot answer any further request; the run ends.

    This is no `RolloutError`, which would only fail the episodes that are still running. The
    iteration would then learn from the finished episodes alone, which are mostly short ones.
    """
