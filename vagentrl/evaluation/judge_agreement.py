"""How often a judge agrees with the exact judge, and what it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from vagentrl.chat.endpoint import check_positive
from vagentrl.claims.judge import Judge, Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.claims.judging import Judging, Tally, counters
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.evaluation.labelled_claims import LabelledClaim
from vagentrl.rollout.report import effective_episodes, success_interval
from vagentrl.types import Claim

ROUNDING = 1e-9
"""How far below the accepting score a right claim may be by rounding."""
HEAD = (
    "claims", "number", "right", "accuracy", "false accepts", "false refusals", "mean error",
    "unreadable", "no answer",
)  # fmt: skip


class Rate(NamedTuple):
    """A share of claims with its 95 % interval.

    Attributes:
        share: The share.
        low: Lower end of the interval.
        high: Upper end.
        number: Number of claims.
    """

    share: float
    low: float
    high: float
    number: int

    def __str__(self) -> str:
        return f"{self.share:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Row:
    """A judge's mistakes on some of the claims.

    Attributes:
        name: Which claims.
        number: Number of claims that both judges have an answer to.
        right: How many of them are right.
        accuracy: Share of claims that the judge accepts if and only if they are right.
        false_accepts: Share of wrong claims that the judge accepts; None without wrong claims.
        false_refusals: Share of right claims that it refuses; None without right claims.
        error: Mean distance of the judge's score to the true one.
        unreadable: Claims on which the judge failed through the claim, or its own code broke. They
            count as refused, as `WorldModelReward` pays them.
        unanswered: Claims without an answer of the judge, which do not count.
    """

    name: str
    number: int
    right: int
    accuracy: Rate | None
    false_accepts: Rate | None
    false_refusals: Rate | None
    error: float | None
    unreadable: int
    unanswered: int


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison.

    Attributes:
        rows: All claims, those of each kind and representation, and those of each form in each
            representation.
        unlabelled: Claims that the exact judge has no answer to; they are left out.
        seconds: Mean seconds from the question to the answer of a claim.
        metrics: What the judge counted, such as tokens and cost, per claim.
        failure: The first failure of the judge; None if it answered all claims.
    """

    rows: tuple[Row, ...]
    unlabelled: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None

    def record(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self) | {"rows": [_row_record(row) for row in self.rows]}

    def __str__(self) -> str:
        lines = [_line(HEAD), _line(["---", *["--:"] * (len(HEAD) - 1)])]
        lines += [_line(_cells(row)) for row in self.rows]
        lines += ["", f"{self.seconds:.4g} s per claim" + _told(self.metrics)]
        if self.failure is not None:
            lines.append(f"The first failure: {self.failure}")
        if self.unlabelled:
            lines.append(f"{self.unlabelled} claims have no label, and are left out.")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Compared:
    """A claim with the true score, and the judge's answer."""

    claim: LabelledClaim
    truth: float
    judgement: Judgement

    @property
    def answered(self) -> bool:
        return self.judgement.fault != "transport"

    @property
    def score(self) -> float:
        return 0.0 if self.judgement.verdict is None else self.judgement.verdict.score


class _Timed(Judge):
    """Asks a judge, and adds up how long its answers take."""

    def __init__(self, judge: Judge) -> None:
        self.inner = judge
        self.seconds: list[float] = []

    async def judge(self, claim: Claim) -> Verdict:
        started = time.perf_counter()
        try:
            return await self.inner(claim)
        finally:
            self.seconds.append(time.perf_counter() - started)

    async def probe(self) -> None:
        await self.inner.probe()

    async def close(self) -> None:
        await self.inner.close()


def compare(
    judge: Judge,
    exact: Judge,
    claims: Sequence[LabelledClaim],
    *,
    accept: float = 1.0,
    at_once: int = 16,
    timeout_s: float = 60.0,
) -> Agreement:
    """Ask both judges about claims, and count where they differ.

    Args:
        judge: The judge to measure; it is closed.
        exact: The judge that knows; it is asked about claims without a label, and closed.
        claims: The claims.
        accept: Score from which a claim counts as right, for both.
        at_once: Claims that a judge gets at a time.
        timeout_s: Seconds that a judge may take for a claim.

    Raises:
        ConfigError: When a setting is wrong.
        JudgeError: When a judge's endpoint does not answer, or it answers none of the first claims.
    """
    if not 0 < accept <= 1:
        raise ConfigError(f"accept is {accept}; give a score above 0, up to 1")
    check_positive(at_once=at_once, timeout_s=timeout_s)
    unlabelled = [each.claim for each in claims if each.label is None]
    known = {id(each.claim): each.label for each in claims if each.label is not None}
    for judgement in ask(exact, unlabelled, at_once, timeout_s):
        if judgement.verdict is not None:
            known[id(judgement.claim)] = judgement.verdict.score
    labelled = [each for each in claims if id(each.claim) in known]
    if not labelled:
        raise JudgeError(
            f"{type(exact).__name__} has no answer to any of the {len(claims)} claims; name a "
            "judge that knows as --exact, or label the claims"
        )
    timed, counted = _Timed(judge), counters(judge)
    judgements = ask(timed, [each.claim for each in labelled], at_once, timeout_s)
    spent = {name: n - counted.get(name, 0.0) for name, n in counters(judge).items()}
    compared = [
        _Compared(each, known[id(each.claim)], judgement)
        for each, judgement in zip(labelled, judgements, strict=True)
    ]
    return Agreement(
        rows=tuple(_rows(compared, accept)),
        unlabelled=len(claims) - len(labelled),
        seconds=fmean(timed.seconds),
        metrics={name: value / len(labelled) for name, value in spent.items()},
        failure=next((j.failure for j in judgements if j.failure is not None), None),
    )


def ask(judge: Judge, claims: Sequence[Claim], at_once: int, timeout_s: float) -> list[Judgement]:
    """Ask a judge about claims, as a run does, and close it.

    Raises:
        JudgeError: When its endpoint does not answer, or it answers none of the first claims.
    """
    judging = Judging(judge, (), None, skill=False, timeout_s=timeout_s)
    judgements: list[Judgement] = []
    try:
        judging.probe()
        for start in range(0, len(claims), at_once):
            batch = claims[start : start + at_once]
            for claim in batch:
                judging.submit(claim, (claim,), training=True)
            judgements += judging.settle(batch, Tally())
            if not start and all(each.fault == "transport" for each in judgements):
                raise JudgeError(
                    f"the judge answered none of the first {len(batch)} claims, so no more are "
                    f"asked; the first failure: {judgements[0].failure}"
                )
    finally:
        judging.close()
    return judgements


# ------------------------------------------------------------------------------------------ counts


def _rows(compared: Sequence[_Compared], accept: float) -> Iterable[Row]:
    """The rows of a table: all claims, then each kind, representation and form."""
    parts: tuple[dict[str, list[_Compared]], ...] = ({}, {}, {})
    for each in compared:
        claim = each.claim.claim
        cell = f"{claim.representation}, {each.claim.form}"
        for part, name in zip(parts, (f"{claim.kind}s", claim.representation, cell), strict=True):
            part.setdefault(name, []).append(each)
    yield _row("all", compared, accept)
    for part in parts:
        for name in sorted(part, key=lambda name: name.partition(", ")[0]):
            yield _row(name, part[name], accept)


def _row(name: str, compared: Sequence[_Compared], accept: float) -> Row:
    answered = [each for each in compared if each.answered]
    least = accept - ROUNDING
    right = [each for each in answered if each.truth >= least]
    wrong = [each for each in answered if each.truth < least]
    errors = [abs(each.score - each.truth) for each in answered]
    return Row(
        name=name,
        number=len(answered),
        right=len(right),
        accuracy=_rate((c, (c.score >= least) == (c.truth >= least)) for c in answered),
        false_accepts=_rate((c, c.score >= least) for c in wrong),
        false_refusals=_rate((c, c.score < least) for c in right),
        error=fmean(errors) if errors else None,
        unreadable=sum(each.judgement.fault in ("claim", "judge") for each in compared),
        unanswered=len(compared) - len(answered),
    )


def _rate(outcomes: Iterable[tuple[_Compared, bool]]) -> Rate | None:
    """A share with an interval in which claims of a group are not independent."""
    groups: dict[str, list[bool]] = {}
    for compared, outcome in outcomes:
        groups.setdefault(compared.claim.group, []).append(outcome)
    number = sum(map(len, groups.values()))
    if not number:
        return None
    share = sum(map(sum, groups.values())) / number
    count = effective_episodes(list(groups.values()))
    return Rate(share, *success_interval(share * count, count), number)


# ------------------------------------------------------------------------------------------ tables


def _row_record(row: Row) -> dict[str, Any]:
    return {
        name: value._asdict() if isinstance(value, Rate) else value
        for name, value in vars(row).items()
    }


def _cells(row: Row) -> list[str]:
    rates = (row.accuracy, row.false_accepts, row.false_refusals)
    shown = [str(rate) if rate is not None else "–" for rate in rates]
    error = "–" if row.error is None else f"{row.error:.3f}"
    numbers = [str(row.number), str(row.right)]
    return [row.name, *numbers, *shown, error, str(row.unreadable), str(row.unanswered)]


def _told(metrics: Mapping[str, float]) -> str:
    return "".join(f", {value:.4g} {name}" for name, value in metrics.items() if value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
