"""Behaviours of a run, each on its own."""

from vagentrl.callbacks.base import AgentCallback
from vagentrl.callbacks.critic_warmup import CriticWarmup
from vagentrl.callbacks.evaluate_at_start import EvaluateAtStart
from vagentrl.callbacks.kl_control import KLControl
from vagentrl.callbacks.progress import IterationProgress
from vagentrl.callbacks.run_summary import RunSummary
from vagentrl.callbacks.trajectory_pictures import TrajectoryPictures

__all__ = [
    "AgentCallback",
    "CriticWarmup",
    "EvaluateAtStart",
    "IterationProgress",
    "KLControl",
    "RunSummary",
    "TrajectoryPictures",
]
