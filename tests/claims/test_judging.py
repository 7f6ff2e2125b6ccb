"""Judges that are silent, broken or dead cost their claims, and never the run."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.claims.claims import claim, judgement
from vagentrl.chat.endpoint import RateLimiter
from vagentrl.claims import Audit, JudgementLog
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.claims.judging import Judging, Tally, counters
from vagentrl.errors import JudgeError
from vagentrl.types import State


class Scripted(Judge):
    """Does what a function says.

    Args:
        act: Called with the claim; what it returns is the verdict, and what it raises is raised.
        name: Any setting.
    """

    def __init__(self, act: Callable[[Claim], Any] = lambda claim: 1.0, name: str = "") -> None:
        self.act = act

    async def judge(self, claim: Claim) -> Verdict | float:
        answer = self.act(claim)
        return await answer if asyncio.iscoroutine(answer) else answer


def fails(error: Exception) -> Callable[[Claim], Any]:
    def act(claim: Claim) -> Any:
        raise error

    return act


def settle(judge: Judge, *claims: Claim, **settings: Any) -> tuple[list[Judgement], Tally]:
    chosen = {"filters": (), "audit": None, "skill": True, "timeout_s": 5.0, **settings}
    judging, tally = Judging(judge, **chosen), Tally()
    try:
        for each in claims:
            judging.submit(each, claims, training=True)
            judging.submit_audit(each, 0)
        return judging.settle(claims, tally), tally
    finally:
        judging.close()


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (JudgeError("no connection"), "transport"),
        (JudgeError("refused", caused_by_claim=True), "claim"),
        (ConnectionResetError(), "transport"),
        (TimeoutError(), "transport"),
        (RecursionError("too deep"), "judge"),
        (Unpicklable(1, 2), "judge"),
    ],
)
def test_a_failure_has_a_cause(error: Exception, fault: str):
    [judged], tally = settle(Scripted(fails(error)), claim("a"))
    assert (judged.verdict, judged.fault) == (None, fault)
    assert (tally.failures, tally.unreadable) == (int(fault != "claim"), int(fault == "claim"))


def test_a_judge_that_never_answers_is_waited_for_once_for_all_claims():
    silent = Scripted(lambda claim: asyncio.sleep(3600))
    started = time.monotonic()
    judged, tally = settle(silent, *(claim(str(n)) for n in range(20)), timeout_s=0.2)
    assert time.monotonic() - started < 20  # not 20 times the limit and its grace
    assert tally.failures == 20 and {each.fault for each in judged} == {"transport"}


def test_a_score_alone_is_a_verdict_and_other_values_are_not():
    [judged], _ = settle(Scripted(lambda claim: 0.25), claim("a"))
    assert judged.verdict == Verdict(0.25)
    [judged], _ = settle(Scripted(lambda claim: 25), claim("a"))
    assert judged.verdict is None and "from 0 to 1" in (judged.failure or "")


def test_two_settings_of_a_judge_have_two_identities():
    one, same, other = (Scripted(name=name) for name in ("a", "a", "b"))
    assert "name='a'" in one.identity()
    assert one.identity() == same.identity() != other.identity()


def test_nothing_changes_is_judged_beside_a_prediction_and_its_failure_is_not_the_agents():
    before, after = State("x 1", '{"x":1}', ""), State("x 2", '{"x":2}', "")
    predicted = Claim("prediction", "x 2", "natural", after, before=before)

    def exact(claim: Claim) -> float:
        return float(claim.text == claim.truth)

    [judged], _ = settle(Scripted(exact), predicted)
    assert (judged.verdict, judged.baseline) == (Verdict(1.0), 0.0)
    still = Claim("prediction", "x 1", "natural", before, before=before)
    [judged], _ = settle(Scripted(exact), still)
    assert judged.baseline == 1.0

    def refuses(claim: Claim) -> float:
        if claim.text != "x 2":
            raise JudgeError("refused", caused_by_claim=True)
        return 1.0

    [judged], _ = settle(Scripted(refuses), predicted)
    assert judged.fault == "transport"


def test_a_second_judge_that_cannot_read_a_claim_finds_it_wrong():
    refusing = Scripted(fails(JudgeError("refused", caused_by_claim=True)))
    dead = Scripted(fails(JudgeError("no connection")))
    [judged], tally = settle(Scripted(), claim("a"), audit=Audit(refusing, share=1.0))
    assert judged.second is not None and judged.second.score == 0 and tally.audited == 1
    [judged], tally = settle(Scripted(), claim("a"), audit=Audit(dead, share=1.0))
    assert judged.second is None and (tally.audited, tally.audit_failures) == (0, 1)


def test_counting_does_not_end_a_run():
    class Miscounts(Scripted):
        def metrics(self) -> dict[str, float]:
            raise ZeroDivisionError

    assert counters(Miscounts()) == {}


def test_a_log_that_cannot_be_written_is_left_out_after_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "judgements.jsonl").mkdir()  # not writable as a file, for root too
    log = JudgementLog(share=1.0)
    for _ in range(2):
        log.write(tmp_path, {}, [(judgement("x", 1.0), False)])
    assert caplog.text.count("judgements are not written") == 1


def test_cancelled_waiters_give_their_times_back():
    async def play() -> float:
        limiter = RateLimiter(per_minute=60)  # one in a second
        await limiter.wait()
        waiting = [asyncio.create_task(limiter.wait()) for _ in range(60)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return limiter._take(time.monotonic()) - time.monotonic()

    assert asyncio.run(play()) < 2  # not after 60 seconds
