"""Answers attempts at a problem of arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions import BaseInteraction

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
        attempts, score = self.attempts, self.after_feedback
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise ConfigError(
                f"attempts is {seen(attempts)}; give at least 1, or null for no limit"
            )
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise ConfigError(f"after_feedback is {seen(score)}; give a score from 0 to 1")


@dataclass
class _Problem:
    """A problem that is being solved."""

    truth: float
    replies: int = 0
    score: float = 0.0


class ArithmeticInteraction(BaseInteraction):
    """Reads the last number of each reply, and says whether it is right, too low or too high.

    Args:
        config: The fields of `ArithmeticSettings`.
    """

    replays: ClassVar[bool] = True
    """The same replies always get the same answers."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        given = {name: value for name, value in config.items() if name != "name"}
        known = [field.name for field in fields(ArithmeticSettings)]
        if unknown := sorted(set(given) - set(known)):
            raise ConfigError(
                f"ArithmeticInteraction has no setting {', '.join(map(str, unknown))}; its "
                f"settings are {', '.join(known)}"
            )
        self.settings = ArithmeticSettings(**given)
        self._problems: dict[str, _Problem] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> str:
        """Begin a problem.

        Args:
            instance_id: Names the conversation; None draws a name.
            ground_truth: The right number.
            **kwargs: Not used.

        Raises:
            RowError: When the ground truth is no number.
        """
        truth = None if isinstance(ground_truth, bool) else last_number(str(ground_truth))
        if truth is None:
            raise RowError(f"the ground_truth is {seen(ground_truth)}; give a number")
        instance_id = await super().start_interaction(instance_id, **kwargs)
        self._problems[instance_id] = _Problem(truth)
        return instance_id

    def best_reply(self, ground_truth: Any = None, **kwargs: Any) -> str | None:
        return str(ground_truth)

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge the last reply.

        The metrics are ``right_at_first`` for the first reply, ``right_after_feedback`` for others.
        """
        problem = self._problems[instance_id]
        answer = last_number(_last_reply(messages))
        right = answer == problem.truth
        first = problem.replies == 0
        problem.replies += 1
        if right:
            problem.score = 1.0 if first else self.settings.after_feedback
        metrics = {"right_at_first" if first else "right_after_feedback": float(right)}
        over = right or problem.replies == self.settings.attempts
        return over, _feedback(answer, problem.truth), problem.score, metrics

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the right answer; 0 until it was given."""
        return self._problems[instance_id].score

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the problem."""
        self._problems.pop(instance_id, None)


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


def _last_reply(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the assistant's last message, whose content may be a list of blocks."""
    content = next((m["content"] for m in reversed(messages) if m["role"] == "assistant"), "")
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content)
