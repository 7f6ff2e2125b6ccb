"""Puts weights into a vLLM model, and reads them back out. Runs in vLLM's workers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

PLAIN = (torch.float32, torch.bfloat16, torch.float16)
SHARD_BYTES = 2**30
"""Of weights, in a file."""


def parameters_of(policy: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter by its Hugging Face name; tied ones once, adapters not at all."""
    for name, parameter in policy.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def weights_of(
    policy: nn.Module, only: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its Hugging Face name, one at a time; tied ones once, adapters not at all.

    A weight that several ranks share (FSDP2, ZeRO-3) is gathered when its turn comes, and let go
    when the next one's does. All ranks must then ask for the same ones.

    Args:
        policy: The policy.
        only: Names of the weights to give; None: all.
    """
    for name, parameter in parameters_of(policy):
        if only is None or name in only:
            with _whole(parameter) as weight:
                yield name, weight


@contextmanager
def _whole(parameter: nn.Parameter) -> Iterator[Tensor]:
    if isinstance(parameter, DTensor):
        yield parameter.detach().full_tensor()  # pyright: ignore
    elif hasattr(parameter, "ds_id"):  # how DeepSpeed marks what ZeRO-3 has partitioned
        from deepspeed.runtime.zero import GatheredParameters  # pyright: ignore

        with GatheredParameters([parameter]):
            yield parameter.detach()
    else:
        yield parameter.detach()


def load_weights(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Replace all weights of the worker's model.

    Args:
        worker: A vLLM worker.
        weights: Whole weights by their Hugging Face names.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore

    worker.reload_weights(weights_iterator=weights)
    for module in worker.get_model().modules():
        # A head tied to the embeddings gets no weights of its own, so vLLM does not pack it anew:
        # on a CPU it would go on with the old ones (seen in 0.32).
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


@torch.inference_mode()
def compare(worker: Any, wanted: Iterable[tuple[str, Tensor]]) -> dict[str, bool]:
    """Whether the worker's model holds these weights, as far as they can be read back.

    Layers whose weights vLLM has packed for its kernels are read back by applying them to the
    identity. Of a model that several workers share only what each holds whole is read.

    Args:
        worker: A vLLM worker.
        wanted: The weights by their Hugging Face names, in the model's order; of those that vLLM
            packs into one all or none.
    """
    from vllm.distributed import get_tensor_model_parallel_world_size  # pyright: ignore

    model = worker.get_model()
    modules = dict(model.named_modules())
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    whole_of = {
        part: whole
        for whole, parts in getattr(model, "packed_modules_mapping", {}).items()
        for part in parts
    }
    shared = get_tensor_model_parallel_world_size() > 1
    filled: Counter[str] = Counter()  # rows of a packed weight that earlier parts take up
    same: dict[str, bool] = {}
    for name, weight in wanted:
        path, _, kind = (mapper._map_name(name) or "" if mapper else name).rpartition(".")
        parent, _, leaf = path.rpartition(".")
        packed = f"{parent}.{whole_of.get(leaf, leaf)}".removeprefix(".")
        start = filled[f"{packed}.{kind}"]
        filled[f"{packed}.{kind}"] += len(weight)
        if packed not in modules or (shared and leaf in whole_of):
            continue
        held = _read(modules[packed], kind)
        part = None if held is None else held[start : start + len(weight)]
        if part is not None and part.shape == weight.shape:
            same[name] = torch.equal(part, weight.to(device=part.device, dtype=part.dtype))
    return same


def held_by_all(found: Sequence[dict[str, bool]]) -> dict[str, bool]:
    """What `compare` found in several workers, put together."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: all(one.get(name, True) for one in found) for name in names}


def _read(module: nn.Module, kind: str) -> Tensor | None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # pyright: ignore
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore
        UnquantizedEmbeddingMethod,
    )

    module = getattr(module, "base_layer", module)  # of what an adapter wraps
    held = getattr(module, kind, None)
    if held is not None and held.numel():
        return held if held.dtype in PLAIN else None
    method = getattr(module, "quant_method", None)
    width = getattr(module, "input_size_per_partition", None)
    plain = isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)
    if kind != "weight" or not plain or width is None:
        return None
    like = next(p for p in module.parameters() if p.is_floating_point())
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    return method.apply(module, eye, None).T


class WeightsFromFile:
    """What a vLLM server's workers can do beyond vLLM's own: ``--worker-extension-cls``."""

    def vagentrl_load(self, folder: str) -> None:
        """Take all weights from the files of `save`."""
        load_weights(self, read(folder))

    def vagentrl_compare(self, folder: str, only: Sequence[str] | None) -> dict[str, bool]:
        """`compare` with the files of `save`; None: with all in them."""
        return compare(self, read(folder, only))


def save(weights: Iterable[tuple[str, Tensor]], folder: str) -> None:
    """Write weights, in their order, to safetensors files in a new folder.

    No more of them is held at a time than goes into one file.
    """
    Path(folder).mkdir()
    shard: dict[str, Tensor] = {}
    count, size = 0, 0

    def write() -> None:
        nonlocal count, size
        order = json.dumps(list(shard))  # safetensors sorts them
        save_file(shard, f"{folder}/{count:05}.safetensors", metadata={"order": order})
        count, size = count + 1, 0
        shard.clear()

    for name, weight in weights:
        # a copy also on a CPU: a view would keep a gathered weight
        shard[name] = weight.to("cpu", copy=True, memory_format=torch.contiguous_format)
        size += weight.nbytes
        if size >= SHARD_BYTES:
            write()
    if shard:
        write()


def read(folder: str, only: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """The weights that were saved in a folder, one at a time."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in json.loads(file.metadata()["order"]):
                if only is None or name in only:
                    yield name, file.get_tensor(name)
