"""One rank of a run under some strategy, for test_parity: runs every case, stores its results."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from tests import runs
from vagentrl.cli.trainer import VagentCLI
from vagentrl.engines.vllm.weights import weights_of
from vagentrl.models.sharded import full, full_state, is_sharded

STRATEGIES = {
    "ddp": ("--trainer.strategy=ddp",),
    "zero_1": (
        "--trainer.strategy.class_path=tests.cpu_deepspeed.CPUDeepSpeed",
        "--trainer.strategy.init_args.stage=1",
    ),
    "zero_2": (
        "--trainer.strategy.class_path=tests.cpu_deepspeed.CPUDeepSpeed",
        "--trainer.strategy.init_args.stage=2",
    ),
    "fsdp2": ("--trainer.strategy=fsdp2",),
}
"""Settings of each strategy."""

GROUP_RELATIVE = "--model.advantage=GroupRelative"
UNCLIPPED = "--trainer.gradient_clip_val=null"  # DeepSpeed's norm is of actor and critic together
ONE = "--trainer.max_epochs=1"
CASES: dict[str, tuple[str, ...]] = {
    "images, a critic, checkpointed activations": (
        UNCLIPPED, ONE, "--data.passes=2", "--model.gradient_checkpointing=true",
        "--trainer.callbacks+=TrajectoryStore", "--trainer.callbacks.entropy=true",
    ),
    "LoRA, clipped": ("--model.lora.rank=4", GROUP_RELATIVE, "--trainer.gradient_clip_val=0.01"),
    "windows, a shared critic, a warm-up, a frozen vision tower": (
        UNCLIPPED, "--model.critic=shared", "--model.freeze_vision=true", "--data.context=Window",
        "--data.context.turns=1", "--trainer.callbacks+=CriticWarmup",
        "--trainer.callbacks.rounds=1", "--model.score_batch_size=3",
    ),
    "images in some rows": (
        UNCLIPPED, ONE, "--data.passes=2",
        "--data.env=tests.end_to_end.environments.HalfSeen",
    ),
}  # fmt: skip
"""Extra arguments of each case, by its name."""
IMAGES, LORA, WINDOWS, SOME_IMAGES = CASES
EVERY = (
    "--data.groups=4",
    "--data.minibatch_size=4",
    "--trainer.limit_val_batches=0",
    "--trainer.enable_progress_bar=false",
)


class Gradients(Callback):
    """Keeps the gradients of the first optimizer step; DeepSpeed shows none in their place."""

    def __init__(self) -> None:
        self.seen: dict[str, Tensor] = {}

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        if not self.seen:
            for name, weight in pl_module.named_parameters():
                if weight.grad is not None:
                    self.seen[name] = full(weight.grad).clone()


def fit(case: str, *settings: str) -> dict[str, Any]:
    """Run a case and return its results."""
    arguments = runs.arguments(*EVERY, *CASES[case], *settings, images=case != LORA)
    run = VagentCLI(arguments, run=False)
    gradients = Gradients()
    runs.callbacks(run).append(gradients)
    path = run.config.ckpt_path
    run.trainer.fit(run.model, run.datamodule, ckpt_path=path, weights_only=True)
    metrics = run.trainer.callback_metrics
    return {
        "gradients": gradients.seen,
        "weights": {name: weight.detach().clone() for name, weight in full_state(run.model)},
        "losses": {n: float(value) for n, value in metrics.items() if n.startswith("train/")},
        "checkpoint": str(runs.folder(run).absolute() / "checkpoints" / "last.ckpt"),
    } | (_sharded(run) if is_sharded(run.model) else {})


def _sharded(run: VagentCLI) -> dict[str, Any]:
    """What an engine sees of a sharded policy, and how much of the models this rank holds."""
    policy = run.model.actor.policy
    held = sum(weight.to_local().numel() for weight in run.model.parameters())  # pyright: ignore
    with torch.no_grad():  # an engine compares log-probs with the policy's own
        logits = policy(input_ids=torch.tensor([[1, 2, 3, 4]])).logits
    return {
        "share": held / sum(weight.numel() for weight in run.model.parameters()),
        "logits": logits,
        "synced": {name: weight.clone() for name, weight in weights_of(policy)},
    }


def main(rank: str, port: str, strategy: str, *settings: str) -> None:
    os.environ.update(LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    for images in (False, True):
        runs.checkpoint(images)  # with a process group Transformers would save it on rank 0 only
    arguments = (*STRATEGIES[strategy], *settings)
    if "--ckpt_path" in settings:
        torch.save(fit(LORA, *arguments), Path(f"resumed_{rank}.pt"))
        return
    two = ("--trainer.devices=2", *arguments)
    found: dict[str, Any] = {case: fit(case, *two) for case in CASES}
    if strategy == "fsdp2":
        found["half"] = fit(LORA, *two, ONE)
        found["resumed"] = fit(LORA, *two, "--ckpt_path", found["half"]["checkpoint"])
    torch.save(found, Path(f"{strategy}_{rank}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
