"""Against saying the same whatever there is to see."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError
from vagentrl.types import Claim

LEAST_AUDITED = 5
"""Second verdicts from which on they, and not the first ones, say how right a template is."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

Entry = tuple[str, float, bool]  # template, score, whether the second judge gave it


class TemplatePenalty:
    """Penalises descriptions that are frequent and bad.

    A claim's template is its text in lower case with single spaces (and, if so set, with every
    number as ``#``). Of each kind of claim the last `window` ones are remembered with their scores.
    The `top` most frequent templates, as far as each makes up `least_share` of the window, are bad
    when their mean score is below `below`; every claim with a bad template loses `penalty`. Where
    the second judge of an `Audit` has spoken on a template often enough, its scores count and not
    the first one's: a judge that is fooled does not notice it itself.

    Args:
        window: Claims of each kind that are remembered.
        top: How many of the most frequent templates are looked at.
        least_share: Share of the window below which a template is not called frequent.
        below: Mean score below which a frequent template is bad.
        penalty: Taken off the score of a claim with a bad template; what it earns can be negative.
        ignore_numbers: Let texts that differ only in numbers be one template. Useful where claims
            are worded freely; structured claims would then all be one.
    """

    def __init__(
        self,
        window: int = 1000,
        top: int = 5,
        least_share: float = 0.05,
        below: float = 0.5,
        penalty: float = 1.0,
        ignore_numbers: bool = False,
    ) -> None:
        if window < 1 or top < 1:
            raise ConfigError(
                f"TemplatePenalty.window is {window} and top {top}; both count: give 1 or more"
            )
        for name, share in (("least_share", least_share), ("below", below)):
            if not 0 < share <= 1:
                raise ConfigError(f"TemplatePenalty.{name} is {share}; give above 0, up to 1")
        if penalty <= 0:
            raise ConfigError(f"TemplatePenalty.penalty is {penalty}; it is subtracted: above 0")
        self.window = window
        self.top = top
        self.least_share = least_share
        self.below = below
        self.penalty = penalty
        self.ignore_numbers = ignore_numbers
        self._recent: dict[str, tuple[Entry, ...]] = {}

    def template(self, claim: Claim) -> str:
        """What claims of the same template have in common."""
        text = " ".join(claim.text.casefold().split())
        return _NUMBER.sub("#", text) if self.ignore_numbers else text

    def penalise(self, judgements: Sequence[Judgement], *, remember: bool) -> list[Judgement]:
        """The same judgements, with penalties.

        Args:
            judgements: Those of a batch, in an order that does not depend on time.
            remember: Whether they stay in the window.
        """
        claimed = {kind: list(entries) for kind, entries in self._recent.items()}
        for judgement in judgements:
            verdict = judgement.second or judgement.verdict
            if verdict is not None:
                kind = judgement.claim.kind
                entry = (self.template(judgement.claim), verdict.score, bool(judgement.second))
                claimed.setdefault(kind, []).append(entry)
        recent = {kind: tuple(entries[-self.window :]) for kind, entries in claimed.items()}
        if remember:
            self._recent = recent
        bad = {kind: self._bad(entries) for kind, entries in recent.items()}
        return [
            replace(judgement, penalty=self.penalty)
            if judgement.verdict is not None
            and self.template(judgement.claim) in bad[judgement.claim.kind]
            else judgement
            for judgement in judgements
        ]

    def _bad(self, entries: Sequence[Entry]) -> set[str]:
        first: dict[str, list[float]] = defaultdict(list)
        second: dict[str, list[float]] = defaultdict(list)
        count: dict[str, int] = defaultdict(int)
        for template, score, audited in entries:
            count[template] += 1
            (second if audited else first)[template].append(score)
        frequent = sorted(count, key=lambda template: -count[template])[: self.top]  # ties: oldest

        def mean(template: str) -> float:
            audited = second[template]
            scores = audited if len(audited) >= LEAST_AUDITED else first[template] + audited
            return sum(scores) / len(scores)

        return {
            template
            for template in frequent
            if count[template] >= self.least_share * len(entries) and mean(template) < self.below
        }

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self._recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = state["recent"]
