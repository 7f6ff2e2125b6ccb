"""A policy's weights on the disk, whichever strategy wrote them, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.modules.checkpoint_io import (
    DEEPSPEED_FILE,
    UNREADABLE,
    check_whole,
    state_file,
    unreadable,
)
from vagentrl.modules.sharded_checkpoint import SavedWeights, is_sharded_checkpoint
from vagentrl.rollout.policy_record import PolicyRecord

ADAPTER_FILE = "adapter_model.safetensors"
_IN_CHECKPOINT = "actor.policy."
_IN_ADAPTER = "base_model.model."


class StoredWeights(NamedTuple):
    """Weights that are read when they are asked for.

    Attributes:
        shapes: The shape of each weight by its name in the policy.
        read: Returns the weight of a name, on the CPU.
    """

    shapes: Mapping[str, torch.Size]
    read: Callable[[str], Tensor]

    def only(self, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of these names, one at a time."""
        for name in names:
            yield name, self.read(name)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint of a run: a file, or a folder of DeepSpeed or FSDP2."""
    return path.is_file() or (path / DEEPSPEED_FILE).is_file() or is_sharded_checkpoint(path)


def open_checkpoint(path: Path) -> tuple[StoredWeights, PolicyRecord | None]:
    """The policy's weights in a checkpoint of a run, and what is said of the policy.

    The other weights and the optimizer's moments are not read.

    Raises:
        ConfigError: When there is no policy in it.
        VagentError: When it is not whole.
    """
    if path.is_dir():
        check_whole(path)
    if is_sharded_checkpoint(path):
        saved = SavedWeights(path)
        shapes, read, others = saved.shapes, saved.read, saved.others()
    else:
        others = _map_file(state_file(path), path)
        named = others.get("state_dict") or others.get("module") or {}
        shapes = {name: weight.shape for name, weight in named.items()}
        read = named.__getitem__
    start = len(_IN_CHECKPOINT)
    own = {name[start:]: shape for name, shape in shapes.items() if name.startswith(_IN_CHECKPOINT)}
    if not own:
        raise ConfigError(
            f"{path} holds no weights of a policy (no {_IN_CHECKPOINT}…); give a checkpoint that a "
            "vagentrl run has saved"
        )
    record = others.get("policy")
    weights = StoredWeights(own, lambda name: read(_IN_CHECKPOINT + name))
    return weights, None if record is None else PolicyRecord.from_plain(record)


def _map_file(file: Path, checkpoint: Path) -> dict[str, Any]:
    try:  # memory-mapped: a weight is read when it is used
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UNREADABLE as error:
        raise unreadable(checkpoint, error) from error


def open_adapter(folder: Path) -> StoredWeights:
    """The weights in an adapter's folder."""
    file = folder / ADAPTER_FILE
    with safe_open(file, framework="pt") as saved:
        keys = {_own_name(key): key for key in saved.keys()}  # noqa: SIM118 (no mapping)
        shapes = {n: torch.Size(saved.get_slice(key).get_shape()) for n, key in keys.items()}
    return StoredWeights(shapes, partial(_read_adapter, file, keys))


def _own_name(key: str) -> str:
    """The name that PEFT gives a weight of an adapter in a model."""
    return key.removeprefix(_IN_ADAPTER).replace(".weight", ".default.weight")


def _read_adapter(file: Path, keys: Mapping[str, str], name: str) -> Tensor:
    with safe_open(file, framework="pt") as saved:
        return saved.get_tensor(keys[name])
