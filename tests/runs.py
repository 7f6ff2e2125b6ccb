"""Complete runs of the toy task with the command line's code."""

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from transformers.utils.logging import disable_progress_bar

from tests import toy
from vagentrl.cli.trainer import VagentCLI
from vagentrl.models.sharded import full
from vagentrl.models.tiny import build_image_processor, build_model

TOY_RUN = Path(__file__).parent / "data" / "toy_run.yaml"
disable_progress_bar()
_FOLDERS = TemporaryDirectory(prefix="vagentrl-tests-")


AHEAD = (
    "--data.staleness=1",
    "--data.engine=TransformersEngine",
    "--data.engine.own_copy=true",
    "--model.policy_loss=PPOClip",
    "--model.policy_loss.importance=TruncatedImportance",
)
"""Settings of a run that collects the next batch while the actor learns."""


@cache
def checkpoint(images: bool = False) -> str:
    """Save an untrained model for the toy task, and return its folder."""
    folder = Path(_FOLDERS.name) / ("images" if images else "text")
    shape = replace(toy.shape(images), context_length=1024)
    torch.manual_seed(0)
    parts: list[Any] = [build_model(shape, toy.tokenizer()), toy.tokenizer()]
    for part in [*parts, *([build_image_processor(shape)] if images else [])]:
        part.save_pretrained(folder)
    return str(folder)


def arguments(*overrides: str, images: bool = False) -> list[str]:
    """Return the command-line arguments of ``vagentrl fit`` for the toy run."""
    shown = ["--data.env.init_args.images", str(images).lower()]
    return ["--config", str(TOY_RUN), "--model.policy", checkpoint(images), *shown, *overrides]


def prepare(*overrides: str, images: bool = False) -> VagentCLI:
    """Build the toy run's trainer, module and datamodule without running them."""
    return VagentCLI(arguments(*overrides, images=images), run=False)


def fit(*overrides: str, images: bool = False) -> VagentCLI:
    """Run ``vagentrl fit``."""
    return VagentCLI(["fit", *arguments(*overrides, images=images)])


def callbacks(cli: VagentCLI) -> list[Callback]:
    """Return the trainer's list of callbacks, which may be changed."""
    return cli.trainer.callbacks  # pyright: ignore


def folder(cli: VagentCLI) -> Path:
    """Return the run's folder."""
    return Path(cli.trainer.log_dir or "")


def summary(cli: VagentCLI) -> dict[str, Any]:
    return json.loads((folder(cli) / "summary.json").read_text())


def events(cli: VagentCLI) -> EventAccumulator:
    """Read the run's TensorBoard events."""
    everything = dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)
    accumulator = EventAccumulator(str(folder(cli)), size_guidance=everything)
    accumulator.Reload()
    return accumulator


def fingerprint(module: nn.Module) -> str:
    """Return a hash of a module's weights and buffers; all ranks must call it if it is sharded."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(full(tensor.detach()).cpu().numpy().tobytes())
    return digest.hexdigest()
