"""One of two ranks that shard a model: checks that `weights_of` gathers it. Run by test_weights."""

import os
import sys

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from vagentrl.engines.vllm.weights import weights_of


def main(kind: str, rank: str, port: str) -> None:
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", DS_ACCELERATOR="cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    wanted = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    sizes = shard_with_fsdp(model) if kind == "fsdp2" else shard_with_zero(model)
    assert all(sizes[name] < wanted[name].numel() for name in wanted), sizes
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


def shard_with_zero(model: nn.Module) -> dict[str, int]:
    import deepspeed  # pyright: ignore

    deepspeed.init_distributed("gloo")
    config = {"train_batch_size": 2, "zero_optimization": {"stage": 3}}
    deepspeed.zero.Init(module=model, config_dict_or_path=config)
    return {name: weight.numel() for name, weight in model.named_parameters()}


if __name__ == "__main__":
    main(*sys.argv[1:])
