"""A policy from what a run, an export or Hugging Face left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from vagentrl.contexts import Context, FullHistory
from vagentrl.engines.base import Engine
from vagentrl.errors import ConfigError
from vagentrl.formats import ReplyFormat
from vagentrl.models.load import SHIPPED, checkpoint_path, load_model
from vagentrl.models.lora import has_adapter
from vagentrl.modules.checkpoint_io import checkpoints_in
from vagentrl.modules.checks import differences
from vagentrl.policy.play import Policy
from vagentrl.policy.stored_weights import (
    StoredWeights,
    is_checkpoint,
    open_adapter,
    open_checkpoint,
)
from vagentrl.rollout.policy_record import PolicyRecord
from vagentrl.rollout.renderer import Renderer

RECORD_FILE = "vagentrl.json"
"""Where an exported folder keeps the `PolicyRecord`."""


class Source(NamedTuple):
    """What a policy is made of.

    Attributes:
        name: The model that it started from, as `load_model` takes it.
        weights: The weights that differ from that model's; None if it is that model.
        record: What is said of the policy.
        path: Where the weights are.
    """

    name: str
    weights: StoredWeights | None
    record: PolicyRecord | None
    path: Path | str


def load_policy(
    checkpoint: str | Path,
    *,
    policy: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | None = None,
    context: Context | None = None,
    engine: Engine | None = None,
) -> Policy:
    """A policy to play with.

    Args:
        checkpoint: A checkpoint of a run (``….ckpt``); a run's folder, for its last checkpoint; a
            folder that `export_policy` wrote; or a model as `AgentModule` takes it: a Hugging Face
            folder or hub name, or one that ships with vagentrl.
        policy: The model that a checkpoint or an adapter started from, where it does not say so or
            the model has moved.
        device: Where the weights are put.
        dtype: Type of the weights, such as ``bfloat16``; None: as in training, or as saved.
        context: What the policy sees of the past; None: as in training, or all of it.
        engine: Samples the replies; None: `vagentrl.engines.TransformersEngine`.

    Raises:
        ConfigError: When there is no such checkpoint, or it does not say enough.
        VagentError: When the checkpoint cannot be read.
    """
    source = find_source(checkpoint, policy)
    name, record, model = source.name, source.record, build_model(source, dtype)
    renderer = Renderer.from_pretrained(name)
    model.requires_grad_(False).to(device)  # pyright: ignore
    if record is None:
        return Policy(name, model, renderer, context=context or FullHistory(), engine=engine)
    context = context or record.context.build(Context)
    if context is None:
        raise ConfigError(
            f"the policy was trained with a context of class {record.context.class_path}, which "
            "cannot be made from what the checkpoint says; import its module before, or give one "
            "as context="
        )
    reply_format = record.reply_format
    return Policy(
        name,
        model,
        renderer,
        sampling=record.sampling,
        context=context,
        context_length=record.context_length,
        system_prompt=record.system_prompt,
        reply_format=None if reply_format is None else reply_format.build(ReplyFormat),
        engine=engine,
        record=record,
    )


def find_checkpoint(checkpoint: str | Path) -> Path | str:
    """The file of a checkpoint, the folder of an adapter, or a model as `load_model` takes it.

    Raises:
        ConfigError: When there is none.
    """
    if str(checkpoint) in SHIPPED:
        return str(checkpoint)
    path = Path(checkpoint).expanduser()
    if is_checkpoint(path) or (path / "adapter_config.json").is_file():
        return path
    if path.is_dir() and not (path / "config.json").is_file():
        return _last_checkpoint(path)
    if path.suffix == ".ckpt" and not path.exists():
        near = checkpoints_in(path.parent)
        raise ConfigError(
            f"there is no checkpoint {path}; {path.parent} holds "
            f"{', '.join(file.name for file in near) or 'none'}"
        )
    return str(checkpoint)


def _last_checkpoint(folder: Path) -> Path:
    """The last checkpoint in a run's folder."""
    found = [*checkpoints_in(folder), *checkpoints_in(folder / "checkpoints")]
    whole = [path for path in found if is_checkpoint(path)]
    if not whole:
        raise ConfigError(
            f"{folder} holds neither a model (config.json) nor checkpoints (checkpoints/*.ckpt) "
            f"but {sorted(entry.name for entry in folder.iterdir())[:8]}; give a checkpoint, the "
            "folder of a run or that of a model"
        )
    last = [path for path in whole if path.name == "last.ckpt"]
    return last[0] if last else max(whole, key=lambda path: path.stat().st_mtime)


def find_source(checkpoint: str | Path, policy: str | None = None) -> Source:
    """What there is of a policy, before any weight is read. The arguments are `load_policy`'s."""
    path = find_checkpoint(checkpoint)
    if isinstance(path, str):
        if policy is not None:
            raise ConfigError(
                f"policy= is {policy!r}, but {path} is a model already; policy= says what a "
                "checkpoint started from: leave it out"
            )
        return Source(path, None, _exported_record(checkpoint_path(path)), path)
    if is_checkpoint(path):
        weights, record = open_checkpoint(path)
    else:
        weights, record = open_adapter(path), _exported_record(path)
    if record is not None:
        policy = policy or record.policy
    if policy is None:
        raise ConfigError(
            f"{path} does not say which model it is of; name the one that its run started from "
            "(model.policy) as policy="
        )
    return Source(policy, weights, record, path)


def build_model(source: Source, dtype: str | None, *, meta: bool = False) -> PreTrainedModel:
    """The model of a source.

    Args:
        source: Where its weights are.
        dtype: As in `load_policy`.
        meta: Build it on the meta device, without weights.

    Raises:
        ConfigError: When the weights are of another model.
    """
    if source.weights is None:
        return load_model(source.name, dtype=type_of(dtype), meta=meta)
    record = source.record
    wanted = type_of(dtype or (None if record is None else record.dtype))
    lora = None if record is None else record.lora
    model = load_model(source.name, dtype=wanted, lora=lora, meta=meta)
    own = model.state_dict()
    shapes = {name: torch.empty(s, device="meta") for name, s in source.weights.shapes.items()}
    if has_adapter(model):  # what it leaves as it was need not be saved
        own = {name: weight for name, weight in own.items() if "lora_" in name}
        shapes = {name: shape for name, shape in shapes.items() if "lora_" in name}
    if said := differences(shapes, own):
        raise ConfigError(
            f"{source.path} is not of the model {source.name!r}: {said}. Give the model that its "
            "run started from as policy="
        )
    if not meta:
        for name, weight in source.weights.only(own.keys()):  # in place, one at a time
            own[name].copy_(weight)
    return model


def type_of(name: str | None) -> torch.dtype | None:
    """The type of a name, such as ``bfloat16``."""
    if name is None:
        return None
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ConfigError(f"dtype is {name!r}; give one of {', '.join(known)}")
    return known[name]


def _exported_record(folder: str | Path) -> PolicyRecord | None:
    path = Path(folder) / RECORD_FILE
    return PolicyRecord.from_plain(json.loads(path.read_text())) if path.is_file() else None
