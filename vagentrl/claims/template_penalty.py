"""A penalty for descriptions that are repeated regardless of the state."""

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
"""Number of second verdicts on a template from which on the first judge's scores are ignored."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

Entry = tuple[str, float, bool]  # template, score, whether the score is the second judge's


class TemplatePenalty:
    """Penalises claims whose text is frequent and usually wrong.

    A claim's template is its text in lower case with single spaces (and with every number replaced
    by ``#`` if `ignore_numbers` is set). The last `window` claims of each kind are remembered with
    their scores. A template is bad if it is among the `top` most frequent ones, makes up at least
    `least_share` of the window and has a mean score below `below`. Every claim with a bad template
    loses `penalty`. Once the second judge of an `Audit` has scored a template at least
    `LEAST_AUDITED` times, only the second judge's scores count, because a first judge that is
    fooled cannot notice it.

    Args:
        window: Number of claims of each kind to remember.
        top: Number of most frequent templates to examine.
        least_share: Minimum fraction of the window for a template to be frequent.
        below: Mean score below which a frequent template is bad.
        penalty: Amount subtracted from the score of a claim with a bad template; the result may be
            negative.
        ignore_numbers: Treat texts that differ only in numbers as one template. This suits freely
            worded claims; structured claims would all get the same template.
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
                f"TemplatePenalty.window is {window} and top is {top}; give 1 or more for each"
            )
        for name, share in (("least_share", least_share), ("below", below)):
            if not 0 < share <= 1:
                raise ConfigError(f"TemplatePenalty.{name} is {share}; give above 0, up to 1")
        if penalty <= 0:
            raise ConfigError(
                f"TemplatePenalty.penalty is {penalty}; it is subtracted, so give more than 0"
            )
        self.window = window
        self.top = top
        self.least_share = least_share
        self.below = below
        self.penalty = penalty
        self.ignore_numbers = ignore_numbers
        self._recent: dict[str, tuple[Entry, ...]] = {}

    def template(self, claim: Claim) -> str:
        """Return the claim's template."""
        text = " ".join(claim.text.casefold().split())
        return _NUMBER.sub("#", text) if self.ignore_numbers else text

    def penalise(self, judgements: Sequence[Judgement], *, remember: bool) -> list[Judgement]:
        """Return the judgements with penalties set.

        Args:
            judgements: The judgements of a batch, in an order that does not depend on timing.
            remember: Whether to keep them in the window for later batches.
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
