"""`VLLMServerEngine` with the real server, and with a fake server that fails on demand."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engines.fake_server import FakeServer, as_json, running
from tests.engines.shipped import (
    CONTEXT,
    IMAGES,
    TEXT,
    ask,
    changed,
    needs_vllm,
    reference_engine,
    renderer,
    request_of,
)
from vagentrl.engines import VLLMServerEngine
from vagentrl.engines.base import Generation
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm import base, client
from vagentrl.engines.vllm import server as module
from vagentrl.engines.vllm.client import VLLMClient
from vagentrl.engines.vllm.process import server_command
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("lora", "ends_by"),
    [(None, signal.SIGKILL), (LoRA(rank=4), signal.SIGSTOP)],
    ids=["weights-dies", "adapter-hangs"],
)
def test_replies_match_the_actors_across_an_update_and_a_server_crash(
    lora: LoRA | None, ends_by: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    engine = VLLMServerEngine(
        kv_cache_gb=0.125, options={"enforce_eager": True, "max_num_seqs": 32}
    )
    engine.prepare(renderer(IMAGES).vocabulary(CONTEXT))
    policy = load_model(IMAGES, lora=lora)
    requests = [request_of(IMAGES, session, temperature=0) for session in range(6)]
    replies = []
    try:
        for version in range(2):
            engine.update_weights(policy, version)
            assert engine.canary_gap < 5e-4
            replies.append(ask(engine, *requests))
            for one, two in zip(
                replies[-1], ask(reference_engine(IMAGES, policy), *requests), strict=True
            ):
                assert one.reply_ids == two.reply_ids
                assert one.logprobs == pytest.approx(two.logprobs, abs=2e-3)
            changed(policy)
        logprobs = [[reply.logprobs for reply in version] for version in replies]
        assert logprobs[0] != logprobs[1]
        assert [reply.policy_version for reply in replies[1]] == [1] * len(requests)
        assert engine.sampled_tokens == sum(
            len(reply.reply_ids) for version in replies for reply in version
        )
        group = server_group(engine)
        monkeypatch.setattr(client, "HEALTH_CHECK_S", 1)
        set_patience(engine, 10)
        os.killpg(group, ends_by)
        assert ask(engine, *requests) == replies[-1]  # from the restarted server
        assert engine.restarts == 1
        assert not running_in_group(group)
        group = server_group(engine)
        assert running_in_group(group)
        engine.end_server()
        given_up = time.monotonic() + 10
        while running_in_group(group):  # its workers must end too
            assert time.monotonic() < given_up
            time.sleep(0.05)
        engine.patience_s = 0.5
        with pytest.raises(EngineDead, match=r"has not answered for \d+ s"):
            ask(engine, requests[0])
    finally:
        engine.end_server()


def server_group(engine: VLLMServerEngine) -> int:
    return group_of(engine._server)


def group_of(server: VLLMClient) -> int:
    """Return the process group of a server that runs; its supervisor may just have begun."""
    assert server.process is not None
    assert server.process.process is not None
    supervisor = server.process.process.pid
    children, deadline = Path(f"/proc/{supervisor}/task/{supervisor}/children"), time.time() + 60
    while not (found := children.read_text()):
        assert time.time() < deadline
        time.sleep(0.1)
    return int(found)


def running_in_group(group: int) -> list[str]:
    """Return the states of a process group's processes, read from /proc, without zombies."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            stats.append(path.read_text().rpartition(")")[2].split())  # state, parent, group, ...
    return [state for state, _, number, *_ in stats if int(number) == group and state != "Z"]


def set_patience(engine: VLLMServerEngine, seconds: float) -> None:
    engine.patience_s = engine._server.patience_s = seconds


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeServer, VLLMServerEngine]]:
    """A fake server that passes the canary's check, and an engine that has pushed its weights."""
    monkeypatch.setattr(base, "check_installed", lambda: None)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    policy, vocabulary = load_model(TEXT), renderer(TEXT).vocabulary(CONTEXT)
    canary = Canary(policy, vocabulary, 1e-3)
    fake = FakeServer()
    [right] = ask(reference_engine(TEXT, policy), canary.request)
    fake.reply = as_json(right)
    with running(fake) as url:
        engine = VLLMServerEngine(url, patience_s=5)
        engine.prepare(vocabulary)
        engine.update_weights(policy, 0)
        yield fake, engine


def test_an_update_transfers_the_weights_and_clears_every_cache(fake):
    server, engine = fake
    assert server.calls == [
        "/health", "/weight_info", "/collective_rpc", "/reset_prefix_cache", "/reset_mm_cache",
        "/reset_encoder_cache", "/update_weight_version", "/inference/v1/generate",
        "/collective_rpc",
    ]  # fmt: skip
    assert engine.policy_version == 0
    assert engine.canary_gap < 1e-4


def test_resetting_the_prefix_cache_is_retried_while_blocks_are_in_use(fake):
    server, engine = fake
    server.calls.clear()
    server.held = 3
    engine.update_weights(load_model(TEXT), 1)
    assert server.calls.count("/reset_prefix_cache") == 4


def test_a_server_that_was_away_gets_the_weights_again_and_no_request_is_lost(fake):
    server, engine = fake
    server.calls.clear()
    server.down = 6
    replies = ask(engine, *(request_of(TEXT, session) for session in range(4)))
    assert len(replies) == 4
    assert engine.restarts == 1
    assert server.calls.count("/collective_rpc") == 1
    assert server.calls.index("/collective_rpc") < server.calls.index("/inference/v1/generate")


def test_a_server_that_was_started_anew_between_two_requests_is_noticed(fake):
    server, engine = fake
    server.version = "default"  # restarted, although no request has failed
    server.served.clear()
    replies = ask(engine, *(request_of(TEXT, session) for session in range(4)))
    assert len(replies) == 4
    assert engine.restarts == 1
    ours = [version for version in server.served if version != "default"]
    assert ours == [server.version] * 4


def test_a_request_that_comes_while_the_server_is_away_waits_for_the_weights_too(fake):
    server, engine = fake
    server.served.clear()
    server.down = 1

    async def play() -> None:
        first = asyncio.create_task(engine.generate(request_of(TEXT, 0)))
        while server.down:
            await asyncio.sleep(0.001)
        await asyncio.gather(first, engine.generate(request_of(TEXT, 1)))

    asyncio.run(play())
    assert engine.restarts == 1
    assert [v for v in server.served if v != "default"] == [server.version] * 2


def test_a_server_that_loses_its_weights_during_an_update_gets_them_again(fake):
    server, engine = fake
    found = []

    def forgets(body: Any) -> tuple[int, Any]:
        if not found:
            found.append(server.version)
            server.version = "default"
        return FakeServer.generate(server, body)

    server.generate = forgets
    engine.update_weights(load_model(TEXT), 1)
    assert engine.restarts == 1
    assert server.version == found[0]


def test_a_server_that_does_not_say_which_weights_it_has_is_refused(fake):
    server, engine = fake
    server.reports = False
    with pytest.raises(
        EngineDead, match=r"does not report the version of its weights.*push set to false"
    ):
        ask(engine, request_of(TEXT, 0))


def test_a_request_whose_reply_was_aborted_is_sent_again(fake):
    server, engine = fake
    [choice] = server.reply["choices"]
    whole, broken = server.reply, server.reply | {"choices": [choice | {"finish_reason": "abort"}]}

    def once(body: Any) -> tuple[int, Any]:
        server.reply = whole if server.served else broken
        return FakeServer.generate(server, body)

    server.served.clear()
    server.generate = once
    [reply] = ask(engine, request_of(TEXT, 0))
    assert len(reply.reply_ids) == len(choice["token_ids"])
    assert len(server.served) == 2


def test_a_server_that_hangs_fails_requests_and_the_error_says_how_to_resume(fake, monkeypatch):
    server, engine = fake
    monkeypatch.setattr(client, "HEALTH_CHECK_S", 0.05)
    monkeypatch.setattr(client, "CALL_S", 0.1)
    set_patience(engine, 0.5)
    server.stalled.set()
    try:
        with pytest.raises(EngineDead, match=r"no longer answers anything.*--ckpt_path"):
            ask(engine, request_of(TEXT, 0))
    finally:
        server.stalled.clear()


def test_a_server_that_hangs_for_less_than_patience_s_loses_no_request(fake, monkeypatch):
    server, engine = fake
    monkeypatch.setattr(client, "HEALTH_CHECK_S", 0.02)
    monkeypatch.setattr(client, "CALL_S", 0.05)
    server.stalled.set()

    async def play() -> Generation:
        task = asyncio.create_task(engine.generate(request_of(TEXT, 0)))
        await asyncio.sleep(0.5)
        server.stalled.clear()
        return await task

    assert asyncio.run(play()).reply_ids


def test_a_collection_closes_its_connections(fake):
    _, engine = fake

    def sockets() -> int:
        paths = Path("/proc/self/fd").iterdir()
        return sum(os.path.islink(p) and "socket" in os.readlink(p) for p in paths)

    ask(engine, *(request_of(TEXT, session) for session in range(8)))
    before = sockets()
    for _ in range(4):
        ask(engine, *(request_of(TEXT, session) for session in range(8)))
    assert sockets() < before + 8


def test_a_server_that_failed_but_kept_its_weights_does_not_get_them_again(fake):
    server, engine = fake
    kept = server.version
    server.calls.clear()
    server.down = 1

    async def keep() -> Generation:
        task = asyncio.create_task(engine.generate(request_of(TEXT, 0)))
        while server.down:
            await asyncio.sleep(0.001)
        server.version = kept
        return await task

    assert asyncio.run(keep()).reply_ids
    assert engine.restarts == 0
    assert "/collective_rpc" not in server.calls


def test_a_server_that_stays_away_raises_engine_dead_and_says_how_to_resume(fake):
    server, engine = fake
    server.down, engine.patience_s = 10**6, 0.2
    with pytest.raises(EngineDead, match="Start it again and resume the run"):
        ask(engine, request_of(TEXT, 0))


def test_a_refused_request_is_not_sent_again(fake):
    server, engine = fake
    server.refuse = "the prompt is too long"
    server.calls.clear()
    with pytest.raises(EngineError, match=r"refused /inference/v1/generate.*too long"):
        ask(engine, request_of(TEXT, 0))
    assert server.calls == ["/inference/v1/generate", "/weight_info"]


def test_a_prompt_at_which_the_server_fails_repeatedly_does_not_fail_others(fake):
    server, engine = fake

    def fails_at_one(body: Any) -> tuple[int, Any]:
        bad = body["sampling_params"]["seed"] == 1
        return (500, {"error": "no such image"}) if bad else FakeServer.generate(server, body)

    server.generate = fails_at_one

    async def both() -> list[Any]:
        requests = (request_of(TEXT, session) for session in range(2))
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    good, bad = asyncio.run(both())
    assert isinstance(good, Generation)
    assert isinstance(bad, EngineError)
    assert "failed 4 times at one prompt" in str(bad)


def test_weights_that_differ_from_the_actors_are_an_error_that_names_the_tensor(fake):
    server, engine = fake
    server.same = {"model.norm.weight": False}
    with pytest.raises(EngineError, match=r"first tensor that differs is model\.norm\.weight"):
        engine.update_weights(changed(load_model(TEXT)), 1)


def test_without_push_no_weights_are_sent(fake):
    server, engine = fake
    server.reports = False
    server.calls.clear()
    fixed = VLLMServerEngine(engine.url, push=False)
    fixed.prepare(renderer(TEXT).vocabulary(CONTEXT))
    fixed.update_weights(load_model(TEXT), 0)
    assert server.calls == ["/health", "/inference/v1/generate"]


def test_push_false_without_a_url_is_refused():
    with pytest.raises(ConfigError, match="push is false and url is not set"):
        VLLMServerEngine(push=False)


def test_settings_become_flags_of_the_command_line():
    command, environment = server_command(
        {"model": "m", "enforce_eager": True, "mm_device_do_normalize": False, "seed": 0,
         "logits_processors": ["a:B", "c:D"], "additional_config": {"x": [1]}},
        port=8000,
    )  # fmt: skip
    text = " ".join(command)
    for flag in (
        "--model m", "--enforce-eager", "--no-mm-device-do-normalize", "--seed 0",
        "--logits-processors a:B c:D", '--additional-config {"x": [1]}', "--port 8000",
    ):  # fmt: skip
        assert flag in text
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
