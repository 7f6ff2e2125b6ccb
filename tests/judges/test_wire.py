"""Chat models and judges against a real vLLM server on the CPU, with a tiny policy as the model."""

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
    """Start a server that requires a key, as in docs/judges.md, and return its address."""
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


def test_a_reply_has_its_token_counts_and_its_cost(url: str, monkeypatch: pytest.MonkeyPatch):
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
        assert "<answer>" in reply.text  # the policy was trained to write this
        assert 0 < reply.reply_tokens <= 64
        assert reply.cost == pytest.approx((reply.prompt_tokens + 2 * reply.reply_tokens) / 1e6)
    assert chat.usage.prompt_tokens == sum(reply.prompt_tokens for reply in replies)
    assert (chat.usage.requests, chat.usage.unmetered) == (2, 0)


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
def test_a_refused_request_is_an_error_with_the_cause(
    settings: dict[str, Any], match: str, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    given: dict[str, Any] = {"model": "tiny", "url": url}
    chat = OpenAIChat(**(given | settings))
    with pytest.raises(ChatError, match=match):
        asyncio.run(chat.complete("hello"))
    assert chat.usage.requests == 1
