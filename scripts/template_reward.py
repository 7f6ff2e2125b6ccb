"""A reward that a template satisfies, for the study of the echo trap."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vagentrl.callbacks import AgentCallback

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import Trajectory


class TemplateReward(AgentCallback):
    """Adds a bonus to every reply that contains a text, whatever the task was.

    Args:
        text: The text.
        bonus: What such a reply earns, in units of reward.
    """

    def __init__(self, text: str, bonus: float = 0.5) -> None:
        self.text = text
        self.bonus = bonus

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        return [self._pay(trajectory) for trajectory in trajectories]

    def _pay(self, trajectory: Trajectory) -> Trajectory:
        turns = [
            replace(turn, bonus=turn.bonus + self.bonus * (self.text in turn.reply.text))
            for turn in trajectory.turns
        ]
        return replace(trajectory, turns=tuple(turns))
