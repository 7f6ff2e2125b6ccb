"""One of two ranks that sample from a fleet, for test_vllm_fleet_ranks; stores what it saw."""

import asyncio
import copy
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.engines.shipped import CONTEXT, TEXT, ask, changed, reference_engine, renderer
from tests.engines.shipped import request_of as request_for
from tests.engines.test_vllm_server import group_of
from tests.rollout.test_play_ahead import Uneven, batch
from vagentrl import ranks
from vagentrl.engines import VLLMFleet
from vagentrl.engines.base import Generation, GenerationRequest, Sampling
from vagentrl.engines.vllm import base
from vagentrl.engines.vllm.weights import read, weights_of
from vagentrl.filters import KeepAll
from vagentrl.models.load import load_model
from vagentrl.rollout.collection import CollectionPlan
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.draws import Draws, World
from vagentrl.rollout.source import EpisodeSource
from vagentrl.rollout.workers import WorkerPool

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
        seen |= play_ahead(engine)
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


def play_ahead(engine: VLLMFleet) -> dict[str, Any]:
    """Play four iterations with a staleness of 2, each with other weights."""
    policy, weights, replied = load_model(TEXT), [], []
    generate = engine.generate

    async def watched(request: GenerationRequest) -> Generation:
        replied.append((request, reply := await generate(request)))
        return reply

    engine.generate = watched
    pools = {"train": WorkerPool(partial(Uneven, 6, 0.1), "train")}
    collector = Collector(engine, renderer(TEXT), pools, CONTEXT, background=True)
    greedy = Sampling(temperature=0, max_tokens=8)
    plan = CollectionPlan(4, 2, None, KeepAll(), greedy, staleness=2, seed=0)
    source = EpisodeSource(collector, plan, Draws([World("train")]))
    oldest, played = [], []
    for number in range(4):
        torch.manual_seed(10 + number)
        weights.append(copy.deepcopy(changed(policy)))
        collection = batch(source, number, policy=policy, end=4)
        oldest.append(collection.report["rollout/staleness_max"])
        played += [[turn.policy_version for turn in t.turns] for t in collection.trajectories]
    source.close()
    engine.generate = generate
    wrong = 0
    for version, at_version in enumerate(weights):
        pairs = [pair for pair in replied if pair[1].policy_version == version]
        alone = [replace(pair[0], session=number) for number, pair in enumerate(pairs)]
        theirs = ask(reference_engine(TEXT, at_version), *alone)
        wrong += sum(a.reply_ids != b.reply_ids for (_, a), b in zip(pairs, theirs, strict=True))
    return {"oldest": oldest, "versions": played, "wrong": wrong, "asked": len(replied)}


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
