"""Answers attempts at a problem of arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions import Problem, ProblemInteraction, read_settings

# A minus between two numbers is an operation: "9-5" ends in 5.
_NUMBER = re.compile(r"(?:(?<![0-9])[-−])?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
_LONGEST = 30
"""Characters of a number; a longer one is no answer to any problem."""


@dataclass(frozen=True)
class ArithmeticSettings:
    """The ``config`` of an `ArithmeticInteraction`.

    Args:
        attempts: Replies after which the conversation ends; None sets no limit.
        after_feedback: Score of a right answer after a wrong one; at once it scores 1.
    """

    attempts: int | None = 3
    after_feedback: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ConfigError(f"attempts is {self.attempts}; give at least 1, or null for no limit")
        if not 0 <= self.after_feedback <= 1:
            raise ConfigError(f"after_feedback is {self.after_feedback:g}; give one from 0 to 1")


class ArithmeticInteraction(ProblemInteraction[float]):
    """Reads the last number of each reply, and says whether it is right, too low or too high.

    Args:
        config: The fields of `ArithmeticSettings`.
    """

    replays: ClassVar[bool] = True
    """The same replies always get the same answers."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.settings = read_settings(config, ArithmeticSettings, "ArithmeticInteraction")

    def read_truth(self, ground_truth: Any = None, **kwargs: Any) -> float:
        """The right number.

        Args:
            ground_truth: The number, or a text that ends in it.
            **kwargs: Not used.

        Raises:
            RowError: When the ground truth is no number.
        """
        truth = None if isinstance(ground_truth, bool) else last_number(str(ground_truth))
        if truth is None:
            raise RowError(f"the ground_truth is {seen(ground_truth)}; give a number")
        return truth

    def best_reply(self, ground_truth: Any = None, **kwargs: Any) -> str | None:
        return str(ground_truth)

    def random_reply(self, rng: Random, **kwargs: Any) -> str:
        return str(rng.randrange(100))

    async def judge(
        self, reply: str, problem: Problem[float]
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge a reply.

        The metrics are ``right_at_first`` for the first reply, ``right_after_feedback`` for others.
        """
        answer = last_number(reply)
        right = answer == problem.truth
        first = problem.replies == 0
        score = (1.0 if first else self.settings.after_feedback) if right else 0.0
        metrics = {"right_at_first" if first else "right_after_feedback": float(right)}
        over = right or problem.replies + 1 == self.settings.attempts
        return over, _feedback(answer, problem.truth), score, metrics


def last_number(text: str) -> float | None:
    """The last number in a text; None if there is none, or if it is too long to be an answer."""
    found = None
    for match in _NUMBER.finditer(text):
        found = match[0]
    if found is None or len(found) > _LONGEST:
        return None
    return float(found.replace(",", "").replace("−", "-"))


def _feedback(answer: float | None, truth: float) -> str:
    if answer is None:
        return "That is not a number. Try again."
    if answer == truth:
        return "Right."
    return f"Too {'low' if answer < truth else 'high'}. Try again."
