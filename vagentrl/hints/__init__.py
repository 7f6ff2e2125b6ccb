"""Verbal epsilon-greedy exploration: a second model gives the agent hints."""

from vagentrl.hints.base import Exchange, Hint, HintKind, HintModel, Situation
from vagentrl.hints.chat_hints import ChatHintModel
from vagentrl.hints.hinted_environment import HintedEnvironment
from vagentrl.hints.scripted import ScriptedHintModel

__all__ = [
    "ChatHintModel",
    "Exchange",
    "Hint",
    "HintKind",
    "HintModel",
    "HintedEnvironment",
    "ScriptedHintModel",
    "Situation",
]
