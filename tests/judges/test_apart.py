import asyncio
import os
import pickle

import pytest

from tests.chat_server import says, serving
from tests.judges.models import ScriptedJudge, claim
from vagentrl.chat import OpenAIChat
from vagentrl.claims.judge import Judge, Verdict
from vagentrl.errors import JudgeError
from vagentrl_judges.apart import Apart
from vagentrl_judges.yes_no import YesNo


def ask(judge: Judge, *texts: str) -> list[Verdict | float | BaseException]:
    async def together() -> list[Verdict | float | BaseException]:
        judging = (judge.judge(claim(text)) for text in texts)
        return await asyncio.gather(*judging, return_exceptions=True)

    return asyncio.run(together())


def test_verdicts_and_failures_come_from_another_process():
    judge = Apart(ScriptedJudge())
    verdict, failed, broken = ask(judge, "who are you", "fail", "break")
    assert isinstance(verdict, Verdict)
    assert int(verdict.reason) != os.getpid()
    assert (type(failed), str(failed)) == (JudgeError, "it fails here")
    assert (type(broken), str(broken)) == (JudgeError, "ValueError in the judge: it breaks here")
    assert judge.metrics() == {"asked": 3, "restarts": 0}
    assert judge.identity() == ScriptedJudge().identity()
    [again] = ask(judge, "who are you")  # called from another event loop
    assert again == verdict


def test_an_error_that_cannot_be_pickled_still_arrives():
    [broken, verdict] = ask(Apart(ScriptedJudge()), "break with a lock", "fine")
    assert isinstance(broken, JudgeError) and "RuntimeError in the judge" in str(broken)
    assert isinstance(verdict, Verdict)


def test_a_closed_judge_has_no_process_and_can_be_asked_again():
    judge = Apart(ScriptedJudge())
    ask(judge, "one")
    asyncio.run(judge.close())
    asyncio.run(judge.close())
    assert judge.metrics() == {"asked": 1, "restarts": 0}
    ask(judge, "two")
    assert judge.metrics() == {"asked": 2, "restarts": 0}


def test_many_claims_are_judged_at_a_time():
    verdicts = ask(
        Apart(ScriptedJudge()), *["wait for twenty"] * 20
    )  # none returns before all 20 wait
    assert all(isinstance(verdict, Verdict) for verdict in verdicts)


def test_when_the_process_dies_its_claims_fail_and_the_next_claim_starts_another():
    judge = Apart(ScriptedJudge())
    outcomes = ask(judge, "wait for twenty", "die")
    for outcome in outcomes:
        with pytest.raises(JudgeError, match="ended with exit code 3 before the verdict"):
            raise outcome if isinstance(outcome, BaseException) else AssertionError
    [verdict] = ask(judge, "who are you")
    assert isinstance(verdict, Verdict)
    assert judge.metrics()["restarts"] == 1


def test_metrics_include_those_of_processes_that_died():
    judge = Apart(ScriptedJudge())
    ask(judge, "a")
    ask(judge, "die")
    ask(judge, "b", "c")
    assert judge.metrics() == {"asked": 3, "restarts": 1}


def test_a_judge_that_asks_an_endpoint_runs_in_a_process_and_so_does_its_copy():
    with serving(says("Who knows?")) as (server, url):
        judge = Apart(YesNo(OpenAIChat("fake", url), repeats=1))
        for one in (judge, pickle.loads(pickle.dumps(judge))):
            [failed] = ask(one, "a")
            with pytest.raises(JudgeError, match="no answer from 2 replies"):
                raise failed if isinstance(failed, BaseException) else AssertionError
            assert one.metrics()["requests"] == 2
    assert len(server.requests) == 4
