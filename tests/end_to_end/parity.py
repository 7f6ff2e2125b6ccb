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
from vagentrl.models.sharded import full, full_state

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

UNCLIPPED = "--trainer.gradient_clip_val=null"  # DeepSpeed's norm is of actor and critic together
CASES: dict[str, tuple[str, ...]] = {
    "images and a critic": (UNCLIPPED, "--data.passes=2", "--model.gradient_checkpointing=true"),
    "clipped, no critic": ("--model.advantage=GroupRelative", "--trainer.gradient_clip_val=0.01"),
    "LoRA": (UNCLIPPED, "--model.lora.rank=4"),
    "windows and a shared critic": (
        UNCLIPPED, "--model.critic=shared", "--data.turns=3", "--data.env.init_args.turn_limit=7",
        "--data.context=Window", "--data.context.turns=1", "--model.score_batch_size=3",
    ),
    "a warm-up and a frozen vision tower": (
        UNCLIPPED, "--model.freeze_vision=true", "--trainer.callbacks+=CriticWarmup",
        "--trainer.callbacks.rounds=1",
    ),
}  # fmt: skip
"""Extra arguments of each case, by its name."""
WITH_IMAGES = ("images and a critic", "a warm-up and a frozen vision tower")
EVERY = (
    "--data.groups=4",
    "--data.minibatch_size=4",
    "--trainer.enable_progress_bar=false",
    "--trainer.logger.init_args.name=parity",
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
    arguments = runs.arguments(*EVERY, *CASES[case], *settings, images=case in WITH_IMAGES)
    run = VagentCLI(arguments, run=False)
    gradients = Gradients()
    runs.callbacks(run).append(gradients)
    path = run.config.ckpt_path
    run.trainer.fit(run.model, run.datamodule, ckpt_path=path, weights_only=True)
    return {"gradients": gradients.seen, **results(run)}


def results(run: VagentCLI) -> dict[str, Any]:
    """What the ranks of a run must agree on with each other and with a single process."""
    metrics = run.trainer.callback_metrics
    return {
        "weights": {name: weight.detach().clone() for name, weight in full_state(run.model)},
        "losses": {
            name: float(value) for name, value in metrics.items() if name.startswith("train/")
        },
        "evaluated": {n: float(value) for n, value in metrics.items() if n == "val/return"},
        "folder": str(runs.folder(run).absolute()),
    }


def shared_weights(*settings: str) -> dict[str, Any]:
    """What there is to see in a run of FSDP2 beside its results."""
    run = runs.fit(*EVERY, *CASES["images and a critic"], *settings, images=True)
    policy = run.model.actor.policy
    held = sum(weight.to_local().numel() for weight in run.model.parameters())  # pyright: ignore
    with torch.no_grad():  # an engine compares log-probs with the policy's own
        ids = torch.tensor([[1, 2, 3, 4]])
        logits = policy(input_ids=ids).logits
    return {
        "share": held / sum(weight.numel() for weight in run.model.parameters()),
        "logits": logits,
        "synced": {name: weight.clone() for name, weight in weights_of(policy)},
    } | results(run)


def main(rank: str, port: str, strategy: str, *settings: str) -> None:
    os.environ.update(LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    for images in (False, True):
        runs.checkpoint(images)  # with a process group Transformers would save it on rank 0 only
    arguments = (*STRATEGIES[strategy], *settings)
    if "--ckpt_path" in settings:
        torch.save(fit("images and a critic", *arguments), Path(f"resumed_{rank}.pt"))
        return
    found: dict[str, Any] = {case: fit(case, "--trainer.devices=2", *arguments) for case in CASES}
    if strategy == "fsdp2":
        two = ("--trainer.devices=2", *arguments)
        found["shared"] = shared_weights(*two)
        half = fit("LoRA", *two, "--trainer.max_epochs=1")
        path = f"{half['folder']}/checkpoints/last.ckpt"
        found["resumed"] = fit("LoRA", *two, "--ckpt_path", path)
        half = fit("images and a critic", *two, "--trainer.max_epochs=1")
        found["half"] = half
    torch.save(found, Path(f"{strategy}_{rank}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
