"""Two ranks give the same results as one process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import runs
from tests.end_to_end import rank
from tests.exact import fit as fit_exactly
from tests.processes import run_ranks

ROOT = Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of every case on both ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.end_to_end.rank", folder)
    return [torch.load(folder / f"rank_{number}.pt", weights_only=False) for number in "01"]


def assert_same(result: dict[str, Any], alone: dict[str, Any]) -> None:
    assert result["played"] == alone["played"]
    assert result["evaluated"] == alone["evaluated"]
    assert result["stored"] == alone["stored"]
    torch.testing.assert_close(result["weights"], alone["weights"])
    # How many passes are filled up depends on the number of ranks.
    metrics, expected = (
        {name: value for name, value in each["metrics"].items() if name != "train/fillers"}
        for each in (result, alone)
    )
    # Lightning rounds the mean number of tokens over ranks down to a whole one
    assert metrics == pytest.approx(expected, rel=0.05, abs=1e-4)


@pytest.mark.parametrize("case", rank.CASES)
def test_two_ranks_play_and_learn_what_one_process_would(
    case: str, together: list[dict[str, Any]], run_dir: Path
):
    alone = rank.fit(case)
    for results in together:
        assert_same(results[case], alone)


def test_rank_0_stores_the_pictures_of_all_ranks(together: list[dict[str, Any]]):
    assert len(together[0]["pictures"]["stored"]) > 1


def test_a_budget_of_tokens_changes_nothing_that_is_learned(run_dir: Path):
    tokens, rows = rank.fit("tokens"), rank.fit("tokens", "--data.micro_batch_tokens=null")
    assert tokens["played"] == rows["played"]
    torch.testing.assert_close(tokens["weights"], rows["weights"])


def test_two_ranks_of_deepspeed_learn_what_one_process_would(
    together: list[dict[str, Any]], run_dir: Path
):
    pytest.importorskip("deepspeed")
    alone = rank.fit("critic", rank.UNCLIPPED)
    for results in together:
        assert results["zero"]["played"] == alone["played"]
        torch.testing.assert_close(results["zero"]["weights"], alone["weights"])


def test_claims_earn_what_they_would_in_one_process(together: list[dict[str, Any]], run_dir: Path):
    alone = rank.pay()
    assert alone["metrics"]["judge/penalised"] > 0
    for results in together:
        assert_same(results["paid"], alone)


def test_the_ranks_keep_the_same_weights_bit_by_bit(together: list[dict[str, Any]]):
    for case in rank.CASES:
        first, second = (result[case]["weights"] for result in together)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_ranks_take_the_documented_gradient(together: list[dict[str, Any]]):
    """Exactly equal: the loss undoes the means over ranks and micro-batches."""
    wanted = fit_exactly.documented()
    for result in together:
        torch.testing.assert_close(result["exact"], wanted, rtol=1e-9, atol=1e-11)


def test_episodes_in_progress_on_either_rank_survive_a_break(together: list[dict[str, Any]]):
    for result in together:
        assert result["resumed"]["played"] == result["turns"]["played"]
        whole, resumed = result["turns"]["weights"], result["resumed"]["weights"]
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_batch_that_is_played_ahead_comes_from_weights_one_iteration_old(
    together: list[dict[str, Any]],
):
    for result in together:
        assert result["ahead"]["metrics"]["rollout/staleness_max"] == 1
        assert result["lines"] == ["made gloo", "destroyed"]


def test_ranks_that_play_two_batches_ahead_keep_the_same_weights(
    together: list[dict[str, Any]], run_dir: Path
):
    first, second = (result["further ahead"] for result in together)
    assert first["metrics"]["rollout/staleness_max"] == second["metrics"]["rollout/staleness_max"]
    assert 1 <= first["metrics"]["rollout/staleness_max"] <= 2
    assert first["played"] == second["played"]
    weights = first["weights"]
    assert all(torch.equal(weights[name], second["weights"][name]) for name in weights)
    turns, alone = ([facts[:2] for facts in each["played"]] for each in (first, rank.fit("ahead")))
    assert turns == alone  # the same states, whatever the weights that played them


def test_a_run_that_plays_ahead_is_resumed_as_on_one_process(
    together: list[dict[str, Any]], run_dir: Path
):
    # Its first batch is played again, by the weights of the checkpoint.
    alone = rank.resume("ahead", rank.STOPPED)
    for result in together:
        assert_same(result["resumed ahead"], alone)
    first, second = (result["resumed ahead"]["weights"] for result in together)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("number", range(len(rank.REFUSED)))
def test_what_would_go_wrong_with_several_ranks_is_refused(
    number: int, together: list[dict[str, Any]]
):
    for result in together:
        assert result["refused"][number].startswith(list(rank.REFUSED)[number])


def stderr_of(callback: str, *settings: str, images: bool = False) -> str:
    """What a run on two ranks says that ends because a callback makes one of them fail."""
    ill = f"--trainer.callbacks=tests.end_to_end.rank.{callback}"
    arguments = runs.arguments(*rank.TOGETHER, ill, *settings, images=images)
    command = [sys.executable, "-m", "vagentrl", "fit", *arguments]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return done.stderr


def test_a_rank_that_fails_alone_ends_the_run(run_dir: Path):
    assert "rank 1 is ill" in stderr_of("FailAlone")


def test_pictures_that_one_rank_cannot_send_end_the_run(run_dir: Path):
    assert "rank 1 has no memory left for pictures" in stderr_of("LosePictures", images=True)
