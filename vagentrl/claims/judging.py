"""Judging claims while episodes are played: filters, judges, time limits and audits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from vagentrl.claims.audit import Audit
from vagentrl.claims.claim_filters import ClaimFilter
from vagentrl.claims.judge import Judge, Verdict
from vagentrl.claims.judgement import Fault, Judgement
from vagentrl.errors import JudgeError, PartError
from vagentrl.event_loops import SharedLoop, quick_switches
from vagentrl.types import Claim, Representation, State

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""Seconds that a judge may be late, after which its event loop counts as blocked."""

Asked = tuple[Verdict, float | None]
"""A verdict, and for a prediction the score of the claim that nothing changes."""


@dataclass
class Tally:
    """Counts of claims since the last report, and the seconds spent waiting for judges."""

    judged: int = 0
    failures: int = 0
    unreadable: int = 0
    filtered: int = 0
    penalised: int = 0
    audited: int = 0
    disagreements: int = 0
    audit_failures: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True)
class _Submitted:
    """A claim with its pending verdicts, or with the judgement of a filter.

    Attributes:
        claim: The claim.
        training: Whether the claim is one to learn from.
        first: The judge's pending verdict, or what a filter made of the claim.
        second: The pending verdict of the audit's judge, if the claim is audited.
        due: Time at which the judges must have answered, as of `time.monotonic`.
    """

    claim: Claim
    training: bool
    first: Future[Asked] | Judgement
    due: float
    second: Future[Asked] | None = None


class Judging:
    """Submits claims to judges in a background thread, and collects their judgements.

    Args:
        judge: Scores the claims.
        filters: Rules that a claim must pass before the judge sees it.
        audit: The second judge; None for none.
        skill: Whether judges also score the claim that nothing changes, for each prediction.
        timeout_s: Seconds that a judge may take for a claim, waiting in its queue included.
        system_prompt: The agent's system prompt, for filters.
    """

    def __init__(
        self,
        judge: Judge,
        filters: Sequence[ClaimFilter],
        audit: Audit | None,
        skill: bool,
        timeout_s: float,
        system_prompt: str = "",
    ) -> None:
        self.judge = judge
        self.filters = filters
        self.audit = audit
        self.skill = skill
        self.timeout_s = timeout_s
        self.system_prompt = system_prompt
        self._judges = [judge] if audit is None else [judge, audit.judge]
        self._loop = SharedLoop("judge")
        self._open = ExitStack()
        self._open.enter_context(quick_switches())
        self._submitted: dict[int, _Submitted] = {}

    def probe(self) -> None:
        """Ask every judge's endpoint once.

        Raises:
            JudgeError: When one does not answer.
        """
        for judge in self._judges:
            try:
                self._loop.submit(judge.probe()).result(self.timeout_s + GRACE_S)
            except TimeoutError:
                raise JudgeError(
                    f"{type(judge).__name__} did not answer a first question within "
                    f"{self.timeout_s:g} s; is its endpoint running? Raise timeout_s if it is slow"
                ) from None

    def close(self) -> None:
        """Close the judges and end the thread."""
        for judge in self._judges:
            try:
                self._loop.submit(judge.close()).result(self.timeout_s)
            except Exception as error:  # the boundary: the run is over, and its result counts
                log.warning("%s.close failed: %r", type(judge).__name__, error)
        self._loop.close()
        self._open.close()

    # ------------------------------------------------------------------------------- submitting

    def submit(self, claim: Claim, claims: Sequence[Claim], *, training: bool) -> None:
        """Filter a claim, and submit it to the judge.

        Args:
            claim: The claim.
            claims: All claims of its turn.
            training: Whether the claim is one to learn from.
        """
        first = self._filtered(claim, claims) or self._loop.submit(self._ask(self.judge, claim))
        due = time.monotonic() + self.timeout_s
        self._submitted[id(claim)] = _Submitted(claim, training, first, due)

    def submit_audit(self, claim: Claim, *occurrence: int | str) -> None:
        """Submit a claim to the second judge if it is drawn; a second call has no effect."""
        submitted = self._submitted.get(id(claim))
        if self.audit is None or submitted is None or submitted.second is not None:
            return
        judged = submitted.training and isinstance(submitted.first, Future)
        if judged and self.audit.samples(claim, *occurrence):
            second = self._loop.submit(self._ask(self.audit.judge, claim))
            due = time.monotonic() + self.timeout_s
            self._submitted[id(claim)] = replace(submitted, second=second, due=due)

    def _filtered(self, claim: Claim, claims: Sequence[Claim]) -> Judgement | None:
        for rule in self.filters:
            name = type(rule).__name__
            try:
                problem = rule.problem(claim, claims, self.system_prompt)
            except Exception as error:  # the boundary: a filter reads what an agent wrote
                text = f"{name} failed: {type(error).__name__}: {error}"
                return Judgement(claim, failure=text, fault="judge")
            if problem:
                return Judgement(claim, Verdict(0.0, f"{name}: {problem}"), filtered=True)
        return None

    async def _ask(self, judge: Judge, claim: Claim) -> Asked:
        async with asyncio.timeout(self.timeout_s):
            if not self.skill or claim.kind != "prediction" or claim.before is None:
                return await judge(claim), None
            if claim.before == claim.state:
                return await judge(claim), 1.0
            return await asyncio.gather(judge(claim), _nothing_changes(judge, claim, claim.before))

    # --------------------------------------------------------------------------------- settling

    def settle(self, claims: Sequence[Claim], tally: Tally) -> list[Judgement]:
        """Wait for the verdicts on these claims; others may be of episodes that are in play.

        Raises:
            PartError: When a judge returned something that is no verdict.
        """
        started = time.perf_counter()
        try:
            return [self._judgement(self._submitted.pop(id(claim)), tally) for claim in claims]
        finally:
            tally.waited_s += time.perf_counter() - started

    def drop(self, claims: Sequence[Claim]) -> None:
        """Cancel the verdicts on claims of a failed episode in training; nobody will ask for
        them."""
        for claim in claims:
            submitted = self._submitted.get(id(claim))
            if submitted is None or not submitted.training:
                continue
            del self._submitted[id(claim)]
            for pending in (submitted.first, submitted.second):
                if isinstance(pending, Future):
                    pending.cancel()

    def _judgement(self, submitted: _Submitted, tally: Tally) -> Judgement:
        """Wait for the verdicts on a claim, and count what came of them."""
        if isinstance(submitted.first, Judgement):
            tally.filtered += submitted.first.filtered
            tally.failures += not submitted.first.filtered
            return submitted.first
        judgement = self._first(submitted.claim, submitted.first, submitted.due)
        tally.judged += judgement.verdict is not None
        tally.unreadable += judgement.fault == "claim"
        tally.failures += judgement.fault in ("judge", "transport")
        if self.audit is None or submitted.second is None:
            return judgement
        second = self._first(submitted.claim, submitted.second, submitted.due)
        if second.fault == "transport":
            log.warning("the audit failed on a claim: %s", second.failure)
            tally.audit_failures += 1
            return judgement
        verdict = second.verdict or Verdict(0.0, second.failure or "")
        judgement = replace(judgement, second=verdict, second_baseline=second.baseline)
        tally.audited += 1
        tally.disagreements += self.audit.disagrees(judgement)
        return judgement

    def _first(self, claim: Claim, pending: Future[Asked], due: float) -> Judgement:
        """The judgement of one judge."""
        try:
            verdict, baseline = pending.result(max(0.0, due - time.monotonic()) + GRACE_S)
            return Judgement(claim, verdict, baseline=baseline)
        except PartError:  # it would fail on every claim
            raise
        except JudgeError as error:
            fault: Fault = "claim" if error.caused_by_claim else "transport"
            return Judgement(claim, failure=_named(error), fault=fault)
        except TimeoutError:
            pending.cancel()
            text = f"no verdict within {self.timeout_s:g} s (timeout_s)"
            return Judgement(claim, failure=text, fault="transport")
        except OSError as error:
            return Judgement(claim, failure=_named(error), fault="transport")
        except Exception as error:  # the boundary: a judge that fails is counted, not fatal
            return Judgement(claim, failure=_named(error), fault="judge")


async def _nothing_changes(judge: Judge, claim: Claim, before: State) -> float:
    """The judge's score of the claim that nothing changes; no failure of it is the agent's.

    The words of a state may place things relative to each other, and the agent may repeat the same
    state in absolute positions, of which more stay true. So words are compared as JSON too.
    """
    forms: list[Representation] = [claim.representation]
    if claim.representation == "natural" and before.structured:
        forms.append("structured")
    same = [replace(claim, representation=f, text=getattr(before, f)) for f in forms]
    scores = await asyncio.gather(*(judge(each) for each in same), return_exceptions=True)
    known = [verdict.score for verdict in scores if isinstance(verdict, Verdict)]
    if not known:
        raise JudgeError(f"there is no score for the claim that nothing changes: {scores[0]!r}")
    return max(known)


def counters(judge: Judge) -> dict[str, Any]:
    """The judge's own counters; none where they cannot be had."""
    try:
        return dict(judge.metrics())
    except Exception as error:  # the boundary: counting must not end a run
        log.warning("%s.metrics failed: %r", type(judge).__name__, error)
        return {}


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
