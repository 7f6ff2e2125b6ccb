"""Short runs whose policies are loaded and exported."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from tests import notebook, toy
from vagentrl import AgentModule, RolloutDataModule
from vagentrl.contexts import Window
from vagentrl.models.lora import LoRA
from vagentrl.models.tiny import build_image_processor
from vagentrl.modules.optimizer import AdamW

_FOLDERS = TemporaryDirectory(prefix="vagentrl-tests-")
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "images": {"images": True, "freeze_vision": True},
    "lora": {"lora": LoRA(rank=2, alpha=8)},
    "window": {"context": Window(turns=1)},
}


class Trained(NamedTuple):
    """A module after one iteration, its datamodule and its checkpoint."""

    agent: AgentModule
    data: RolloutDataModule
    checkpoint: Path


@cache
def start(images: bool) -> str:
    """Folder of a model with large weights: what it says depends on all that it has read."""
    folder = Path(_FOLDERS.name) / ("images" if images else "text")
    torch.manual_seed(0)
    parts: list[Any] = [toy.model(images), toy.tokenizer()]
    for part in [*parts, *([build_image_processor(toy.shape(images))] if images else [])]:
        part.save_pretrained(folder)
    return str(folder)


@cache
def trained(kind: str) -> Trained:
    """A run of one of the kinds; its last evaluation is in `data.evaluated`."""
    settings = dict(KINDS[kind])
    images = settings.pop("images", False)
    context = {"context": settings.pop("context")} if "context" in settings else {}
    agent = notebook.agent(policy=start(images), optimizer=AdamW(actor_lr=0.01), **settings)
    data = notebook.data(images, **context)
    trainer = notebook.trainer(max_epochs=1)
    trainer.fit(agent, data)
    path = Path(_FOLDERS.name, f"{kind}.ckpt")
    trainer.save_checkpoint(path)
    return Trained(agent, data, path)
