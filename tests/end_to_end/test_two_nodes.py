"""A run on two nodes, of which one dies, goes on from its last checkpoint with ``--resume``."""

import signal
from pathlib import Path

import pytest
import torch

from tests import runs
from tests.end_to_end import nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ARGUMENTS = ("--data.groups=4", "--data.minibatch_size=4", "--trainer.max_epochs=3", "--resume")
SILENCE_S = 8
DEATH = (
    "--trainer.callbacks+=RankWatch",
    f"--trainer.callbacks.silence_s={SILENCE_S}",
    "--trainer.callbacks+=tests.end_to_end.nodes.NodeDies",
)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the newest checkpoint of a run in a folder holds."""
    path = folder / "runs" / "toy" / "version_0" / "checkpoints" / "last.ckpt"
    return torch.load(path, weights_only=False)["state_dict"]


def test_a_dead_node_is_named_and_the_run_goes_on_without_a_loss(run_dir: Path):
    arguments = runs.arguments(*ARGUMENTS)
    (code, said), (killed, _) = nodes.fit(nodes.torchrun, run_dir, [*arguments, *DEATH])
    assert killed == -signal.SIGKILL
    assert code == 1
    assert "rank 1 (process" in said
    assert "has given no sign of life for" in said
    assert not (run_dir / "runs" / "toy" / "version_0" / "summary.json").exists()

    ends = nodes.fit(nodes.by_lightning, run_dir, arguments)
    assert [code for code, _ in ends] == [0, 0], [said[-3000:] for _, said in ends]
    assert "the run goes on after iteration 1 with runs/toy/version_0" in ends[0][1]
    assert [path.name for path in (run_dir / "runs" / "toy").iterdir()] == ["version_0"]

    alone = runs.fit(*ARGUMENTS[:-1]).model.state_dict()
    learned = weights(run_dir)  # a checkpoint leaves the reference out
    torch.testing.assert_close(learned, {name: alone[name] for name in learned})
