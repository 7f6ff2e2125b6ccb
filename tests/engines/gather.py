"""One of two ranks that shard a model: checks that `weights_of` gathers it, also to name a weight
that only one rank's engine lacks. Run by test_weights."""

import os
import sys
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from vagentrl.engines.base import Generation, GenerationRequest, Sampling
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.weights import weights_of
from vagentrl.errors import EngineError


def main(kind: str, rank: str, port: str) -> None:
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", DS_ACCELERATOR="cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    wanted = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    sizes = shard_with_fsdp(model) if kind != "zero3" else shard_with_zero(model)
    assert all(sizes[name] < wanted[name].numel() for name in wanted), sizes
    if kind == "blame":
        print(blamed(model, int(rank)))
        return
    found = dict(weights_of(model))
    assert list(found) == list(wanted)
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)
    print("gathered")


def shard_with_fsdp(model: nn.Module) -> dict[str, int]:
    """Shard the model; return how many elements of each weight this rank holds."""
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh)
    return {name: weight.to_local().numel() for name, weight in model.named_parameters()}  # pyright: ignore


def blamed(model: nn.Module, rank: int) -> str:
    """What is raised when rank 1 alone has an engine whose replies are not the model's."""
    canary: Any = object.__new__(Canary)
    canary.tolerance, canary.request = 1e-3, GenerationRequest(0, (1, 2), (), Sampling(), 0)
    canary._logprobs = lambda policy, reply: torch.tensor([-1.0])

    def blame() -> str | None:
        names = [name for name, _ in weights_of(model)]  # every rank must take part
        return names[2] if rank == 1 else None

    try:
        canary.check(model, Generation((1,), (-1.0 - rank,), "stop", 0), blame)
    except EngineError as error:
        return str(error)
    return "no error"


def shard_with_zero(model: nn.Module) -> dict[str, int]:
    import deepspeed  # pyright: ignore

    deepspeed.init_distributed("gloo")
    config = {"train_batch_size": 2, "zero_optimization": {"stage": 3}}
    deepspeed.zero.Init(module=model, config_dict_or_path=config)
    return {name: weight.numel() for name, weight in model.named_parameters()}


if __name__ == "__main__":
    main(*sys.argv[1:])
