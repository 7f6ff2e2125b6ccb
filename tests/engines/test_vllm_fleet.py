"""`VLLMFleet` with fake servers that fail on demand."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engines.fake_server import FakeServer, as_json, running
from tests.engines.shipped import CONTEXT, TEXT, ask, reference_engine, renderer, request_of
from vagentrl.engines import VLLMFleet
from vagentrl.engines.base import Generation, Vocabulary
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm import base, client, fleet, members
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA

GENERATE, LOAD = "/inference/v1/generate", "/collective_rpc"


class Shipped(NamedTuple):
    """The tiny model, and the reply to the canary's prompt that its weights give."""

    policy: Any
    vocabulary: Vocabulary
    right: Generation


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    policy, vocabulary = load_model(TEXT), renderer(TEXT).vocabulary(CONTEXT)
    [right] = ask(reference_engine(TEXT, policy), Canary(policy, vocabulary, 1e-3).request)
    return Shipped(policy, vocabulary, right)


class Fleet(NamedTuple):
    """Three fake servers and an engine that has pushed its weights to them."""

    servers: list[FakeServer]
    urls: list[str]
    engine: VLLMFleet
    policy: Any

    def update(self) -> None:
        self.engine.update_weights(self.policy, self.engine.policy_version + 1)

    def left_out(self) -> dict[int, str]:
        """What is wrong with the servers that are left out, by their number."""
        problems = [member.problem for member in self.engine._members]
        return {number: text for number, text in enumerate(problems) if text is not None}

    def play(self, sessions: range, between: Callable[[], None] = lambda: None) -> None:
        """Play episodes of two turns all at once, and do something between the turns."""
        for turn in range(2):
            ask(self.engine, *(request_of(TEXT, session) for session in sessions))
            if turn == 0:
                between()


@pytest.fixture
def three(shipped: Shipped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(base, "check_installed", lambda: None)
    for module in (client, members, fleet):
        monkeypatch.setattr(module, "PAUSE_S", 0.01)
    servers = [FakeServer() for _ in range(3)]
    with ExitStack() as stack:
        for server in servers:
            server.reply = as_json(shipped.right)
        urls = [stack.enter_context(running(server)) for server in servers]
        engine = VLLMFleet(urls, patience_s=0.2)
        engine.prepare(shipped.vocabulary)
        engine.update_weights(shipped.policy, 0)
        for server in servers:
            stack.callback(server.stalled.clear)
            server.served.clear()
        yield Fleet(servers, urls, engine, shipped.policy)


# ----------------------------------------------------------------------------------- all is well


def test_every_server_gets_the_weights_once_and_all_have_the_same_version(three: Fleet):
    for server in three.servers:
        assert server.calls == [
            "/health", LOAD, "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
            "/update_weight_version", "/weight_info", GENERATE, LOAD,
        ]  # fmt: skip
    assert len({server.version for server in three.servers}) == 1
    assert three.engine.canary_gap < 1e-4
    three.update()
    assert three.engine.policy_version == 1
    assert three.engine.counts() == {
        "rollout/asked_anew": 0, "rollout/servers": 3, "rollout/servers_left_out": 0,
    }  # fmt: skip


def test_episodes_are_spread_evenly_and_stay_with_their_server(three: Fleet):
    seeds: list[set[int]] = [set(), set(), set()]

    def noted(number: int) -> Any:
        def generate(body: Any) -> tuple[int, Any]:
            seeds[number].add(body["sampling_params"]["seed"])  # that of its session
            return FakeServer.generate(three.servers[number], body)

        return generate

    for number, server in enumerate(three.servers):
        server.generate = noted(number)
    three.play(range(6))
    assert sorted(map(len, seeds)) == [2, 2, 2]
    assert set.union(*seeds) == set(range(6))
    assert [len(server.served) for server in three.servers] == [4, 4, 4]
    for session in seeds[1]:
        three.engine.release(session)
    ask(three.engine, request_of(TEXT, 7), request_of(TEXT, 8))
    assert {7, 8} < seeds[1]  # the server that has become free


# ------------------------------------------------------------------------------- while it plays


def test_requests_of_a_dead_server_are_asked_anew_with_the_same_seeds(three: Fleet, caplog):
    asked: list[int] = []

    def generate(body: Any) -> tuple[int, Any]:
        asked.append(body["sampling_params"]["seed"])
        return FakeServer.generate(three.servers[1], body)

    three.servers[1].generate = generate
    three.play(range(6), between=lambda: setattr(three.servers[0], "drops", math.inf))
    assert list(three.left_out()) == [0]
    served = [len(server.served) for server in three.servers]
    assert sum(served) == 12
    assert served[0] == 2  # its two episodes went on elsewhere
    assert len(set(asked)) == 3  # one of them here, with its own seed
    assert three.engine.counts() == {
        "rollout/asked_anew": 2, "rollout/servers": 2, "rollout/servers_left_out": 1,
    }  # fmt: skip
    warned = [record for record in caplog.records if "leaves out" in record.message]
    assert len(warned) == 1
    assert "2 of 3 are left" in warned[0].message
    assert three.urls[0] in warned[0].message


def test_a_reply_of_other_weights_never_counts(three: Fleet):
    three.servers[2].version = "default"  # restarted, although no request has failed
    three.play(range(6))
    assert list(three.left_out()) == [2]
    assert "it has weights default" in three.left_out()[2]
    used = [
        version for server in three.servers for version in server.served if version != "default"
    ]
    assert len(used) == 12
    assert three.servers[2].version == "default"  # nobody gives it weights before the next update
    assert three.servers[2].calls.count(LOAD) == 2


def test_a_server_that_came_back_with_old_weights_gets_the_new_ones_at_the_next_update(
    three: Fleet,
):
    old = three.servers[0].version
    three.update()
    three.servers[0].version = old
    three.play(range(3))
    assert list(three.left_out()) == [0]
    three.update()
    assert three.left_out() == {}
    assert three.servers[0].version == three.servers[1].version != old
    three.servers[0].served.clear()
    three.play(range(3))
    assert three.servers[0].served == [three.servers[0].version] * 2


def test_a_server_that_hangs_is_left_out_after_patience_s(three: Fleet, monkeypatch):
    monkeypatch.setattr(client, "HEALTH_CHECK_S", 0.02)
    monkeypatch.setattr(client, "CALL_S", 0.1)
    three.servers[1].stalled.set()
    three.play(range(6))
    assert list(three.left_out()) == [1]
    assert "no longer answers anything (silent)" in three.left_out()[1]  # it is not asked again
    assert len(three.servers[0].served) + len(three.servers[2].served) == 12


def test_a_server_that_answers_all_calls_with_500_is_left_out(three: Fleet):
    three.servers[1].down = 10**6
    three.play(range(6))
    assert list(three.left_out()) == [1]
    assert "503" in three.left_out()[1]


def test_a_server_that_fails_where_another_answers_is_left_out_though_it_seems_well(three: Fleet):
    three.servers[1].generate = lambda body: (500, {"error": "CUDA error"})
    three.play(range(6))
    assert three.left_out() == {1: "it failed at a prompt that another server answered"}


def test_a_prompt_at_which_all_servers_fail_fails_alone_and_leaves_no_server_out(three: Fleet):
    def fails_at_one(server: FakeServer) -> Any:
        def generate(body: Any) -> tuple[int, Any]:
            bad = body["sampling_params"]["seed"] == 1
            return (500, {"error": "bad image"}) if bad else FakeServer.generate(server, body)

        return generate

    for server in three.servers:
        server.generate = fails_at_one(server)

    async def play() -> list[Any]:
        requests = (request_of(TEXT, session) for session in range(3))
        return await asyncio.gather(*map(three.engine.generate, requests), return_exceptions=True)

    good, bad, fine = asyncio.run(play())
    assert isinstance(good, Generation)
    assert isinstance(fine, Generation)
    assert isinstance(bad, EngineError)
    assert "failed 4 times at one prompt" in str(bad)
    assert three.left_out() == {}


def test_a_prompt_that_kills_servers_is_given_up_before_it_has_killed_all(
    three: Fleet, monkeypatch
):
    monkeypatch.setattr(fleet, "ATTEMPTS", 2)

    def dies(server: FakeServer) -> Any:
        def generate(body: Any) -> tuple[int, Any]:
            if body["sampling_params"]["seed"] == 0:
                server.down = 10**6
                return 500, {"error": "EngineDeadError"}
            return FakeServer.generate(server, body)

        return generate

    for server in three.servers:
        server.generate = dies(server)
    with pytest.raises(EngineError, match="failed 2 times at one prompt"):
        ask(three.engine, request_of(TEXT, 0))
    assert len(three.left_out()) == 2
    ask(three.engine, request_of(TEXT, 1))


def test_a_single_broken_connection_does_not_move_an_episode(three: Fleet):
    three.play(range(3), between=lambda: setattr(three.servers[1], "drops", 1))
    assert three.left_out() == {}
    assert [len(server.served) for server in three.servers] == [2, 2, 2]
    assert three.engine.counts()["rollout/asked_anew"] == 1


def test_an_answer_that_is_no_reply_is_asked_anew(three: Fleet):
    server = three.servers[0]
    asked: list[Any] = []

    def generate(body: Any) -> tuple[int, Any]:
        asked.append(body)
        return FakeServer.generate(server, body) if len(asked) > 1 else (200, {"detail": "a proxy"})

    server.generate = generate
    ask(three.engine, request_of(TEXT, 0))
    assert asked[0] == asked[1]
    assert three.left_out() == {}


def test_the_last_servers_death_ends_the_run_and_says_which_died_and_how(three: Fleet):
    three.servers[0].drops = math.inf
    three.servers[1].down = 10**6
    three.servers[2].version = "default"
    with pytest.raises(EngineDead) as caught:
        three.play(range(6))
    text = str(caught.value)
    assert "none of the 3 vLLM servers can be used any more" in text
    for url, how in zip(three.urls, ("RemoteProtocolError", "503", "default"), strict=True):
        [line] = [line for line in text.splitlines() if line.startswith(url)]
        assert how in line
    assert "--ckpt_path" in text


# --------------------------------------------------------------------------------- at an update


def test_a_server_that_died_is_left_out_of_updates_and_joins_the_one_after_it_is_back(three: Fleet):
    three.play(range(3), between=lambda: setattr(three.servers[1], "drops", math.inf))
    assert list(three.left_out()) == [1]
    three.update()
    assert list(three.left_out()) == [1]
    assert three.servers[0].version == three.servers[2].version != three.servers[1].version
    three.servers[1].drops = 0
    three.update()
    assert three.left_out() == {}
    assert three.servers[0].version == three.servers[1].version


def test_a_server_that_dies_between_push_and_confirmation_is_left_out(three: Fleet):
    def dies(path: str, body: Any) -> tuple[int, Any]:
        if path == LOAD:
            three.servers[1].drops = math.inf
        return FakeServer.answer(three.servers[1], path, body)

    three.servers[1].answer = dies
    three.update()
    assert list(three.left_out()) == [1]
    assert three.engine.policy_version == 1
    three.play(range(4))
    assert len(three.servers[0].served) + len(three.servers[2].served) == 8 + 2  # and the canary


def test_a_server_that_confirms_another_version_is_left_out(three: Fleet):
    def lies(path: str, body: Any) -> tuple[int, Any]:
        answer = FakeServer.answer(three.servers[0], path, body)
        return (200, {"weight_version": "old"}) if path == "/weight_info" else answer

    three.servers[0].answer = lies
    three.update()
    assert "it has weights old after it was given" in three.left_out()[0]


def test_a_server_that_hangs_during_an_update_is_left_out(three: Fleet, monkeypatch):
    monkeypatch.setattr(client, "CALL_S", 0.1)
    three.servers[2].stalled.set()
    three.update()
    assert list(three.left_out()) == [2]
    assert "ReadTimeout" in three.left_out()[2]


def test_a_server_that_does_not_see_the_folder_is_left_out_and_the_reason_says_so(three: Fleet):
    three.servers[1].sees_files = False
    three.update()
    assert "it sees 0 of 1 files of weights in" in three.left_out()[1]
    assert three.servers[1].version != three.servers[0].version


def test_an_address_that_answers_something_else_is_left_out(three: Fleet):
    three.servers[2].answer = lambda path, body: (200, None)
    three.update()
    assert "has no field results" in three.left_out()[2]


def test_servers_that_all_went_away_are_waited_for_at_an_update(three: Fleet):
    for server in three.servers:
        server.version, server.down = "default", 3
    with pytest.raises(EngineDead):
        three.play(range(3))
    three.engine.patience_s = 60
    for server in three.servers:
        server.down = 5
    three.update()
    assert three.left_out() == {}


def test_an_update_does_not_wait_for_a_process_that_must_be_started_again(
    three: Fleet, monkeypatch
):
    lost = three.engine._members[1]
    monkeypatch.setattr(members.Member, "ended", property(lambda member: member is lost))
    three.engine.patience_s = 10**6
    three.servers[1].drops = math.inf
    three.update()
    assert list(three.left_out()) == [1]


def test_servers_that_must_all_be_started_again_are_waited_for(three: Fleet, monkeypatch):
    monkeypatch.setattr(members.Member, "ended", True)
    three.engine.patience_s = 60
    for server in three.servers:
        server.drops = 3
    three.update()
    assert three.left_out() == {}


def test_an_adapter_is_loaded_by_every_server_and_the_one_before_is_removed(three: Fleet):
    engine = VLLMFleet(three.urls, patience_s=0.2)
    engine.prepare(three.engine._vocabulary)
    policy = load_model(TEXT, lora=LoRA(rank=4))  # it changes nothing before it has learned
    folders: list[Path] = []
    asked: list[Any] = []
    for version in range(2):
        for server in three.servers:
            server.calls.clear()
        engine.update_weights(policy, version)
        adapter = engine._adapter
        assert adapter is not None
        folders.append(Path(adapter.path))
        asked.append(engine._body(request_of(TEXT, 0))["model"])
        assert asked[-1] == adapter.name
    assert [folder.exists() for folder in folders] == [False, True]
    assert asked[0] != asked[1]
    for server in three.servers:
        assert server.calls.count("/v1/load_lora_adapter") == 1
        assert server.calls[-1] == "/v1/unload_lora_adapter"
        assert LOAD not in server.calls


def test_servers_that_stay_away_end_the_run_at_an_update(three: Fleet):
    for server in three.servers:
        server.drops = math.inf
    with pytest.raises(EngineDead, match="none of the 3 vLLM servers can be used"):
        three.update()


def test_weights_that_differ_on_one_server_are_an_error_that_names_it(three: Fleet, caplog):
    [choice] = three.servers[1].reply["choices"]
    content = [
        {"token_id": 0, "logprob": token["logprob"] - 1} for token in choice["logprobs"]["content"]
    ]
    three.servers[1].reply = {"choices": [choice | {"logprobs": {"content": content}}], "usage": {}}
    three.servers[1].same = {"model.norm.weight": False}
    with pytest.raises(EngineError, match=rf"{three.urls[1]} does not have the actor's weights"):
        three.update()
    assert f"model.norm.weight differs at {three.urls[1]} only" in caplog.text


def test_an_update_waits_for_servers_of_an_address_that_begin_to_listen(
    shipped: Shipped, monkeypatch
):
    monkeypatch.setattr(base, "check_installed", lambda: None)
    server = FakeServer()
    server.reply, server.down = as_json(shipped.right), 3
    with running(server) as url:
        engine = VLLMFleet([url], patience_s=60)
        engine.prepare(shipped.vocabulary)
        engine.update_weights(shipped.policy, 0)
    assert engine.policy_version == 0


def test_with_nccl_no_file_is_written_and_servers_that_are_out_get_nothing(
    three: Fleet, monkeypatch
):
    sent: list[tuple[list[str], bool]] = []

    class Recorder:
        def __init__(self, backend: str) -> None:
            assert backend == "nccl"

        def send(self, policy: Any, servers: Any, restarted: bool) -> None:
            assert policy is three.policy
            sent.append(([server.url for server in servers], restarted))

    monkeypatch.setattr(fleet, "Transfer", Recorder)
    monkeypatch.setattr(fleet, "save", None)
    engine = VLLMFleet(three.urls, transfer="nccl", patience_s=0.2)
    engine.prepare(three.engine._vocabulary)
    three.servers[1].drops = math.inf
    for server in three.servers:
        server.calls.clear()
    engine.update_weights(three.policy, 0)
    rest = [three.urls[0], three.urls[2]]
    engine.update_weights(three.policy, 1)
    three.servers[0].version = "default"
    engine.update_weights(three.policy, 2)
    assert sent == [(rest, True), (rest, False), (rest, True)]
    assert LOAD not in three.servers[0].calls
    assert three.servers[0].version == three.servers[2].version == engine._wanted.version


# ------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of the two"),
        ({"urls": ["http://a"], "servers": 1}, "give one of the two"),
        ({"urls": []}, "the address of each server"),
        ({"urls": ["http://a:1", "http://a:1/"]}, "each once"),
        ({"urls": ["node1:8000"]}, "begin it with http://"),
        ({"servers": 0}, "start at least 1"),
        ({"servers": 1, "transfer": "rdma"}, "give files, nccl or ipc"),
        ({"servers": 2, "devices": ["0"]}, "CUDA_VISIBLE_DEVICES of each server"),
        ({"urls": ["http://a"], "devices": ["0"]}, "CUDA_VISIBLE_DEVICES of each server"),
    ],
)
def test_settings_that_do_not_say_which_servers_there_are_are_refused(
    settings: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        VLLMFleet(**settings)


def test_each_server_started_here_has_devices_a_port_and_a_cache_of_its_own(monkeypatch):
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_PORT", "1")
    started = members.start_servers({"model": "m"}, ["0,1", "2,3"], 1.0)
    processes = [one.process for one in started if one.process is not None]
    for process in processes:
        process.log.unlink()
    assert len({one.url for one in started}) == 2
    environments = [process._environment for process in processes]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["0,1", "2,3"]
    assert len({one["VLLM_CACHE_ROOT"] for one in environments}) == 2
    assert not any("TORCHELASTIC_USE_AGENT_STORE" in one for one in environments)
    assert not any("MASTER_PORT" in one for one in environments)
