"""What came of a claim."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from vagentrl.claims.judge import Verdict
from vagentrl.types import Claim


@dataclass(frozen=True)
class Judgement:
    """What came of a claim.

    Attributes:
        claim: The claim.
        verdict: The judge's, or that of the filter which kept the claim from it; None when the
            judge failed.
        filtered: Whether a filter spoke, and no judge.
        failure: Why there is no verdict.
        second: The verdict of the judge that audits; None without one.
        penalty: What is taken off the score before it is rewarded.
    """

    claim: Claim
    verdict: Verdict | None = None
    filtered: bool = False
    failure: str | None = None
    second: Verdict | None = None
    penalty: float = 0.0


def sampled(share: float, purpose: str, claim: Claim) -> bool:
    """Whether a claim is in a sample: decided by what it says, so the same in every run."""
    written = repr((purpose, claim.kind, claim.text, claim.truth)).encode()
    digest = hashlib.blake2b(written, digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64
