"""The real server for what it says, and one of straw for what goes wrong."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

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
from vagentrl.engines.vllm import base
from vagentrl.engines.vllm import server as module
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
def test_a_server_replies_as_the_actor_would_before_and_after_an_update_and_its_end(
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
        monkeypatch.setattr(module, "PULSE_S", 1)
        monkeypatch.setattr(engine, "patience_s", 10)
        os.killpg(group, ends_by)
        assert ask(engine, *requests) == replies[-1]  # from another, started in its place
        assert engine.restarts == 1
        assert not running_in_group(group)
        group = server_group(engine)
        assert running_in_group(group)
        engine.end_server()
        given_up = time.monotonic() + 10
        while running_in_group(group):  # nor may any of its workers stay
            assert time.monotonic() < given_up
            time.sleep(0.05)
        engine.patience_s = 0.5
        with pytest.raises(EngineDead, match=r"has not answered for \d+ s"):
            ask(engine, requests[0])
    finally:
        engine.end_server()


def server_group(engine: VLLMServerEngine) -> int:
    assert engine._server is not None
    assert engine._server.process is not None
    leash = engine._server.process.pid
    return int(Path(f"/proc/{leash}/task/{leash}/children").read_text())


def running_in_group(group: int) -> list[str]:
    """Processes of a group that run, by /proc; not those that only wait to be counted as ended."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            stats.append(path.read_text().rpartition(")")[2].split())  # state, parent, group, ...
    return [state for state, _, number, *_ in stats if int(number) == group and state != "Z"]


# ---------------------------------------------------------------------------- a server of straw


class Straw:
    """Gives the replies it is told to; dies and comes back when it is told to.

    Attributes:
        calls: Paths in the order in which they were called.
        served: Versions of the weights that replies came from.
        version: Of the weights, as a vLLM server keeps it.
        reports: Whether it says which version that is.
        down: How many more requests find it away (answered with 503).
        held: How many times it keeps its prefix cache when it is to forget it.
        stalled: While set, it answers nothing.
        same: What it finds when it compares its weights with those of the file.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.served: list[str] = []
        self.version = "default"
        self.reports = True
        self.down = 0
        self.held = 0
        self.stalled = threading.Event()
        self.reply: dict[str, Any] = {}
        self.refuse = ""
        self.same = {"model.norm.weight": True}

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        while self.stalled.is_set():
            time.sleep(0.01)
        if self.down > 0:
            self.down -= 1
            if self.down == 0:
                self.version = "default"  # it comes back without weights
            return 503, {"error": "EngineDeadError"}
        self.calls.append(path)
        if path == "/inference/v1/generate":
            return self.generate(body)
        if path == "/reset_prefix_cache":
            self.held -= 1
            return 200, {"success": self.held < 0}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        return 200, {"results": [self.same]}

    def generate(self, body: Any) -> tuple[int, Any]:
        if self.refuse:
            return 400, {"error": self.refuse}
        self.served.append(self.version)
        span = {"version": self.version, "start": 0, "end": 16}
        [choice] = self.reply["choices"]
        versions = {"weight_versions": [span]} if self.reports else {}
        return 200, self.reply | {"choices": [choice | versions]}


@contextmanager
def running(straw: Straw) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            status, answer = straw.answer(self.path, body)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()


def as_json(reply: Generation) -> dict[str, Any]:
    content = [{"token_id": 0, "logprob": logprob} for logprob in reply.logprobs]
    choice = {
        "token_ids": list(reply.reply_ids),
        "logprobs": {"content": content},
        "finish_reason": reply.finish,
    }
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


@pytest.fixture
def straw(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Straw, VLLMServerEngine]]:
    """A server that answers the canary as it should, and an engine with its weights in it."""
    monkeypatch.setattr(base, "check_installed", lambda: None)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    policy, vocabulary = load_model(TEXT), renderer(TEXT).vocabulary(CONTEXT)
    canary = Canary(policy, vocabulary, 1e-3)
    straw = Straw()
    [right] = ask(reference_engine(TEXT, policy), canary.request)
    straw.reply = as_json(right)
    with running(straw) as url:
        engine = VLLMServerEngine(url, patience_s=5)
        engine.prepare(vocabulary)
        engine.update_weights(policy, 0)
        yield straw, engine


def test_an_update_hands_the_weights_over_and_clears_every_cache(straw):
    server, engine = straw
    assert server.calls == [
        "/health", "/weight_info", "/collective_rpc", "/reset_prefix_cache", "/reset_mm_cache",
        "/reset_encoder_cache", "/update_weight_version", "/inference/v1/generate",
        "/collective_rpc",
    ]  # fmt: skip
    assert engine.policy_version == 0
    assert engine.canary_gap < 1e-4


def test_blocks_that_are_still_held_are_asked_for_until_they_are_forgotten(straw):
    server, engine = straw
    server.calls.clear()
    server.held = 3
    engine.update_weights(load_model(TEXT), 1)
    assert server.calls.count("/reset_prefix_cache") == 4


def test_a_server_that_was_away_gets_the_weights_again_and_no_request_is_lost(straw):
    server, engine = straw
    server.calls.clear()
    server.down = 6
    replies = ask(engine, *(request_of(TEXT, session) for session in range(4)))
    assert len(replies) == 4
    assert engine.restarts == 1
    assert server.calls.count("/collective_rpc") == 1
    assert server.calls.index("/collective_rpc") < server.calls.index("/inference/v1/generate")


def test_a_server_that_was_started_anew_between_two_requests_is_noticed(straw):
    server, engine = straw
    server.version = "default"  # nothing failed
    server.served.clear()
    replies = ask(engine, *(request_of(TEXT, session) for session in range(4)))
    assert len(replies) == 4
    assert engine.restarts == 1
    ours = [version for version in server.served if version != "default"]
    assert ours == [server.version] * 4


def test_a_request_that_comes_while_the_server_is_away_waits_for_the_weights_too(straw):
    server, engine = straw
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


def test_a_server_that_loses_its_weights_during_an_update_gets_them_again(straw):
    server, engine = straw
    found = []

    def forgets(body: Any) -> tuple[int, Any]:
        if not found:
            found.append(server.version)
            server.version = "default"
        return Straw.generate(server, body)

    server.generate = forgets
    engine.update_weights(load_model(TEXT), 1)
    assert engine.restarts == 1
    assert server.version == found[0]


def test_a_server_that_does_not_say_which_weights_it_has_is_refused(straw):
    server, engine = straw
    server.reports = False
    with pytest.raises(EngineDead, match=r"does not say from which weights.*push to false"):
        ask(engine, request_of(TEXT, 0))


def test_a_reply_that_the_server_broke_off_is_asked_for_again(straw):
    server, engine = straw
    [choice] = server.reply["choices"]
    whole, broken = server.reply, server.reply | {"choices": [choice | {"finish_reason": "abort"}]}

    def once(body: Any) -> tuple[int, Any]:
        server.reply = whole if server.served else broken
        return Straw.generate(server, body)

    server.served.clear()
    server.generate = once
    [reply] = ask(engine, request_of(TEXT, 0))
    assert len(reply.reply_ids) == len(choice["token_ids"])
    assert len(server.served) == 2


def test_a_server_that_hangs_is_given_up_and_says_how_to_go_on(straw, monkeypatch):
    server, engine = straw
    monkeypatch.setattr(module, "PULSE_S", 0.05)
    monkeypatch.setattr(module, "CALL_S", 0.1)
    engine.patience_s = 0.5
    server.stalled.set()
    try:
        with pytest.raises(EngineDead, match=r"stopped to answer at all.*--ckpt_path"):
            ask(engine, request_of(TEXT, 0))
    finally:
        server.stalled.clear()


def test_a_server_that_hung_for_less_than_our_patience_answers_in_the_end(straw, monkeypatch):
    server, engine = straw
    monkeypatch.setattr(module, "PULSE_S", 0.02)
    monkeypatch.setattr(module, "CALL_S", 0.05)
    server.stalled.set()

    async def play() -> Generation:
        task = asyncio.create_task(engine.generate(request_of(TEXT, 0)))
        await asyncio.sleep(0.5)
        server.stalled.clear()
        return await task

    assert asyncio.run(play()).reply_ids


def test_a_collection_closes_its_connections(straw):
    _, engine = straw

    def sockets() -> int:
        paths = Path("/proc/self/fd").iterdir()
        return sum(os.path.islink(p) and "socket" in os.readlink(p) for p in paths)

    ask(engine, *(request_of(TEXT, session) for session in range(8)))
    before = sockets()
    for _ in range(4):
        ask(engine, *(request_of(TEXT, session) for session in range(8)))
    assert sockets() < before + 8


def test_a_server_that_was_busy_but_kept_its_weights_is_only_asked_again(straw):
    server, engine = straw
    kept = server.version
    server.calls.clear()
    server.down = 1
    ask_again = asyncio.run  # one request, so the only failure is its first try

    async def keep() -> Generation:
        task = asyncio.create_task(engine.generate(request_of(TEXT, 0)))
        while server.down:
            await asyncio.sleep(0.001)
        server.version = kept
        return await task

    assert ask_again(keep()).reply_ids
    assert engine.restarts == 0
    assert "/collective_rpc" not in server.calls


def test_a_server_that_stays_away_fails_the_episode_and_says_how_to_go_on(straw):
    server, engine = straw
    server.down, engine.patience_s = 10**6, 0.2
    with pytest.raises(EngineDead, match="Start it again and resume the run"):
        ask(engine, request_of(TEXT, 0))


def test_what_the_server_refuses_is_not_asked_again(straw):
    server, engine = straw
    server.refuse = "the prompt is too long"
    server.calls.clear()
    with pytest.raises(EngineError, match=r"refused /inference/v1/generate.*too long"):
        ask(engine, request_of(TEXT, 0))
    assert server.calls == ["/inference/v1/generate", "/weight_info"]


def test_a_prompt_at_which_the_server_fails_again_and_again_fails_alone(straw):
    server, engine = straw

    def fails_at_one(body: Any) -> tuple[int, Any]:
        bad = body["sampling_params"]["seed"] == 1
        return (500, {"error": "no such image"}) if bad else Straw.generate(server, body)

    server.generate = fails_at_one

    async def both() -> list[Any]:
        requests = (request_of(TEXT, session) for session in range(2))
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    good, bad = asyncio.run(both())
    assert isinstance(good, Generation)
    assert isinstance(bad, EngineError)
    assert "failed 4 times at one prompt" in str(bad)


def test_other_weights_than_the_actors_stop_the_run_and_the_tensor_is_named(straw):
    server, engine = straw
    server.same = {"model.norm.weight": False}
    with pytest.raises(EngineError, match=r"first tensor that differs is model\.norm\.weight"):
        engine.update_weights(changed(load_model(TEXT)), 1)


def test_a_server_with_weights_of_its_own_is_not_given_any(straw):
    server, engine = straw
    server.reports = False
    server.calls.clear()
    fixed = VLLMServerEngine(engine.url, push=False)
    fixed.prepare(renderer(TEXT).vocabulary(CONTEXT))
    fixed.update_weights(load_model(TEXT), 0)
    assert server.calls == ["/health", "/inference/v1/generate"]


def test_a_server_that_is_started_must_be_given_weights():
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
