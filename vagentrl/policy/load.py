"""A policy from what a run, an export or Hugging Face left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from vagentrl.contexts import Context, FullHistory
from vagentrl.engines.base import Engine
from vagentrl.errors import ConfigError
from vagentrl.formats import ReplyFormat
from vagentrl.models.load import SHIPPED, checkpoint_path, load_model
from vagentrl.models.lora import has_adapter
from vagentrl.modules.checkpoint_io import UNREADABLE, check_whole, checkpoints_in, unreadable
from vagentrl.modules.checks import differences
from vagentrl.policy.play import Policy
from vagentrl.rollout.policy_record import PolicyRecord
from vagentrl.rollout.renderer import Renderer

RECORD_FILE = "vagentrl.json"
"""Where an exported folder keeps the `PolicyRecord`."""
ADAPTER_FILE = "adapter_model.safetensors"
DEEPSPEED_FILE = "checkpoint/mp_rank_00_model_states.pt"
"""Where a checkpoint of DeepSpeed, which is a folder, has the weights (stages 1 and 2)."""
_IN_CHECKPOINT = "actor.policy."
_IN_ADAPTER = "base_model.model."


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
    name, model, record = _load(find_checkpoint(checkpoint), policy, dtype)
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
    if _is_checkpoint(path) or (path / "adapter_config.json").is_file():
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
    whole = [path for path in found if _is_checkpoint(path)]
    if not whole:
        raise ConfigError(
            f"{folder} holds neither a model (config.json) nor checkpoints (checkpoints/*.ckpt) "
            f"but {sorted(entry.name for entry in folder.iterdir())[:8]}; give a checkpoint, the "
            "folder of a run or that of a model"
        )
    last = [path for path in whole if path.name == "last.ckpt"]
    return last[0] if last else max(whole, key=lambda path: path.stat().st_mtime)


def _is_checkpoint(path: Path) -> bool:
    return path.is_file() or (path / DEEPSPEED_FILE).is_file()


def _load(
    source: Path | str, policy: str | None, dtype: str | None
) -> tuple[str, PreTrainedModel, PolicyRecord | None]:
    """The name of the model that the policy started from, the policy, and what is said of it."""
    if isinstance(source, str):
        if policy is not None:
            raise ConfigError(
                f"policy= is {policy!r}, but {source} is a model already; policy= says what a "
                "checkpoint started from: leave it out"
            )
        model = load_model(source, dtype=_dtype(dtype))
        return source, model, _exported_record(checkpoint_path(source))
    read = _read_checkpoint if _is_checkpoint(source) else _read_adapter
    weights, record = read(source)
    if record is not None:
        policy, dtype = policy or record.policy, dtype or record.dtype
    if policy is None:
        raise ConfigError(
            f"{source} does not say which model it is of; name the one that its run started from "
            "(model.policy) as policy="
        )
    model = load_model(policy, dtype=_dtype(dtype), lora=None if record is None else record.lora)
    _fill(model, weights, source, policy)
    return policy, model, record


def _fill(model: PreTrainedModel, weights: dict[str, Tensor], source: Path, name: str) -> None:
    """Put a checkpoint's weights into the model that it started from."""
    own = model.state_dict()
    if has_adapter(model):  # what it leaves as it was need not be saved
        own, weights = (
            {n: weight for n, weight in named.items() if "lora_" in n} for named in (own, weights)
        )
    if said := differences(weights, own):
        raise ConfigError(
            f"{source} is not of the model {name!r}: {said}. Give the model that its run started "
            "from as policy="
        )
    model.load_state_dict(weights, strict=False)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ConfigError(f"dtype is {name!r}; give one of {', '.join(known)}")
    return known[name]


# -------------------------------------------------------------------------- what is on the disk


def _read_checkpoint(path: Path) -> tuple[dict[str, Tensor], PolicyRecord | None]:
    file = path
    if path.is_dir():
        check_whole(path)
        file = path / DEEPSPEED_FILE
    try:  # memory-mapped: the critic and the optimizer's moments are not read
        saved: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UNREADABLE as error:
        raise unreadable(path, error) from error
    named = saved.get("state_dict") or saved.get("module") or {}
    weights = {
        name.removeprefix(_IN_CHECKPOINT): weight
        for name, weight in named.items()
        if name.startswith(_IN_CHECKPOINT)
    }
    if not weights:
        raise ConfigError(
            f"{path} holds no weights of a policy (no {_IN_CHECKPOINT}…); give a checkpoint that a "
            "vagentrl run has saved"
        )
    record = saved.get("policy")
    return weights, None if record is None else PolicyRecord.from_plain(record)


def _read_adapter(folder: Path) -> tuple[dict[str, Tensor], PolicyRecord | None]:
    saved = load_file(folder / ADAPTER_FILE)
    weights = {
        name.removeprefix(_IN_ADAPTER).replace(".weight", ".default.weight"): weight
        for name, weight in saved.items()
    }
    return weights, _exported_record(folder)


def _exported_record(folder: str | Path) -> PolicyRecord | None:
    path = Path(folder) / RECORD_FILE
    return PolicyRecord.from_plain(json.loads(path.read_text())) if path.is_file() else None
