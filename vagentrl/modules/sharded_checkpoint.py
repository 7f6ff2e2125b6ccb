"""Checkpoint folders of FSDP2, in which every rank has written its parts of the weights.

The format is that of ``torch.distributed.checkpoint``: any number of ranks can read it, and one
process without any GPU as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader as dcp
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from vagentrl import ranks
from vagentrl.modules.checkpoint_io import SHARDED_FILE, UNREADABLE, unreadable
from vagentrl.modules.checks import check_fits

MODEL = "state_dict"
OPTIMIZER = "optimizer_0"


class Snapshot:
    """A copy of a checkpoint in main memory: of this rank's parts of the weights and moments.

    Args:
        checkpoint: What Lightning saves; weights and moments are taken out of it.
    """

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        moments = checkpoint.pop("optimizer_states", [])
        names = [f"optimizer_{number}" for number in range(len(moments))]
        sharded = {MODEL: checkpoint.pop("state_dict")} | dict(zip(names, moments, strict=True))
        self._sharded = {name: _copy(state) for name, state in sharded.items()}
        self._others = BytesIO()
        torch.save(checkpoint, self._others)

    def write(self, folder: Path) -> None:
        """Write what the ranks hold to a folder that is empty. All ranks call this together."""
        state_dict_saver.save(self._sharded, checkpoint_id=folder, process_group=ranks.group())
        if ranks.rank() == 0:
            (folder / SHARDED_FILE).write_bytes(self._others.getbuffer())


def _copy(state: Any) -> Any:
    """Copy nested dictionaries and lists of tensors, each of which is only a part if sharded."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copy(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(_copy, state))
    return state


def is_sharded_checkpoint(path: str | Path) -> bool:
    """Whether a folder is a checkpoint of FSDP2."""
    return (Path(path) / SHARDED_FILE).is_file()


class SavedWeights:
    """The weights in a checkpoint of FSDP2, which are read one at a time.

    Args:
        path: The folder.

    Raises:
        VagentError: When it is no such checkpoint.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with _readable(path):
            self._metadata = _metadata_of(path)
        self.shapes = {
            name.removeprefix(f"{MODEL}."): saved.size
            for name, saved in self._metadata.state_dict_metadata.items()
            if name.startswith(f"{MODEL}.") and isinstance(saved, TensorStorageMetadata)
        }
        """The shape of each weight by its name in the agent."""

    def read(self, name: str) -> Tensor:
        """A weight as a whole, on the CPU. No other rank takes part."""
        key = f"{MODEL}.{name}"
        saved: Any = self._metadata.state_dict_metadata[key]
        weight = torch.empty(saved.size, dtype=saved.properties.dtype)
        with _readable(self._path):
            dcp.load({key: weight}, checkpoint_id=self._path, no_dist=True)
        return weight

    def others(self, *, weights_only: bool | None = True) -> dict[str, Any]:
        """Everything but weights and optimizer: the states of loops, callbacks and datamodule."""
        with _readable(self._path):
            return torch.load(
                Path(self._path) / SHARDED_FILE, map_location="cpu", weights_only=weights_only
            )


def load_model(model: nn.Module, path: str | Path, left_out: set[str]) -> None:
    """Fill a sharded model. All ranks call this together.

    Args:
        model: The agent.
        path: The folder, which any number of ranks has written.
        left_out: Names of weights that no checkpoint holds.

    Raises:
        VagentError: When the checkpoint is of another model.
    """
    shapes = SavedWeights(path).shapes
    state = get_model_state_dict(model)
    own: dict[str, Any] = {n: weight for n, weight in state.items() if n not in left_out}
    check_fits({name: torch.empty(shape, device="meta") for name, shape in shapes.items()}, own)
    with _readable(path):
        dcp.load({MODEL: own}, checkpoint_id=path)
    set_model_state_dict(model, own, options=StateDictOptions(strict=False))


def load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, path: str | Path) -> None:
    """Fill the optimizer of a sharded model. All ranks call this together.

    Weights that had not taken a step when the checkpoint was saved have no state in it.
    """
    prefix = f"{OPTIMIZER}.state."
    stepped = [name for name in _metadata_of(path).state_dict_metadata if name.startswith(prefix)]
    names = {name.removeprefix(prefix).rpartition(".")[0] for name in stepped}
    if not names:
        return
    state: dict[str, Any] = get_optimizer_state_dict(model, optimizer)
    state["state"] = {name: held for name, held in state["state"].items() if name in names}
    with _readable(path):
        dcp.load({OPTIMIZER: state}, checkpoint_id=path)
    set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(strict=False))
    for name, weight in model.named_parameters():
        if name not in names:
            optimizer.state.pop(weight, None)  # reading the state above has made an empty one


def _metadata_of(path: str | Path) -> Metadata:
    return FileSystemReader(path).read_metadata()


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    """Turn torch's errors about a broken checkpoint into a `VagentError`."""
    try:
        yield
    except CheckpointException as error:  # what failed, by rank
        raise unreadable(path, RuntimeError(*error.failures.values())) from error
    except UNREADABLE as error:
        raise unreadable(path, error) from error
