"""The real server for what it says, and one of straw for what goes wrong."""

import asyncio
import json
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
from vagentrl.engine import Generation
from vagentrl.engines import VLLMServerEngine
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm import base
from vagentrl.engines.vllm import server as module
from vagentrl.engines.vllm.server import server_command
from vagentrl.errors import ConfigError, EngineError
from vagentrl.models.load import load_policy
from vagentrl.models.lora import LoRA


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lora", [None, LoRA(rank=4)], ids=["weights", "adapter"])
def test_a_server_replies_as_the_actor_would_before_and_after_an_update(lora: LoRA | None):
    engine = VLLMServerEngine(
        kv_cache_gb=0.125, options={"enforce_eager": True, "max_num_seqs": 32}
    )
    engine.prepare(renderer(IMAGES).vocabulary(CONTEXT))
    policy = load_policy(IMAGES, lora=lora)
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
        assert replies[0] != replies[1]
        assert engine.sampled_tokens == sum(
            len(reply.reply_ids) for version in replies for reply in version
        )
        assert engine.process is not None
        assert running_in_group(engine.process.pid)
        engine.end_server()
        given_up = time.monotonic() + 10
        while running_in_group(engine.process.pid):  # nor may any of its workers stay
            assert time.monotonic() < given_up
            time.sleep(0.05)
        engine.patience_s = 0.5
        with pytest.raises(EngineError, match=r"has not answered for \d+ s"):
            ask(engine, requests[0])
    finally:
        engine.end_server()


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
        version: Of the weights, as a vLLM server keeps it.
        down: How many more requests find it away (answered with 503).
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.version = "default"
        self.down = 0
        self.reply: dict[str, Any] = {}
        self.refuse = ""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if self.down > 0:
            self.down -= 1
            if self.down == 0:
                self.version = "default"  # it comes back without weights
            return 503, {"error": "EngineDeadError"}
        self.calls.append(path)
        if path == "/inference/v1/generate":
            return (400, {"error": self.refuse}) if self.refuse else (200, self.reply)
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        return 200, {"results": [{"name": "some.weight"}]}


@contextmanager
def running(straw: Straw) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
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
    policy, vocabulary = load_policy(TEXT), renderer(TEXT).vocabulary(CONTEXT)
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
        "/health", "/collective_rpc", "/reset_prefix_cache", "/reset_mm_cache",
        "/reset_encoder_cache", "/update_weight_version", "/inference/v1/generate",
    ]  # fmt: skip
    assert engine.policy_version == 0
    assert engine.canary_gap < 1e-4


def test_a_server_that_was_away_gets_the_weights_again_and_no_request_is_lost(straw):
    server, engine = straw
    server.calls.clear()
    server.down = 6
    replies = ask(engine, *(request_of(TEXT, session) for session in range(4)))
    assert len(replies) == 4
    assert engine.restarts == 1
    assert server.calls.count("/collective_rpc") == 1
    assert server.calls.index("/collective_rpc") < server.calls.index("/inference/v1/generate")


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
    with pytest.raises(EngineError, match="Start it again and resume the run"):
        ask(engine, request_of(TEXT, 0))


def test_what_the_server_refuses_is_not_asked_again(straw):
    server, engine = straw
    server.refuse = "the prompt is too long"
    server.calls.clear()
    with pytest.raises(EngineError, match=r"refused /inference/v1/generate.*too long"):
        ask(engine, request_of(TEXT, 0))
    assert server.calls == ["/inference/v1/generate"]


def test_other_weights_than_the_actors_stop_the_run_and_the_tensor_is_named(straw):
    _, engine = straw
    with pytest.raises(EngineError, match=r"first tensor that differs is some\.weight"):
        engine.update_weights(changed(load_policy(TEXT)), 1)


def test_a_server_with_weights_of_its_own_is_not_given_any(straw):
    server, engine = straw
    server.calls.clear()
    fixed = VLLMServerEngine(engine.url, push=False)
    fixed.prepare(renderer(TEXT).vocabulary(CONTEXT))
    fixed.update_weights(load_policy(TEXT), 0)
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
