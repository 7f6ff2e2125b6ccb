"""`ProblemInteraction`: an interaction about problems that have a right answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.messages import last_reply

Truth = TypeVar("Truth")


@dataclass
class Problem(Generic[Truth]):
    """A problem that is being solved.

    Attributes:
        truth: What replies are judged by.
        replies: How many were judged.
        score: The score of the last one; 0 before the first.
    """

    truth: Truth
    replies: int = 0
    score: float = 0.0


class ProblemInteraction(BaseInteraction, ABC, Generic[Truth]):
    """Judges each reply, and keeps the problem of each conversation until it is over.

    Args:
        config: The settings of the class.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._problems: dict[str, Problem[Truth]] = {}

    @abstractmethod
    def read_truth(self, **kwargs: Any) -> Truth:
        """What the replies to a row are judged by.

        Args:
            **kwargs: The row's ``interaction_kwargs``.

        Raises:
            RowError: When the row does not tell it.
        """

    @abstractmethod
    async def judge(
        self, reply: str, problem: Problem[Truth]
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge a reply.

        Args:
            reply: The text of the agent's last reply.
            problem: The problem; `Problem.replies` are those before this one.

        Returns:
            As `BaseInteraction.generate_response`.
        """

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a problem.

        Raises:
            RowError: See `read_truth`.
        """
        truth = self.read_truth(**kwargs)
        instance_id = await super().start_interaction(instance_id, **kwargs)
        self._problems[instance_id] = Problem(truth)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge the last reply."""
        problem = self._problems[instance_id]
        over, told, problem.score, metrics = await self.judge(last_reply(messages), problem)
        problem.replies += 1
        return over, told, problem.score, metrics

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the last reply; 0 before the first."""
        return self._problems[instance_id].score

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the problem."""
        self._problems.pop(instance_id, None)
