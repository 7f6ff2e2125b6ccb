"""The result of judging a claim."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

from vagentrl.claims.judge import Verdict
from vagentrl.types import Claim

Fault = Literal["claim", "judge", "transport"]


@dataclass(frozen=True)
class Judgement:
    """A claim and the result of judging it.

    Attributes:
        claim: The claim.
        verdict: The verdict of the judge, or of the filter that rejected the claim; None if the
            judge failed.
        filtered: Whether a filter rejected the claim, so that no judge saw it.
        failure: Error message if there is no verdict.
        fault: What caused the failure. The ``claim`` if the judge could not read it, the
            ``judge`` if its code, or a filter's, raised an error; the claim then counts as wrong.
            The ``transport`` if there was no answer; the score is then unknown.
        baseline: For a prediction, the judge's score of the claim that nothing changes; None if it
            was not asked for.
        second: Verdict of the auditing judge; None if the claim was not audited.
        second_baseline: As `baseline`, by the auditing judge.
        penalty: Amount subtracted from the score before it is paid.
    """

    claim: Claim
    verdict: Verdict | None = None
    filtered: bool = False
    failure: str | None = None
    fault: Fault | None = None
    baseline: float | None = None
    second: Verdict | None = None
    second_baseline: float | None = None
    penalty: float = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the pictures: ranks exchange judgements, and no rank judges them again."""
        return {**vars(self), "claim": replace(self.claim, images=())}


def drawn(share: float, *content: object) -> bool:
    """Whether something is in a sample of the given share.

    The draw depends on nothing but the content, so all processes and resumed runs agree on it.
    """
    digest = hashlib.blake2b(repr(content).encode(errors="backslashreplace"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") < share * 2**64
