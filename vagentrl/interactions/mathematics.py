"""Mathematics: the answer is an expression, compared by math-verify (extra ``math``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions.equivalence import shared_equivalence
from vagentrl.interactions.problem import Problem, ProblemInteraction
from vagentrl.interactions.settings import read_settings

_BOX = "\\boxed{"
_TAIL = 10_000
"""Characters at the end of a reply that are searched for an answer."""
_LONGEST = 1000
"""Characters of the longest answer that is compared; a longer one is wrong."""

Judgement = Literal["right", "wrong", "unanswered", "stuck"]


def last_boxed(reply: str) -> str | None:
    r"""Content of the last ``\boxed{…}`` whose braces are balanced; None if there is none."""
    text = reply[-_TAIL:]
    end = len(text)
    while (start := text.rfind(_BOX, 0, end)) >= 0:
        depth = 1
        for at in range(start + len(_BOX), end):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                return text[start + len(_BOX) : at]
        end = start  # not closed: whatever comes before it may be
    return None


def last_expression(reply: str) -> str | None:
    """The end of the last line that is not empty; None if there is none."""
    lines = reply[-_TAIL:].strip().splitlines()
    return lines[-1].strip()[-_LONGEST:] if lines else None


@dataclass(frozen=True)
class MathSettings:
    r"""Settings of `MathInteraction`.

    Args:
        score: Score of a right answer; any other scores 0.
        boxed_only: Whether an answer must be in ``\boxed{}``; otherwise the last line of a reply
            without a box is read.
        timeout_s: Seconds for a comparison. An answer that takes longer is wrong.
        memory_mb: Address space of a worker process in MiB.
        workers: Number of worker processes; None takes the number of CPUs.
        correct: What a right answer is told.
        incorrect: What a wrong answer is told.
        unreadable: What a reply without an answer is told.
    """

    score: float = 1.0
    boxed_only: bool = False
    timeout_s: float = 5.0
    memory_mb: int = 2048
    workers: int | None = None
    correct: str = "That is the right answer."
    incorrect: str = (
        "That is not the right answer. Go over your steps, find the mistake, and answer again."
    )
    unreadable: str = "Your reply has no answer. Answer again, with the answer in \\boxed{}."

    def __post_init__(self) -> None:
        for name in ("score", "timeout_s", "memory_mb", "workers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; give a positive number")


class MathInteraction(ProblemInteraction[str]):
    """Says whether an expression equals the right one, and asks again if it does not.

    Args:
        config: The fields of `MathSettings`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.settings = read_settings(config, MathSettings, "MathInteraction")
        settings = self.settings
        workers = settings.workers or os.cpu_count() or 1
        self._equivalence = shared_equivalence(workers, settings.timeout_s, settings.memory_mb)

    def read_truth(self, ground_truth: str | float | None = None, **kwargs: Any) -> str:
        r"""The right answer.

        Args:
            ground_truth: The answer, in LaTeX or plainly; a solution with ``\boxed{}`` or a
                text with ``$…$`` will do.
            **kwargs: Not used.

        Raises:
            RowError: There is no answer, or one of more than 1000 characters.
        """
        given = "" if ground_truth is None else str(ground_truth)
        right = (last_boxed(given) or given).strip()
        if not 0 < len(right) <= _LONGEST:
            raise RowError(
                f"the ground_truth of a math row is {seen(ground_truth)}; give an expression of 1 "
                f"to {_LONGEST} characters in interaction_kwargs.ground_truth"
            )
        return right

    def best_reply(self, ground_truth: Any = None, **kwargs: Any) -> str | None:
        given = str(ground_truth)
        return rf"\boxed{{{last_boxed(given) or given}}}"

    async def judge(
        self, reply: str, problem: Problem[str]
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge a reply; the conversation ends with the right answer."""
        settings = self.settings
        judgement = await self._compare(reply, problem.truth)
        right = judgement == "right"
        score = settings.score if right else 0.0
        told = settings.unreadable if judgement == "unanswered" else settings.incorrect
        metrics = {
            "correct": float(right),
            "answered": float(judgement != "unanswered"),
            "stuck": float(judgement == "stuck"),
        }
        return right, settings.correct if right else told, score, metrics

    async def _compare(self, reply: str, gold: str) -> Judgement:
        answer = last_boxed(reply)
        asked = f"\\boxed{{{answer}}}"
        if answer is None and not self.settings.boxed_only:
            answer = asked = last_expression(reply)
        if not answer or not asked:
            return "unanswered"
        if _bare(answer) == _bare(gold):
            return "right"
        if len(answer) > _LONGEST:
            return "wrong"
        try:
            gold = gold if "$" in gold else f"\\boxed{{{gold}}}"
            equal = await self._equivalence.equal(gold, asked)
        except TimeoutError:
            return "stuck"
        return "right" if equal else "wrong"


def _bare(text: str) -> str:
    """A text without white space and dollar signs, for answers that are words."""
    return "".join(text.split()).replace("$", "")
