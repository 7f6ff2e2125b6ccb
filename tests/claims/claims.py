"""Helpers that build claims and judgements."""

from vagentrl.claims.judge import Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.types import Claim, ClaimKind, Representation, State


def claim(
    text: str,
    truth: str = "the box is 2 below the player",
    kind: ClaimKind = "observation",
    representation: Representation = "natural",
) -> Claim:
    return Claim(kind, text, representation, State(truth, truth, truth))


def judgement(
    text: str, score: float | None, kind: ClaimKind = "observation", second: float | None = None
) -> Judgement:
    return Judgement(
        claim(text, kind=kind),
        None if score is None else Verdict(score),
        second=None if second is None else Verdict(second),
    )
