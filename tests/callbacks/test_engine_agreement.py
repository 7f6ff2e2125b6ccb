from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.callbacks import EngineAgreement
from vagentrl.callbacks.engine_agreement import worst_reply
from vagentrl.errors import ConfigError, EngineError
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.scoring import score
from vagentrl.types import RolloutBatch, Scores, VisionInputs


def drift(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Changes the trainer's log-probs of the last turn of row 1."""

    def claimed(agent: AgentModule, rollout: RolloutBatch) -> Scores:
        scores = score(agent, rollout)
        last = rollout.turn_ids[1].max()
        scores.old_logprobs[1, rollout.turn_ids[1] == last] -= by
        return scores

    monkeypatch.setattr("vagentrl.modules.agent.score", claimed)


def test_every_run_logs_how_far_engine_and_trainer_agree(run_dir: Path):
    run = runs.fit("--trainer.max_epochs=1", images=True)
    metrics = run.trainer.callback_metrics
    assert metrics["rollout/logprob_gap"] < 1e-4
    assert metrics["rollout/logprob_gap_max"] < 1e-3
    assert metrics["rollout/logprob_kl"] < 1e-6
    assert metrics["rollout/logprob_beyond"] == 0
    assert metrics["rollout/logprob_sample_size"] == pytest.approx(1, abs=1e-4)
    assert not (runs.folder(run) / "agreement").exists()


def test_an_alarm_writes_the_worst_reply_and_the_run_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    run = runs.prepare("--trainer.max_epochs=1")
    drift(monkeypatch, by=50.0)
    run.trainer.fit(run.model, run.datamodule)
    assert run.trainer.current_epoch == 1
    assert "iteration 0: the log-probs of engine and trainer differ by" in caplog.text
    title, header, *lines = (
        (runs.folder(run) / "agreement" / "iteration_0.txt").read_text().splitlines()
    )
    assert "trajectory 1, turn" in title and "mean difference 50.0" in title
    assert header.split() == ["token", "id", "engine", "trainer", "difference"]
    assert all(line.endswith("-50.0000") for line in lines)


def test_an_alarm_can_stop_the_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    run = runs.prepare(
        "--trainer.max_epochs=1",
        '--trainer.callbacks=[{"class_path": "EngineAgreement", "init_args": {"stop": true}}]',
    )
    drift(monkeypatch, by=50.0)
    with pytest.raises(EngineError, match=r"worst reply is in .*iteration_0\.txt"):
        run.trainer.fit(run.model, run.datamodule)


def two_turns() -> RolloutBatch:
    """One row: tokens 4 and 5 are sampled in turn 0, 6 and 7 in turn 1."""
    return RolloutBatch(
        input_ids=torch.tensor([[9, 4, 5, 9, 6, 7]]),
        attention_mask=torch.ones(1, 6, dtype=torch.bool),
        action_mask=torch.tensor([[0, 1, 1, 0, 1, 1]]).bool(),
        turn_ids=torch.tensor([[-1, 0, 0, -1, 1, 1]]),
        state_ids=torch.full((1, 6), -1),
        rewards=torch.zeros(1, 6),
        rollout_logprobs=torch.tensor([[0.0, -1.0, -1.0, 0.0, -1.0, -1.0]]),
        trajectory_ids=torch.tensor([0]),
        group_ids=torch.tensor([0]),
        policy_version=torch.zeros(1, 6, dtype=torch.long),
        bootstrap_index=torch.tensor([-1]),
    )


def test_rows_with_and_without_images_are_told_apart():
    rollout = two_turns().select(torch.tensor([0, 0]))
    vision = VisionInputs(torch.zeros(4, 3), torch.tensor([[1, 2, 2]]), rows=((0,), ()))
    rollout = replace(rollout, vision=vision)
    scores = Scores(rollout.rollout_logprobs - torch.tensor([[0.02], [0.01]]))
    logged: dict[str, float] = {}
    strategy = SimpleNamespace(broadcast=lambda folder: folder)
    trainer = SimpleNamespace(log_dir="unused", loggers=[], strategy=strategy)
    agent: Any = SimpleNamespace(record=logged.__setitem__, trainer=trainer)
    EngineAgreement().on_scores(agent, rollout, scores)
    assert logged["rollout/logprob_gap"] == pytest.approx(0.015)
    assert logged["rollout/logprob_gap_images"] == pytest.approx(0.02)
    assert logged["rollout/logprob_gap_text"] == pytest.approx(0.01)


def test_the_worst_reply_is_the_one_that_differs_most_on_average():
    scores = Scores(torch.tensor([[0.0, -3.0, -1.0, 0.0, -2.5, -2.25]]))
    table = worst_reply(two_turns(), scores, lambda ids: [f"<{id}>" for id in ids])
    assert table.splitlines() == [
        "trajectory 0, turn 1: 2 tokens, mean difference 1.3750",
        "                   token       id     engine    trainer  difference",
        "                   '<6>'        6    -1.0000    -2.5000     -1.5000",
        "                   '<7>'        7    -1.0000    -2.2500     -1.2500",
    ]


def test_limits_must_be_positive():
    with pytest.raises(ConfigError, match=r"alarm is 0 and beyond 0\.5"):
        EngineAgreement(alarm=0)
