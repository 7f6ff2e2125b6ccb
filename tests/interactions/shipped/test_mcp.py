import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from tests.interactions.shipped.talk import Answer, ask, talk
from vagentrl.errors import ConfigError
from vagentrl.interactions.tools import ToolInteraction

SERVER = str(Path(__file__).with_name("mcp_server.py"))
TRAINER = """
import asyncio, json, sys
from vagentrl.interactions.tools import ToolInteraction

async def play(interaction):
    await interaction.start_interaction("a", ground_truth="")
    reply = "<tool_call>" + json.dumps({"name": "process_id"}) + "</tool_call>"
    answer = await interaction.generate_response("a", [{"role": "assistant", "content": reply}])
    print(answer[1].split()[1], flush=True)
    await asyncio.sleep(100)

asyncio.run(play(ToolInteraction({"mcp": [json.loads(sys.argv[1])]})))
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def result(answer: Answer) -> str:
    return answer[1].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat").read_text()
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_for_the_end(process: int) -> None:
    while is_running(process):  # the time limit of the test ends a wait in vain
        time.sleep(0.05)


@pytest.fixture(scope="module")
def stdio(tmp_path_factory: pytest.TempPathFactory) -> ToolInteraction:
    folder = str(tmp_path_factory.mktemp("pictures"))
    server = {"command": sys.executable, "args": [SERVER, folder]}
    return ToolInteraction({"mcp": [server], "timeout_s": 20.0})


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = str(tmp_path_factory.mktemp("pictures"))
    process = subprocess.Popen(
        [sys.executable, SERVER, folder, str(port)], stderr=subprocess.DEVNULL
    )
    while socket.socket().connect_ex(("127.0.0.1", port)):  # until it listens
        assert process.poll() is None
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp", process
    process.kill()
    process.wait()


def test_the_tools_of_a_server_are_listed(stdio: ToolInteraction):
    prompt = stdio.agent_instructions()
    assert '"name": "add", "description": "Add two whole numbers."' in prompt
    assert '"a": {"type": "integer"}' in prompt


def test_a_server_answers_and_is_started_anew_when_it_has_ended(stdio: ToolInteraction):
    replies = [
        call("add", a=1, b=2) + call("add", a="x", b=2),
        call("picture"),
        call("fail"),
        call("huge"),
        call("process_id"),
        call("die"),
        call("process_id"),
    ]
    added, seen, failed, huge, first, died, second = talk(stdio, *replies, ground_truth="")
    assert added[1].startswith("<tool_response>\n3\n</tool_response>\n<tool_response>\nError: ")
    assert seen[1][1]["image"].size == (3, 2)
    assert seen[1][1]["image"].getpixel((0, 0)) == (255, 0, 0)
    assert result(failed).startswith("Error: ") and failed[3]["failed_calls"] == 1.0
    assert "[996000 characters left out]" in result(huge)
    assert result(died) == "Error: the tool's server has ended; call again"
    assert int(result(first)) != int(result(second))
    wait_for_the_end(int(result(second)))  # it ends with the event loop


def test_a_slow_call_does_not_hold_up_the_others(stdio: ToolInteraction):
    slow = ToolInteraction({**stdio.config, "timeout_s": 0.5})

    async def play() -> list[str]:
        await slow.start_interaction("a", ground_truth="")
        await slow.start_interaction("b", ground_truth="")
        # The first call opens the session, however long that takes here.
        await slow._servers[0].call("add", {"a": 0, "b": 0})
        sleeping = slow.generate_response(
            "a", [{"role": "assistant", "content": call("sleep", seconds=60)}]
        )
        adding = slow.generate_response(
            "b", [{"role": "assistant", "content": call("add", a=1, b=2)}]
        )
        return [result(answer) for answer in await asyncio.gather(sleeping, adding)]

    late, added = asyncio.run(play())
    assert late == "Error: sleep has not answered within 0.5 s" and added == "3"


def test_a_server_over_http_answers_and_may_go_away(http: tuple[str, subprocess.Popen]):
    url, process = http
    interaction = ToolInteraction({"mcp": [{"url": url, "prefix": "web_"}], "timeout_s": 10.0})
    replies = [call("web_add", a=1, b=2), call("web_picture")]
    added, seen = talk(interaction, *replies, ground_truth="")
    assert result(added) == "3"
    assert seen[1][1]["image"].size == (3, 2)
    process.kill()
    process.wait()
    gone = ask(interaction, call("web_add", a=1, b=2), ground_truth="")
    assert result(gone).startswith("Error: ") and gone[0] is False
    with pytest.raises(ConfigError, match="did not list its tools"):
        ToolInteraction({"mcp": [{"url": url}]})


def test_a_command_that_is_no_server_is_refused():
    with pytest.raises(ConfigError, match="did not list its tools"):
        ToolInteraction({"mcp": [{"command": "true"}]})


def test_a_server_ends_with_a_trainer_that_is_killed(tmp_path: Path):
    # `deaf`: the server that the trainer plays with does not end when its input does.
    server = {"command": sys.executable, "args": [SERVER, str(tmp_path), "deaf"]}
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, json.dumps(server)], stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    process = int(trainer.stdout.readline())
    assert is_running(process)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    wait_for_the_end(process)
