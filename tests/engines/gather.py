"""A rank of two that share a model, for test_weights: prints whether it can be put together."""

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
    shares = share_fsdp(model) if kind == "fsdp2" else share_zero(model)
    assert all(shares[name] < wanted[name].numel() for name in wanted), shares
    found = dict(weights_of(model))
    assert list(found) == list(wanted)
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)
    print("whole")


def share_fsdp(model: nn.Module) -> dict[str, int]:
    """Shard the model; numbers that this rank holds of each weight."""
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh)
    return {name: weight.to_local().numel() for name, weight in model.named_parameters()}  # pyright: ignore


def share_zero(model: nn.Module) -> dict[str, int]:
    import deepspeed  # pyright: ignore

    deepspeed.init_distributed("gloo")
    config = {"train_batch_size": 2, "zero_optimization": {"stage": 3}}
    deepspeed.zero.Init(module=model, config_dict_or_path=config)
    return {name: weight.numel() for name, weight in model.named_parameters()}


if __name__ == "__main__":
    main(*sys.argv[1:])
