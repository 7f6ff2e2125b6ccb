"""DeepSpeed on a CPU, for tests: the stock strategy refuses anything but CUDA.

    python -m tests.cpu_deepspeed

runs the toy task with and without it, and prints what it saw as JSON. It is a process of its own:
DeepSpeed and torch.distributed are set up once for all of a process.
"""

import json
import os
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"  # before deepspeed is imported

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
from torch import Tensor, nn

from tests import runs
from vagentrl import load_policy
from vagentrl.errors import VagentError
from vagentrl.modules.checkpoint_io import END_MARK

ZERO = "--trainer.strategy.class_path=tests.cpu_deepspeed.CPUDeepSpeed"
SETTINGS = (
    "--trainer.limit_val_batches=0",
    "--trainer.gradient_clip_val=null",  # DeepSpeed's is one norm, ours are two
    "--trainer.enable_progress_bar=false",
)


class CPUDeepSpeed(DeepSpeedStrategy):
    """ZeRO in processes that talk by gloo."""

    def __init__(self, stage: int = 2, offload_optimizer: bool = False) -> None:
        super().__init__(
            stage=stage, offload_optimizer=offload_optimizer, process_group_backend="gloo"
        )

    def setup_environment(self) -> None:
        DDPStrategy.setup_environment(self)  # pyright: ignore

    def setup_distributed(self) -> None:
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", 0)


class Poison(Callback):
    """Makes the gradients of one step NaN."""

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        if trainer.global_step == 1:
            loss.register_hook(lambda gradient: gradient * torch.nan)


def scalars(run: Any, name: str) -> list[float]:
    return [event.value for event in runs.events(run).Scalars(name)]


def difference(one: Any, other: Any) -> float:
    """The largest between any two weights of two runs."""
    return largest(one.model, other.model)


def largest(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between any two weights of two modules."""
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def refusal(checkpoint: str) -> list[str]:
    """What training and playing say to a checkpoint that cannot be used."""
    run = runs.prepare(*SETTINGS, ZERO)
    said = []
    for use in (
        lambda: run.trainer.fit(run.model, run.datamodule, ckpt_path=checkpoint),
        lambda: load_policy(checkpoint),
    ):
        try:
            use()
        except VagentError as error:
            said.append(str(error))
    return said


def main() -> None:
    plain = runs.fit(*SETTINGS)
    zero = runs.fit(*SETTINGS, ZERO)
    half = runs.fit(*SETTINGS, ZERO, "--trainer.max_epochs=1")
    saved = str(runs.folder(half) / "checkpoints" / "last.ckpt")
    loaded = load_policy(saved)
    resumed = runs.fit(*SETTINGS, ZERO, "--ckpt_path", saved)
    os.unlink(f"{saved}/{END_MARK}")
    poisoned = runs.prepare(*SETTINGS, ZERO)
    runs.callbacks(poisoned).append(Poison())
    poisoned.trainer.fit(poisoned.model, poisoned.datamodule)
    seen = {
        "accumulate": zero.datamodule._loader[1].accumulate,
        "steps": [run.trainer.global_step for run in (plain, zero)],
        "deepspeed_steps": zero.trainer.strategy.deepspeed_engine.global_steps,  # pyright: ignore
        "difference": difference(plain, zero),
        "moved": difference(half, zero),
        "difference_resumed": difference(zero, resumed),
        "difference_loaded": largest(half.model.actor.policy, loaded.model),
        "refused": refusal(saved),
        "norms": [
            scalars(plain, "optim/actor_grad_norm"),
            scalars(plain, "optim/critic_grad_norm"),
        ],
        "zero_norms": scalars(zero, "optim/grad_norm"),
        "skipped": scalars(poisoned, "optim/skipped_steps"),
        "finite": all(bool(p.isfinite().all()) for p in poisoned.model.parameters()),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
