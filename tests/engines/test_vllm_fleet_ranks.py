"""`VLLMFleet` on two ranks, with fake servers and with two servers of vLLM."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.fake_server import FakeServer, as_json, running
from tests.engines.shipped import CONTEXT, TEXT, ask, needs_vllm, reference_engine, renderer
from tests.processes import run_ranks
from vagentrl.engines.canary import Canary
from vagentrl.models.load import load_model

PROGRAM = "tests.engines.fleet_rank"


def seen_by_both(folder: Path, *urls: str) -> list[dict[str, Any]]:
    """Run the program on two ranks, and return what each saw."""
    run_ranks(PROGRAM, folder, *urls)
    return [torch.load(folder / f"rank_{rank}.pt") for rank in range(2)]


def test_ranks_push_once_and_agree_on_a_server_that_one_of_them_lost(tmp_path: Path):
    policy, vocabulary = load_model(TEXT), renderer(TEXT).vocabulary(CONTEXT)
    [right] = ask(reference_engine(TEXT, policy), Canary(policy, vocabulary, 1e-3).request)
    servers = [FakeServer(), FakeServer()]
    sick = servers[1]

    def fails_for_rank_1(body: Any) -> tuple[int, Any]:
        if body["sampling_params"]["seed"] >= 100:
            return 500, {"error": "CUDA error"}
        return FakeServer.generate(sick, body)

    sick.generate = fails_for_rank_1
    with ExitStack() as stack:
        for server in servers:
            server.reply = as_json(right)
        urls = [stack.enter_context(running(server)) for server in servers]
        zero, one = seen_by_both(tmp_path, *urls)
    assert zero["played"] == [None, None]
    assert one["played"] == [None, "it failed at a prompt that another server answered"]
    assert zero["left out"] == one["left out"] == []
    assert zero["known"] == one["known"] == [urls[1]]
    assert zero["updated"] == one["updated"] == [None, None]  # it answers again, so both use it
    assert zero["version"] == one["version"] == servers[0].version == sick.version
    assert one["counts"] == {"rollout/asked_anew": 2}
    assert zero["counts"]["rollout/servers"] == 2
    loads = [server.calls.count("/update_weight_version") for server in servers]
    assert loads == [3, 3]  # the number of updates, whatever the number of ranks
    assert zero["saved"]
    assert all(zero["saved"])
    assert "saved" not in one


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by_both(tmp_path_factory.mktemp("fleet"))


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_servers_give_two_ranks_the_actors_replies_across_an_update(real):
    for seen in real:
        assert seen["agree"] == [True] * 8
        assert seen["gap"] < 5e-4
        assert seen["homes"] == [2, 2]


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_episodes_that_are_played_ahead_go_on_under_new_weights_on_all_servers(real):
    for seen in real:
        assert seen["versions"] == real[0]["versions"]  # all ranks' episodes
        assert len(seen["versions"]) == 4 * 4 * 2
        assert seen["oldest"] == [0, 1, 2, 2]
        assert seen["wrong"] == 0 < seen["asked"]  # every reply is that of the weights it names
    assert any(len(set(versions)) > 1 for versions in real[0]["versions"])


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_when_a_server_is_killed_its_replies_are_those_that_it_would_have_given(real):
    for seen in real:
        assert seen["same"]
        assert seen["killed"][0] is not None
        assert seen["killed"][1] is None
    assert sum(seen["counts"]["rollout/asked_anew"] for seen in real) > 0
    assert real[0]["counts"]["rollout/servers"] == 1


@needs_vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_the_next_update_both_ranks_use_the_server_that_is_left(real):
    assert real[0]["updated"] == real[1]["updated"]
    assert [problem is None for problem in real[0]["updated"]] == [False, True]
    assert [seen["replies"] for seen in real] == [4, 4]
    assert real[0]["restarted"]
