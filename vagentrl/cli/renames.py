"""Names that classes, modules and settings once had, so that an error can say the ones they have.

Nothing can be imported by an old name: this table only turns a failure into advice.
"""

from __future__ import annotations

import re

RENAMED = {
    "vagentrl.checkpoints": "vagentrl.modules.checkpoint_io",
    "vagentrl.collection": "vagentrl.rollout.source",
    "vagentrl.commands": "vagentrl.cli.trainer",
    "vagentrl.data": "vagentrl.datamodule",
    "vagentrl.doctor": "vagentrl.cli.doctor",
    "vagentrl.engine": "vagentrl.engines.base",
    "vagentrl.engines.OpenAIChat": "vagentrl.chat.OpenAIChat",
    "vagentrl.engines.endpoint": "vagentrl.chat.endpoint",
    "vagentrl.engines.openai": "vagentrl.chat.openai",
    "vagentrl.feedback": "vagentrl.hints",
    "vagentrl.feedback.EndpointFeedback": "vagentrl.hints.ChatHintModel",
    "vagentrl.feedback.FeedbackModel": "vagentrl.hints.HintModel",
    "vagentrl.feedback.ScriptedFeedback": "vagentrl.hints.ScriptedHintModel",
    "vagentrl.feedback.Schedule": "vagentrl.schedules.Schedule",
    "vagentrl.feedback.VerbalFeedback": "vagentrl.hints.HintedEnvironment",
    "vagentrl.feedback.endpoint": "vagentrl.hints.chat_hints",
    "vagentrl.feedback.verbal": "vagentrl.hints.hinted_environment",
    "vagentrl.hints.Schedule": "vagentrl.schedules.Schedule",
    "vagentrl.hints.schedule": "vagentrl.schedules",
    "vagentrl.judge": "vagentrl.claims.judge",
    "vagentrl.judging": "vagentrl.claims",
    "vagentrl.memory": "vagentrl.cli.memory",
    "vagentrl.parser": "vagentrl.cli.parser",
    "vagentrl.warmstart": "vagentrl.cli.warmstart",
}
"""Modules and classes. What a module holds moved with it, unless it is listed itself."""

RENAMED_SETTINGS = {"feedback": "hint_model"}
"""Settings, by the last part of their key."""


def _last(path: str) -> str:
    return path.rpartition(".")[2]


_RENAMED_CLASSES = {
    _last(old): new
    for old, new in RENAMED.items()
    if _last(old)[0].isupper() and _last(old) != _last(new)
}
_OLD_PATH = re.compile(rf"\b(?:{'|'.join(map(re.escape, RENAMED))})\b(?:\.\w+)*")


def new_name(name: str) -> str | None:
    """The name that a class or module has now; None where the given name is not an old one.

    Args:
        name: An import path, or the name of a class alone.
    """
    if _last(name) in _RENAMED_CLASSES:
        return _RENAMED_CLASSES[_last(name)]
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (new := RENAMED.get(".".join(parts[:length]))) is not None:
            return ".".join([new, *parts[length:]])
    return None


def find_old_path(text: str) -> str | None:
    """The first old import path in a text."""
    found = _OLD_PATH.search(text)
    return found[0] if found else None
