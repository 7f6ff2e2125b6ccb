"""Interactions as verl defined them: someone who answers the agent, in Python of the user's own."""

from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.tasks import Task, Tasks

__all__ = ["BaseInteraction", "Task", "Tasks"]
