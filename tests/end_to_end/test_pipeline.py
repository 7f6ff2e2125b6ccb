"""Collecting the next batch while the actor learns."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from vagentrl.engines.base import Engine
from vagentrl.errors import ConfigError
from vagentrl.rollout.collection import Drawn
from vagentrl.rollout.source import EpisodeSource

AHEAD = (*runs.AHEAD, "--trainer.max_epochs=3")


def test_the_next_batch_comes_from_weights_that_are_one_iteration_old(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    run = runs.prepare(*AHEAD)
    threads: list[tuple[int, str]] = []
    evaluated: list[tuple[int, int]] = []
    collect, evaluate = EpisodeSource.collect, run.datamodule.evaluate
    engine: Engine = run.datamodule.engine

    def watched(source: EpisodeSource, drawn: Drawn, *others: Any) -> Any:
        name = threading.current_thread().name.partition("_")[0]
        threads.append((drawn.iteration.number, name))
        return collect(source, drawn, *others)

    def watched_evaluation(name: str, seeds: Any, agent: Any, prefix: str) -> dict[str, float]:
        metrics = evaluate(name, seeds, agent, prefix)
        evaluated.append((agent.iteration, engine.policy_version))
        return metrics

    monkeypatch.setattr(EpisodeSource, "collect", watched)
    monkeypatch.setattr(run.datamodule, "evaluate", watched_evaluation)
    run.trainer.fit(run.model, run.datamodule)
    assert threads == [(0, "MainThread"), (1, "collect"), (2, "collect")]
    assert evaluated and all(iteration == version for iteration, version in evaluated)
    scalars = {
        tag: [event.value for event in runs.events(run).Scalars(f"rollout/{tag}")]
        for tag in ("staleness", "staleness_max", "logprob_gap")
    }
    assert scalars["staleness"] == scalars["staleness_max"] == [0, 1, 1]
    assert scalars["logprob_gap"][0] < 1e-5
    assert min(scalars["logprob_gap"][1:]) > 1e-4  # the actor has moved since


def test_a_copy_of_the_weights_samples_what_the_weights_would(run_dir: Path):
    learned = [
        runs.fingerprint(runs.fit("--data.engine=TransformersEngine", setting).model)
        for setting in ("--data.engine.own_copy=false", "--data.engine.own_copy=true")
    ]
    assert learned[0] == learned[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--data.engine.own_copy=false", r"samples from the same weights that are being"),
        ("--data.turns=2", r"data\.staleness is 1 and data\.turns 2"),
        ("--model.policy_loss.importance=null", r"PPOClip without importance weights"),
        ("--data.staleness=-1", r"data\.staleness is -1; give the number of iterations"),
    ],
)
def test_what_does_not_go_with_collecting_ahead_is_refused(
    run_dir: Path, change: str, message: str
):
    with pytest.raises((ConfigError, SystemExit), match=message):
        run = runs.prepare(*AHEAD, change)
        run.trainer.fit(run.model, run.datamodule)
