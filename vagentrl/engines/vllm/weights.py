"""Puts weights into a vLLM model, and reads them back out. Runs in vLLM's workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def weights_of(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight by its Hugging Face name, one at a time; tied ones once, adapters not at all.

    A weight that several ranks share (FSDP2, ZeRO-3) is gathered when its turn comes, so that no
    rank ever holds the whole model twice. All ranks must then ask for all of them.
    """
    for name, parameter in policy.named_parameters():
        if ".lora_" not in name:
            with _whole(parameter) as weight:
                yield name.replace(".base_layer.", "."), weight


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
def first_difference(worker: Any, wanted: Sequence[tuple[str, Tensor]]) -> str | None:
    """The first weight, by its Hugging Face name, that the worker's model does not hold.

    Layers whose weights vLLM has packed for its kernels are read back by applying them to the
    identity, which rounds as the layer does: a weight differs when it is off by more than that.

    Args:
        worker: A vLLM worker that holds the whole model; None is returned for one that holds a
            shard.
        wanted: The weights, in the model's order.
    """
    model = worker.get_model()
    whole_of = {
        part: whole
        for whole, parts in getattr(model, "packed_modules_mapping", {}).items()
        for part in parts
    }
    filled: Counter[str] = Counter()  # rows of a packed weight that earlier parts take up
    for name, weight in wanted:
        path, _, kind = model.hf_to_vllm_mapper._map_name(name).rpartition(".")
        parent, _, leaf = path.rpartition(".")
        path = f"{parent}.{whole_of.get(leaf, leaf)}"
        start = filled[f"{path}.{kind}"]
        filled[f"{path}.{kind}"] += len(weight)
        held = _read(model.get_submodule(path), kind)
        part = None if held is None else held[start : start + len(weight)]
        if part is None or part.shape != weight.shape:
            continue  # a shard, or a layer that cannot be read back
        if not torch.allclose(part.float().cpu(), weight.float().cpu(), rtol=1e-5, atol=1e-6):
            return name
    return None


def _read(module: nn.Module, kind: str) -> Tensor | None:
    module = getattr(module, "base_layer", module)  # of what an adapter wraps
    held = getattr(module, kind, None)
    if held is not None and held.numel():
        return held
    method = getattr(module, "quant_method", None)
    width = getattr(module, "input_size_per_partition", None)
    if kind != "weight" or method is None or width is None:
        return None
    like = next(p for p in module.parameters() if p.is_floating_point())
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    return method.apply(module, eye, None).T


class WeightsFromFile:
    """What a vLLM server's workers can do beyond vLLM's own: ``--worker-extension-cls``."""

    def vagentrl_load(self, path: str) -> None:
        """Take all weights from a safetensors file."""
        load_weights(self, read(path))

    def vagentrl_first_difference(self, path: str) -> dict[str, str | None]:
        """The first weight of the file that the model does not hold."""
        return {"name": first_difference(self, list(read(path)))}


def read(path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file, one at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            yield name, file.get_tensor(name)
