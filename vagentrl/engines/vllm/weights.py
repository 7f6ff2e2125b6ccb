"""Weights for vLLM: gather them, save them, load them into a vLLM worker and read them back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vagentrl.models.sharded import gathered

PLAIN = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of weights that are not quantised."""
SHARD_BYTES = 2**30
"""Bytes of weights after which a new file is started."""


def parameters_of(policy: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every base parameter with its Hugging Face name.

    Tied parameters are yielded once; the parameters of adapters are left out.
    """
    for name, parameter in policy.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def bytes_of(policy: nn.Module) -> int:
    """The bytes of all weights that `weights_of` yields, gathered."""
    # ZeRO-3 leaves an empty tensor of each parameter and keeps its size aside.
    return sum(
        getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
        for _, parameter in parameters_of(policy)
    )


def adapter_bytes(policy: nn.Module) -> int:
    """The bytes of the weights of adapters."""
    return sum(p.nbytes for name, p in policy.named_parameters() if ".lora_" in name)


def weights_of(
    policy: nn.Module, only: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of `parameters_of` with its name, one at a time.

    A sharded weight (FSDP2, ZeRO-3) is gathered when it is yielded and freed afterwards, so all
    ranks must iterate over the same weights.

    Args:
        policy: The policy.
        only: Names of the weights to yield; None for all.
    """
    for name, parameter in parameters_of(policy):
        if only is None or name in only:
            with gathered(parameter) as weight:
                yield name, weight


def load_weights(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Replace all weights of the worker's model.

    Args:
        worker: A vLLM worker.
        weights: Gathered weights with their Hugging Face names.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore

    worker.reload_weights(weights_iterator=weights)
    for module in worker.get_model().modules():
        # vLLM does not repack a head that is tied to the embeddings, because no weights are
        # loaded for it. On a CPU it would keep using the old weights (seen in 0.32).
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


@torch.inference_mode()
def compare(worker: Any, wanted: Iterable[tuple[str, Tensor]]) -> dict[str, bool]:
    """Compare the weights of the worker's model with these.

    A layer whose weights vLLM has packed for its kernels is read back by applying it to the
    identity matrix. With tensor parallelism, only weights that are not sharded are compared.

    Args:
        worker: A vLLM worker.
        wanted: The expected weights with their Hugging Face names, in the model's order. Of
            weights that vLLM packs into one (such as q, k and v), give all or none.

    Returns:
        For each weight that can be read back, whether it is equal.
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
    filled: Counter[str] = Counter()  # rows of each packed weight that earlier parts occupy
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


def equal_on_all(found: Sequence[dict[str, bool]]) -> dict[str, bool]:
    """Combine the results of `compare` from several workers."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: all(one.get(name, True) for one in found) for name in names}


def _read(module: nn.Module, kind: str) -> Tensor | None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod  # pyright: ignore
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore
        UnquantizedEmbeddingMethod,
    )

    module = getattr(module, "base_layer", module)  # the layer inside an adapter's wrapper
    held = getattr(module, kind, None)
    if held is not None and held.numel():
        return held if held.dtype in PLAIN else None
    method: Any = getattr(module, "quant_method", None)
    width = getattr(module, "input_size_per_partition", None)
    plain = isinstance(method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)
    if kind != "weight" or not plain or width is None:
        return None
    like = next(p for p in module.parameters() if p.is_floating_point())
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    return method.apply(module, eye, None).T


class WeightsFromFile:
    """Methods that ``--worker-extension-cls`` adds to the workers of vLLM."""

    def vagentrl_load(self, folder: str) -> list[str]:
        """Load all weights from the files of `save`; return the files' names."""
        if files := files_in(folder):
            load_weights(self, read(folder))
        return files

    def vagentrl_compare(self, folder: str, only: Sequence[str] | None) -> dict[str, bool]:
        """Run `compare` with the weights of these names in the files of `save`; None for all."""
        return compare(self, read(folder, only))


def save(weights: Iterable[tuple[str, Tensor]], folder: str) -> None:
    """Write weights to safetensors files in a new folder, and keep their order.

    At most one file's weights are in memory at a time.
    """
    Path(folder).mkdir()
    shard: dict[str, Tensor] = {}
    count, size = 0, 0

    def write() -> None:
        nonlocal count, size
        order = json.dumps(list(shard))  # safetensors itself sorts by name
        save_file(shard, f"{folder}/{count:05}.safetensors", metadata={"order": order})
        count, size = count + 1, 0
        shard.clear()

    for name, weight in weights:
        # Copy even on a CPU: a view would keep the gathered weight alive.
        shard[name] = weight.to("cpu", copy=True, memory_format=torch.contiguous_format)
        size += weight.nbytes
        if size >= SHARD_BYTES:
            write()
    if shard:
        write()


def files_in(folder: str) -> list[str]:
    """Return the names of the files that `save` wrote to a folder; none if there is no folder."""
    return sorted(path.name for path in Path(folder).glob("*.safetensors"))


def read(folder: str, only: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that `save` wrote to a folder, one at a time."""
    for path in files_in(folder):
        with safe_open(f"{folder}/{path}", framework="pt") as file:
            for name in json.loads(file.metadata()["order"]):
                if only is None or name in only:
                    yield name, file.get_tensor(name)
