"""Grade-school arithmetic: the answer is a number, and a wrong one may be corrected.

`compute_score` means what it means in verl, but it compares numbers: "42.0" equals "42".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal

from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions.problem import Problem, ProblemInteraction
from vagentrl.interactions.settings import read_settings

Method = Literal["strict", "flexible"]

_NUMBER = r"[-+]?\$?[-+]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_STRICT = re.compile(f"#### +({_NUMBER})")
_FLEXIBLE = re.compile(_NUMBER)
_MINUS_SIGNS = str.maketrans({"−": "-", "\N{EN DASH}": "-", "\N{HYPHEN}": "-"})
_LONGEST = 100
"""Characters of the longest number that is read. No answer of GSM8K is near it."""
_TAIL = 10_000
"""Characters at the end of a reply that are searched, so that a long reply takes no time."""


def read_number(text: str) -> Decimal | None:
    """The value of a number such as ``-$1,234.50``; None if it is not one, or is too long."""
    if len(text) > _LONGEST:
        return None
    bare = text.translate(_MINUS_SIGNS).replace(",", "").replace("$", "").strip().rstrip(".")
    try:
        value = Decimal(bare)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def extract_answer(reply: str, method: Method = "strict") -> str | None:
    """The number that a reply gives as its answer, as written.

    Args:
        reply: What the agent wrote.
        method: ``strict`` takes the last number that follows ``#### ``, ``flexible`` the last
            number of all.
    """
    pattern = _STRICT if method == "strict" else _FLEXIBLE
    answer = None
    for match in pattern.finditer(reply[-_TAIL:].translate(_MINUS_SIGNS)):
        answer = match
    if answer is None:
        return None
    return answer[1] if method == "strict" else answer[0]


def compute_score(
    solution_str: str,
    ground_truth: str | float,
    method: Method = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """Score a solution by its final number.

    Args:
        solution_str: What the agent wrote.
        ground_truth: The right number.
        method: See `extract_answer`.
        format_score: For a wrong number.
        score: For the right number.

    Returns:
        `score`, `format_score`, or 0 for a solution without a number.
    """
    answer = extract_answer(solution_str, method)
    if answer is None:
        return 0.0
    value = read_number(answer)
    right = value is not None and value == read_number(str(ground_truth))
    return score if right else format_score


@dataclass(frozen=True)
class Gsm8kSettings:
    """Settings of `Gsm8kInteraction`.

    Args:
        method: ``strict`` reads the number after ``#### ``, ``flexible`` the last number.
        format_score: Score of a wrong number.
        score: Score of the right number.
        correct: What a right answer is told.
        incorrect: What a wrong answer is told.
        unreadable: What a reply without a number is told.
    """

    method: Method = "strict"
    format_score: float = 0.0
    score: float = 1.0
    correct: str = "That is the right answer."
    incorrect: str = (
        "That is not the right answer. Go over your steps, find the mistake, and answer again."
    )
    unreadable: str = (
        "Your reply has no final number. Answer again, and end with the number after '#### '."
    )

    def __post_init__(self) -> None:
        if self.format_score >= self.score:
            raise ConfigError(
                f"format_score is {self.format_score:g} and score is {self.score:g}; a right "
                "number must score more than a wrong one"
            )


class Gsm8kInteraction(ProblemInteraction[str]):
    """Says whether a number is right, and asks again if it is not.

    Args:
        config: The fields of `Gsm8kSettings`.
    """

    replays: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.settings = read_settings(config, Gsm8kSettings, "Gsm8kInteraction")

    def read_truth(self, ground_truth: str | float | None = None, **kwargs: Any) -> str:
        """The right number.

        Args:
            ground_truth: The number; a GSM8K solution with ``#### `` before it will do.
            **kwargs: Not used.

        Raises:
            RowError: The ground truth is not a number.
        """
        right = str(ground_truth).rpartition("#### ")[2].strip()
        if isinstance(ground_truth, bool) or read_number(right) is None:
            raise RowError(
                f"the ground_truth of a gsm8k row is {seen(ground_truth)}; give a number, in "
                "interaction_kwargs.ground_truth"
            )
        return right

    def best_reply(self, ground_truth: Any = None, **kwargs: Any) -> str | None:
        return f"#### {str(ground_truth).rpartition('#### ')[2].strip()}"

    async def judge(
        self, reply: str, problem: Problem[str]
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge a reply; the conversation ends with the right answer."""
        settings = self.settings
        answered = extract_answer(reply, settings.method) is not None
        right = bool(compute_score(reply, problem.truth, settings.method))
        score = compute_score(
            reply, problem.truth, settings.method, settings.format_score, settings.score
        )
        feedback = settings.incorrect if answered else settings.unreadable
        metrics = {"correct": float(right), "answered": float(answered)}
        return right, settings.correct if right else feedback, score, metrics
