"""One of two ranks that sample from a fleet, for test_vllm_fleet_ranks; stores what it saw."""

import asyncio
import os
import signal
import sys
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.engines.shipped import CONTEXT, TEXT, ask, changed, reference_engine, renderer
from tests.engines.shipped import request_of as request_for
from tests.engines.test_vllm_server import group_of
from vagentrl import ranks
from vagentrl.engines import VLLMFleet
from vagentrl.engines.base import Generation, GenerationRequest
from vagentrl.engines.vllm import base
from vagentrl.engines.vllm.weights import read, weights_of
from vagentrl.models.load import load_model

EPISODES = 4


def problems(engine: VLLMFleet) -> list[str | None]:
    return [member.problem for member in engine._members]


def requests(turn: int, **sampling: Any) -> list[GenerationRequest]:
    """This rank's requests of a turn; no two ranks have the same seeds."""
    first = 100 * ranks.rank() + 10 * turn
    return [request_for(TEXT, first + episode, **sampling) for episode in range(EPISODES)]


def with_fakes(urls: list[str]) -> dict[str, Any]:
    """Three updates, the last one of sharded weights.

    After the first, rank 1 alone finds that the second server is sick.
    """
    base.check_installed = lambda: None
    engine, policy = VLLMFleet(urls, patience_s=5), load_model(TEXT)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(policy, 0)
    ask(engine, *requests(0))
    seen: dict[str, Any] = {"played": problems(engine), "counts": engine.counts()}
    seen["left out"] = sorted(engine._left_out)
    engine.update_weights(policy, 1)
    seen["known"] = sorted(engine._left_out)
    whole = {name: weight.clone() for name, weight in weights_of(policy)}
    sharded = load_model(TEXT)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    engine.update_weights(sharded, 2)
    if engine._weights is not None:  # the folder, on the rank that writes
        saved = dict(read(engine._weights))
        seen["saved"] = [torch.equal(saved[name], weight) for name, weight in whole.items()]
    return seen | {"updated": problems(engine), "version": engine._wanted.version}


def with_servers() -> dict[str, Any]:
    """Play with two servers that rank 0 starts, update the weights, and kill one server."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as under torchrun
    settings = {"enforce_eager": True, "max_num_seqs": 16}
    engine = VLLMFleet(servers=2, kv_cache_gb=0.0625, patience_s=5, options=settings)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    policy = load_model(TEXT)
    seen: dict[str, Any] = {"agree": []}
    try:
        for version in range(2):
            engine.update_weights(policy, version)
            greedy = requests(version, temperature=0)
            theirs = ask(reference_engine(TEXT, policy), *greedy)
            for one, two in zip(ask(engine, *greedy), theirs, strict=True):
                seen["agree"].append(one.reply_ids == two.reply_ids)
            torch.manual_seed(version)
            changed(policy)
        seen["gap"] = engine.canary_gap
        seen["homes"] = [member.episodes for member in engine._members]
        long = requests(2, max_tokens=200)
        ranks.wait_for_all()
        before = asyncio.run(play_and_kill(engine, long))
        seen["same"] = before == ask(engine, *long)
        seen["killed"] = problems(engine)
        seen["counts"] = engine.counts()
        ranks.wait_for_all()
        engine.update_weights(policy, 2)
        seen["updated"] = problems(engine)
        seen["replies"] = len(ask(engine, *requests(3)))
        if ranks.rank() == 0:  # it is being started again
            seen["restarted"] = bool(group_of(engine._members[0].client))
    finally:
        engine.end_servers()
    return seen


async def play_and_kill(engine: VLLMFleet, asked: list[GenerationRequest]) -> list[Generation]:
    """Ask for replies; rank 0 kills the first server while they are being written."""
    pending = [asyncio.create_task(engine.generate(request)) for request in asked]
    await asyncio.sleep(0.1)
    if ranks.rank() == 0:
        os.killpg(group_of(engine._members[0].client), signal.SIGKILL)
    return await asyncio.gather(*pending)


def main(rank: str, port: str, *urls: str) -> None:
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2")
    store = TCPStore("127.0.0.1", int(port), 2, rank == "0")
    distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=2)
    torch.set_num_threads(1)
    torch.save(with_fakes(list(urls)) if urls else with_servers(), f"rank_{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
