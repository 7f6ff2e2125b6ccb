"""A batch stays on the CPU, its pictures as pixels; a pass at a time moves to the device."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.modules.agent import AgentModule
from vagentrl.types import Pictures, RolloutBatch, TrainBatch, VisionInputs

LIMITS = (
    "--data.micro_batch_size=2", "--model.score_batch_size=3", "--trainer.max_epochs=1",
    "--trainer.limit_val_batches=0",
)  # fmt: skip


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each micro-batch that is learned."""
    rows: list[int] = []
    step = AgentModule.training_step

    def watched(agent: AgentModule, batch: TrainBatch, number: int) -> torch.Tensor:
        rows.append(len(batch.rollout))
        return step(agent, batch, number)

    monkeypatch.setattr(AgentModule, "training_step", watched)
    return rows


def test_only_the_rows_of_a_pass_have_patches(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, learned: list[int]
):
    made: list[int] = []  # rows
    alive: list[weakref.ref[torch.Tensor]] = []
    to = Pictures.to

    def watched(pictures: Pictures, device: Any) -> VisionInputs | None:
        gc.collect()
        # Lightning keeps a micro-batch until it has the next one.
        assert sum(patches() is not None for patches in alive) <= 1
        patches = to(pictures, device)
        assert patches is not None
        alive.append(weakref.ref(patches.pixel_values))
        made.append(len(patches.rows))
        return patches

    monkeypatch.setattr(Pictures, "to", watched)
    window = ("--data.context=Window", "--data.context.turns=1")
    run = runs.prepare(*LIMITS, *window, images=True)
    run.trainer.fit(run.model, run.datamodule)
    whole = run.datamodule.assessed
    assert whole is not None and isinstance(whole.rollout.vision, Pictures)
    count = len(whole.rollout)
    assert count > 3 and max(learned) == 2
    scored = [min(3, count - first) for first in range(0, count, 3)]
    assert made == scored + learned


def test_a_batch_moves_to_the_device_a_pass_at_a_time(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, learned: list[int]
):
    moved: list[int] = []
    to = RolloutBatch.to

    def watched(rollout: RolloutBatch, device: Any) -> RolloutBatch:
        moved.append(len(rollout))
        return to(rollout, device)

    monkeypatch.setattr(RolloutBatch, "to", watched)
    runs.fit(*LIMITS)
    assert moved == [3, 1, *learned]  # 4 episodes are scored in passes of 3
