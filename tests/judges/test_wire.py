"""vLLM's own server, on the CPU, with a tiny model: the wire is real, and the judge is a fool."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from tests.engines.shipped import needs_vllm
from tests.judges.models import claim
from vagentrl.chat import OpenAIChat
from vagentrl.chat.endpoint import Prices
from vagentrl.errors import ChatError, JudgeError
from vagentrl.models.load import checkpoint_path
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.yes_no import YesNo

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(600)]

KEY = "sk-of-this-machine"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that wants a key, started as docs/judges.md says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(checkpoint_path("tiny-sokoban-text")), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--api-key", KEY),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(2**27), "--max-num-seqs", "8"),
    ]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=os.environ | quiet, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def _wait(health: str, server: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        try:
            httpx.get(health, timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)


def test_a_reply_comes_back_with_its_tokens(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = Sokoban(observation="text")
    chat = OpenAIChat("tiny", url, prices=Prices(prompt=1.0, reply=2.0))
    prompt = environment.reset(1).text

    async def both() -> None:
        for system in ("", "Push the box."):
            replies.append(await chat.complete(prompt, system=system, max_tokens=64))

    replies = []
    asyncio.run(both())
    asked = [{"role": "system", "content": "Push the box."}, {"role": "user", "content": prompt}]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path("tiny-sokoban-text"))
    for reply, messages in zip(replies, (asked[1:], asked), strict=True):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert reply.prompt_tokens == len(tokenizer.encode(text, add_special_tokens=False))
        assert "<answer>" in reply.text  # what it has learned to say of a room
        assert 0 < reply.reply_tokens <= 64
        assert reply.cost == pytest.approx((reply.prompt_tokens + 2 * reply.reply_tokens) / 1e6)
    assert chat.spent.prompt_tokens == sum(reply.prompt_tokens for reply in replies)
    assert (chat.spent.requests, chat.spent.unmetered) == (2, 0)


def test_a_model_that_cannot_judge_gives_no_verdict(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    judge = YesNo(OpenAIChat("tiny", url), max_tokens=64)
    with pytest.raises(JudgeError, match="YesNo got no"):
        asyncio.run(judge.judge(claim(rubric=Sokoban().rubric())))
    assert judge.metrics()["requests"] >= 1
    assert judge.metrics()["verdicts"] == 0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"model": "another"}, r"404 .*does not exist.*Check url, model"),
        ({"key_variable": "NO_SUCH_KEY"}, r"401 .*variable NO_SUCH_KEY, which is not set"),
        ({"extra_body": {"temperature": "hot"}}, r"400 .*temperature.*extra_body"),
    ],
)
def test_what_the_server_refuses_is_named(
    settings: dict[str, Any], match: str, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    given: dict[str, Any] = {"model": "tiny", "url": url}
    chat = OpenAIChat(**(given | settings))
    with pytest.raises(ChatError, match=match):
        asyncio.run(chat.complete("hello"))
    assert chat.spent.requests == 1
