"""Collecting ahead while the actor learns."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from vagentrl.engines.base import Engine
from vagentrl.errors import ConfigError

AHEAD = (
    "--data.staleness=1",
    "--data.engine=TransformersEngine",
    "--data.engine.own_copy=true",
    "--model.policy_loss=PPOClip",
    "--model.policy_loss.importance=TruncatedImportance",
    "--trainer.max_epochs=3",
)


def test_the_next_batch_comes_from_weights_that_are_one_iteration_old(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    run = runs.prepare(*AHEAD)
    threads: list[tuple[int, str]] = []
    evaluated: list[tuple[int, int]] = []
    collect, evaluate = run.datamodule.source.collect, run.datamodule.evaluate
    engine: Engine = run.datamodule.engine

    def watched(agent: Any, iteration: int) -> Any:
        threads.append((iteration, threading.current_thread().name.partition("_")[0]))
        return collect(agent, iteration)

    def watched_evaluation(name: str, seeds: Any, agent: Any) -> dict[str, float]:
        metrics = evaluate(name, seeds, agent)
        evaluated.append((agent.iteration, engine.policy_version))
        return metrics

    monkeypatch.setattr(run.datamodule.source, "collect", watched)
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
        ("--data.engine.own_copy=false", r"samples from the very weights that learn"),
        ("--data.turns=2", r"data\.staleness is 1 and data\.turns 2"),
        ("--model.policy_loss.importance=null", r"PPOClip without importance weights"),
    ],
)
def test_what_does_not_go_with_collecting_ahead_is_refused(
    run_dir: Path, change: str, message: str
):
    with pytest.raises((ConfigError, SystemExit), match=message):
        run = runs.prepare(*AHEAD, change)
        run.trainer.fit(run.model, run.datamodule)
