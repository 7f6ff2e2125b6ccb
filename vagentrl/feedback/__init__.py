"""Hints from a second model: verbal epsilon-greedy exploration."""

from vagentrl.feedback.base import Exchange, FeedbackModel, Hint, HintKind, Situation
from vagentrl.feedback.endpoint import EndpointFeedback
from vagentrl.feedback.schedule import Schedule
from vagentrl.feedback.scripted import ScriptedFeedback
from vagentrl.feedback.verbal import VerbalFeedback

__all__ = [
    "EndpointFeedback",
    "Exchange",
    "FeedbackModel",
    "Hint",
    "HintKind",
    "Schedule",
    "ScriptedFeedback",
    "Situation",
    "VerbalFeedback",
]
