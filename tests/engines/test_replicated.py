"""`ReplicatedEngine` samples the same replies as a single engine."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.shipped import (
    CONTEXT,
    IMAGES,
    TEXT,
    ask,
    changed,
    observation,
    reference_engine,
    renderer,
    request_of,
)
from vagentrl.contexts import FullHistory
from vagentrl.engines import ReplicatedEngine
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Sampling
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA
from vagentrl.rollout.conversation import Conversation


@pytest.fixture(scope="module")
def engine() -> Iterator[ReplicatedEngine]:
    engine = ReplicatedEngine(processes=2)
    engine.prepare(renderer(IMAGES).vocabulary(CONTEXT))
    engine.update_weights(load_model(IMAGES, freeze_vision=True), 0)
    yield engine
    engine.close()


async def three_turns(engine: Engine, session: int) -> list[Generation]:
    conversation = Conversation(renderer(IMAGES), FullHistory(), "Push the box.")
    replies = []
    for turn in range(3):
        conversation.ask(observation(IMAGES, 10 * session + turn))
        ids, images = tuple(conversation.ids), tuple(conversation.images)
        sampling = Sampling(max_tokens=12)
        request = GenerationRequest(session, ids, images, sampling, seed=7 * session + turn)
        replies.append(await engine.generate(request))
        conversation.reply(replies[-1].reply_ids)
    engine.release(session)
    return replies


def play(engine: Engine) -> list[Generation]:
    async def together() -> list[Generation]:
        episodes = await asyncio.gather(*(three_turns(engine, session) for session in range(5)))
        return [reply for episode in episodes for reply in episode]

    return asyncio.run(together())


def test_replies_equal_those_of_one_process_before_and_after_an_update(engine: ReplicatedEngine):
    policy, played = load_model(IMAGES, freeze_vision=True), []
    for version in range(2):
        engine.update_weights(policy, version)
        played.append(play(engine))
        wanted = play(reference_engine(IMAGES, policy))
        changed(policy)  # must not change the engine's copy
        assert {reply.policy_version for reply in played[-1]} == {version}
        for ours, theirs in zip(played[-1], wanted, strict=True):
            assert ours.reply_ids == theirs.reply_ids
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert [r.reply_ids for r in played[0]] != [r.reply_ids for r in played[1]]
    assert engine.reused_tokens > engine.prefilled_tokens  # earlier turns are cached
    assert engine.sampled_tokens == sum(len(reply.reply_ids) for reply in (*played[0], *played[1]))
    assert engine.busy_s > 0


def test_a_prompt_that_cannot_be_read_fails_alone(engine: ReplicatedEngine):
    async def both() -> list[Generation | BaseException]:
        bad = request_of(IMAGES, 0)
        bad = GenerationRequest(2, bad.prompt_ids * 20, (), bad.sampling, 0)  # in the same process
        requests = (request_of(IMAGES, 0), bad)
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    good, bad = asyncio.run(both())
    assert isinstance(good, Generation)
    assert isinstance(bad, EngineError)
    assert "leaves no room to reply" in str(bad)


def test_replies_come_from_the_adapted_policy_and_a_killed_process_is_reported():
    policy = changed(load_model(TEXT, lora=LoRA(rank=2)))
    engine = ReplicatedEngine(processes=1)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(policy, 0)
    requests = [request_of(TEXT, session) for session in range(2)]
    ours, theirs = ask(engine, *requests), ask(reference_engine(TEXT, policy), *requests)
    assert [reply.reply_ids for reply in ours] == [reply.reply_ids for reply in theirs]
    engine._processes[0].process.kill()
    engine._processes[0].process.join()
    with pytest.raises(EngineDead, match=r"sample-0 has ended \(exit code -9"):
        ask(engine, *requests)


def test_requests_before_the_first_weights_and_zero_processes_are_refused():
    with pytest.raises(EngineError, match="call update_weights first"):
        ask(ReplicatedEngine(processes=2), request_of(TEXT, 0))
    with pytest.raises(ConfigError, match="processes is 0; give at least 1"):
        ReplicatedEngine(processes=0)


def test_close_leaves_nothing_behind_and_new_weights_start_again():
    engine, policy = ReplicatedEngine(processes=1), load_model(TEXT)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))

    def running() -> set[Any]:  # the fixture's engine has processes, too
        threads = {thread for thread in threading.enumerate() if "sample" in thread.name}
        return threads | set(multiprocessing.active_children())

    before = running()
    request = request_of(TEXT, 0, max_tokens=4)
    replies = []
    for version in range(2):
        engine.update_weights(policy, version)
        replies += ask(engine, request)
        assert len(running()) == len(before) + 2
        engine.close()
        assert running() == before
    assert replies[0].reply_ids == replies[1].reply_ids


LEFT_OPEN = """
import atexit, multiprocessing, threading
from tests.engines.shipped import CONTEXT, TEXT, renderer
from vagentrl.engines import ReplicatedEngine
from vagentrl.models.load import load_model

def say():  # handlers run from the last to the first
    names = [thread.name for thread in threading.enumerate()]
    print("sample-0" in names, multiprocessing.active_children())

if __name__ == "__main__":
    atexit.register(say)
    engine = ReplicatedEngine(processes=1)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(load_model(TEXT), 0)
    assert "sample-0" in [thread.name for thread in threading.enumerate()]
"""


def test_a_program_that_leaves_an_engine_open_ends_as_it_should(tmp_path: Path):
    (tmp_path / "left_open.py").write_text(LEFT_OPEN)
    ended = subprocess.run(
        [sys.executable, "left_open.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[-2] == "False []"
