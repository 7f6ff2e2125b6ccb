"""The result of judging a claim."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from vagentrl.claims.judge import Verdict
from vagentrl.types import Claim


@dataclass(frozen=True)
class Judgement:
    """A claim and the result of judging it.

    Attributes:
        claim: The claim.
        verdict: The verdict of the judge, or of the filter that rejected the claim; None if the
            judge failed.
        filtered: Whether a filter rejected the claim, so that no judge saw it.
        failure: Error message if there is no verdict.
        second: Verdict of the auditing judge; None if the claim was not audited.
        penalty: Amount subtracted from the score before it is rewarded.
    """

    claim: Claim
    verdict: Verdict | None = None
    filtered: bool = False
    failure: str | None = None
    second: Verdict | None = None
    penalty: float = 0.0


def sampled(share: float, purpose: str, claim: Claim) -> bool:
    """Whether a claim is in a sample; this depends only on its content, so runs agree."""
    written = repr((purpose, claim.kind, claim.text, claim.truth)).encode()
    digest = hashlib.blake2b(written, digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64
