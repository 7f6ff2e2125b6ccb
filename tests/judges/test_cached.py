import asyncio
import copy
import json
import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chat_server import Answer, Request, says, serving
from tests.judges.models import ScriptedChat, claim
from vagentrl.chat import OpenAIChat
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl_judges.cached import Cached, content_hash
from vagentrl_judges.yes_no import YesNo


class CountingJudge(Judge):
    """Gives a score of 0.25 after a short delay and counts how often it was asked.

    Attributes:
        fails: Number of further claims at which it fails.
    """

    def __init__(self, name: str = "counting", fails: int = 0) -> None:
        self.name = name
        self.fails = fails
        self.asked = 0

    def identity(self) -> str:
        return self.name

    async def judge(self, claim: Claim) -> Verdict:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.fails > 0:
            self.fails -= 1
            raise JudgeError("not now")
        return Verdict(0.25, f"I was asked {claim.text!r}")

    def metrics(self) -> dict[str, float]:
        return {"asked": self.asked}


def ask(judge: Judge, *claims: Claim) -> list[Verdict | float | BaseException]:
    async def together() -> list[Verdict | float | BaseException]:
        return await asyncio.gather(*map(judge.judge, claims), return_exceptions=True)

    return asyncio.run(together())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_claim_that_was_judged_is_not_judged_again(tmp_path: Path):
    inner = CountingJudge()
    first = ask(Cached(inner, str(tmp_path)), claim("a"), claim("b"))
    again = Cached(inner, str(tmp_path))  # like another run
    assert ask(again, claim("b"), claim("a"), claim("c"))[:2] == first[::-1]
    assert inner.asked == 3
    assert again.metrics() == {"asked": 3, "hits": 2, "misses": 1, "unwritten": 0}
    assert again.identity() == inner.identity()
    assert len(files(tmp_path)) == 3


def test_concurrent_requests_with_the_same_claim_ask_the_judge_once(tmp_path: Path):
    inner = CountingJudge()
    judge = Cached(inner, str(tmp_path))
    assert ask(judge, *[claim("a")] * 20) == [Verdict(0.25, "I was asked 'a'")] * 20
    assert (inner.asked, judge.hits, judge.misses) == (1, 19, 1)


def test_a_failure_is_not_kept_and_is_raised_in_every_waiting_request(tmp_path: Path):
    inner = CountingJudge(fails=1)
    judge = Cached(inner, str(tmp_path))
    failed = ask(judge, claim("a"), claim("a"))
    assert [str(error) for error in failed] == ["not now"] * 2
    assert files(tmp_path) == []
    assert ask(judge, claim("a")) == [Verdict(0.25, "I was asked 'a'")]


def test_cancelling_one_request_does_not_cancel_others_with_the_same_claim(tmp_path: Path):
    async def two(judge: Judge) -> Verdict | float:
        impatient = asyncio.create_task(judge.judge(claim("a")))
        patient = asyncio.create_task(judge.judge(claim("a")))
        await asyncio.sleep(0.005)
        impatient.cancel()
        return await patient

    inner = CountingJudge()
    verdict = asyncio.run(two(Cached(inner, str(tmp_path))))
    assert isinstance(verdict, Verdict)
    assert verdict.score == 0.25
    assert inner.asked == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, text="b"),
        lambda one: replace(one, kind="prediction"),
        lambda one: replace(one, representation="symbolic"),
        lambda one: replace(one, rubric="another"),
        lambda one: replace(one, state=replace(one.state, natural="elsewhere")),
        lambda one: replace(one, state=replace(one.state, structured="{}")),
        lambda one: replace(one, state=replace(one.state, symbolic="#")),
    ],
)
def test_the_hash_depends_on_every_field_of_a_claim(change: Callable[[Claim], Claim]):
    one = claim("a")
    assert content_hash("judge", one) == content_hash("judge", claim("a"))
    assert content_hash("judge", one) != content_hash("judge", change(one))
    assert content_hash("judge", one) != content_hash("another", one)


def test_verdicts_of_another_prompt_or_model_are_not_reused(tmp_path: Path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("$truth $claim $code: ANSWER $code: NO?")
    model = ScriptedChat(lambda text: "ANSWER " + text.split("ANSWER ")[1][:8] + ": NO")
    folder = str(tmp_path / "cache")
    for judge in (
        YesNo(model),
        YesNo(model, str(prompt)),
        YesNo(ScriptedChat(model.say, "another"), str(prompt)),
        YesNo(model, str(prompt)),
    ):
        cached = Cached(judge, folder)
        ask(cached, claim("a"))
    assert len(files(tmp_path / "cache")) == 3
    assert cached.hits == 1  # the fourth judge equals the second


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"score": 7, "reason": ""}', '{"score": NaN, "reason": ""}',
               '{"score": null, "reason": ""}', '{"reason": ""}', "\udcff", "[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_written_again(damage: str, tmp_path: Path):
    inner = CountingJudge()
    [right] = ask(Cached(inner, str(tmp_path)), claim("a"))
    [file] = files(tmp_path)
    file.write_bytes(damage.encode(errors="surrogateescape"))
    assert ask(Cached(inner, str(tmp_path)), claim("a")) == [right]
    assert inner.asked == 2
    assert json.loads(file.read_text())["score"] == 0.25
    assert ask(Cached(inner, str(tmp_path)), claim("a")) == [right]
    assert inner.asked == 2


def test_a_folder_that_cannot_be_written_does_not_prevent_verdicts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("in the way")
    judge = Cached(CountingJudge(), str(tmp_path / "file" / "folder"))
    assert len(set(ask(judge, claim("a"), claim("b")))) == 2
    assert judge.unwritten == 2
    assert caplog.text.count("verdicts are not kept") == 1
    with pytest.raises(ConfigError, match="which is a file"):
        Cached(CountingJudge(), str(tmp_path / "file"))


def test_a_copied_judge_uses_the_same_folder(tmp_path: Path):
    judge = Cached(CountingJudge(), str(tmp_path))
    ask(judge, claim("a"))
    for other in (copy.deepcopy(judge), pickle.loads(pickle.dumps(judge))):
        ask(other, claim("a"))
        assert other.hits == 1


def _write_many(folder: str) -> None:
    claims = [claim(str(number)) for number in range(40)]
    for _ in range(3):
        verdicts = ask(Cached(CountingJudge(), folder), *claims)
        assert verdicts == [Verdict(0.25, f"I was asked '{number}'") for number in range(40)]


def test_several_processes_share_a_folder(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(str(tmp_path),)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 3
    kept = files(tmp_path)
    assert len(kept) == 40  # and no temporary files
    assert all(json.loads(file.read_text())["score"] == 0.25 for file in kept)


def test_no_key_is_written_to_the_folder_even_if_the_server_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", key)

    def answer(request: Request) -> Answer:
        return says(f"I got {request.headers['authorization']}\n{request.prompt[-20:].strip()}")

    with serving(answer) as (server, url):
        judge = Cached(YesNo(OpenAIChat("fake", url)), str(tmp_path))
        [verdict] = ask(judge, claim("a"))
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert isinstance(verdict, Verdict)
    assert verdict.reason.startswith("I got Bearer [key]")
    [file] = files(tmp_path)
    assert key not in file.read_text() + file.name
