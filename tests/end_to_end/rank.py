"""One of two ranks, for test_ranks: runs every case and stores its results."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import distributed

from tests import claims_toy, runs
from tests.exact import fit as fit_exactly
from vagentrl.callbacks import WorldModelReward
from vagentrl.claims import TemplatePenalty
from vagentrl.cli.trainer import VagentCLI
from vagentrl.engines.base import GenerationRequest
from vagentrl.errors import ConfigError
from vagentrl.rollout import exchange
from vagentrl.types import Trajectory

LUCKY = "--data.env=tests.end_to_end.environments.Lucky"
GROUP_RELATIVE = "--model.advantage=GroupRelative"
BY_TOKENS = "--data.micro_batch_size=null"  # the toy run counts rows

CASES: dict[str, tuple[str, ...]] = {
    "critic": (
        "--data.passes=2", "--trainer.callbacks+=CriticWarmup", "--trainer.callbacks.rounds=1",
        "--trainer.max_epochs=3",
    ),
    "best groups": (
        GROUP_RELATIVE, LUCKY, "--data.filter=TopFraction", "--data.filter.fraction=0.5",
    ),
    "more groups": (
        "--model.advantage=ReinforcePlusPlus", LUCKY, "--data.filter=DynamicSampling",
        "--data.filter.rounds=9",
    ),
    "continuations": (
        "--model.advantage=VineTurn", "--model.advantage.every=1", LUCKY,
        "--data.env.init_args.turn_limit=4",
    ),
    "tokens": (
        GROUP_RELATIVE, LUCKY, "--data.env.init_args.turn_limit=4", BY_TOKENS,
        "--data.micro_batch_tokens=150",
    ),
    "no group": ("--data.filter=DynamicSampling", "--data.env.init_args.turn_limit=1"),
    "watched": (
        "--trainer.callbacks+=EchoTrapMonitor", "--trainer.callbacks.cross_score_every=1",
        "--trainer.callbacks.cross_score_prompts=3", LUCKY,
    ),
    "failures": (
        "--data.env=tests.end_to_end.environments.Raising", "--data.val_episodes=7",
        "--model.advantage=MaskedGAE", "--model.advantage.whiten=true",
    ),
    "ahead": (*runs.AHEAD, GROUP_RELATIVE, LUCKY, "--trainer.max_epochs=5"),
    "pictures": (
        *runs.AHEAD, "--data.context=Window", "--data.context.turns=1", BY_TOKENS,
        "--data.micro_batch_tokens=150", "--trainer.max_epochs=3", "--data.passes=2",
        "--trainer.callbacks+=TrajectoryPictures", "--trainer.callbacks+=TrajectoryStore",
        "--trainer.callbacks.every_n_iterations=1", "--trainer.callbacks+=EchoTrapMonitor",
        "--trainer.callbacks.cross_score_every=1", "--trainer.callbacks.cross_score_prompts=2",
    ),
    "turns": (
        "--data.turns=3", "--data.env.init_args.turn_limit=7", "--data.context=Window",
        "--data.context.turns=1", "--model.score_batch_size=3",
    ),
}  # fmt: skip
"""Extra arguments of each case in which two ranks are compared with one, by the case's name."""

REFUSED: dict[str, tuple[str, ...]] = {
    "data.groups is 3, which 2 ranks cannot share evenly": ("--data.groups=3",),
    "data.engine is VLLMServerEngine and there are 2 ranks": ("--data.engine=VLLMServerEngine",),
    "data.engine is VLLMEngine and there are 2 ranks": (
        "--data.engine=VLLMEngine", "--data.engine.tensor_parallel_size=2",
    ),
}  # fmt: skip

UNCLIPPED = "--trainer.gradient_clip_val=null"  # DeepSpeed's norm is of actor and critic together
EVERY = ("--data.groups=4", "--data.minibatch_size=4")
STOPPED = "--trainer.max_epochs=2"
TOGETHER = ("--trainer.devices=2", "--trainer.strategy=ddp")


class FailAlone(Callback):
    """Raises an error on rank 1 only."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == 1:
            raise RuntimeError("rank 1 is ill")


class LosePictures(Callback):
    """Rank 1 cannot send pictures for the update."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank == 1:
            exchange._pack = _no_memory


def _no_memory(*_: Any) -> bytes:
    raise OSError("rank 1 has no memory left for pictures")


def fit(case: str, *settings: str) -> dict[str, Any]:
    """Run a case and return its results."""
    images = case in ("critic", "pictures")
    return _result(runs.fit(*EVERY, *CASES[case], *settings, images=images))


def resume(case: str, until: str, *settings: str) -> dict[str, Any]:
    """Run a case until its end, but in two parts; returns its results."""
    half = runs.fit(*EVERY, *CASES[case], *settings, until)
    path = str(runs.folder(half) / "checkpoints" / "last.ckpt")
    return fit(case, *settings, "--ckpt_path", path)


def lines(case: str, *settings: str) -> list[str]:
    """The connections that a run makes and destroys, beside that of all ranks."""
    seen: list[str] = []
    make, destroy = distributed.new_group, distributed.destroy_process_group

    def made(*args: Any, **kwargs: Any) -> Any:
        seen.append(f"made {kwargs['backend']}")
        return make(*args, **kwargs)

    def destroyed(group: Any = None) -> None:
        seen.append("destroyed")
        destroy(group)

    distributed.new_group, distributed.destroy_process_group = made, destroyed
    try:
        fit(case, *settings)
    finally:
        distributed.new_group, distributed.destroy_process_group = make, destroy
    return seen


def pay(*settings: str) -> dict[str, Any]:
    """Reward claims relative to the batch, and penalise frequent claims with low scores."""

    def script(request: GenerationRequest) -> str:
        return claims_toy.claim_reply(request.seed % 4, request.seed % 3)

    templates = TemplatePenalty(below=0.6, least_share=0.2)
    judge = claims_toy.ExactJudge()
    reward = WorldModelReward(judge, relative=True, templates=templates, journal=None)
    return _result(claims_toy.fit(script, reward, *EVERY, *settings))


def _result(run: VagentCLI) -> dict[str, Any]:
    data, metrics = run.datamodule, run.trainer.callback_metrics
    return {
        "weights": {name: weight.clone() for name, weight in run.model.state_dict().items()},
        "metrics": {name: float(value) for name, value in metrics.items() if _is_fixed(name)},
        "played": [_facts(trajectory) for trajectory in data.trajectories],
        "stored": sorted(path.name for path in runs.folder(run).rglob("*.png")),
        "evaluated": [_facts(trajectory) for trajectory in data.evaluated.get("train", [])],
    }


def _is_fixed(metric: str) -> bool:
    return not metric.startswith("time/") and metric != "rollout/tokens_per_s"


def _facts(trajectory: Trajectory) -> tuple[Any, ...]:
    turns = [(turn.reply_ids, turn.bonus) for turn in trajectory.turns]
    return (trajectory.seed, trajectory.group_id, trajectory.stop, trajectory.error, turns)


def _refusal(*settings: str) -> str:
    try:
        runs.fit(*settings, *TOGETHER)
    except ConfigError as error:
        return str(error)
    return "not refused"


def main(rank: str, port: str) -> None:
    os.environ.update(LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    for images in (False, True):
        runs.checkpoint(images)  # with a process group Transformers would save it on rank 0 only
    results: dict[str, Any] = {case: fit(case, *TOGETHER) for case in CASES}
    results["resumed"] = resume("turns", "--trainer.max_epochs=1", *TOGETHER)
    results["resumed ahead"] = resume("ahead", STOPPED, *TOGETHER)
    results["further ahead"] = fit("ahead", *TOGETHER, "--data.staleness=2")
    results["lines"] = lines("ahead", *TOGETHER)
    results["paid"] = pay(*TOGETHER)
    if find_spec("deepspeed"):
        from tests.cpu_deepspeed import ZERO

        results["zero"] = fit("critic", UNCLIPPED, "--trainer.devices=2", ZERO)
    results["exact"] = fit_exactly.run(devices=2, strategy="ddp")
    results["refused"] = [_refusal(*settings) for settings in REFUSED.values()]
    torch.save(results, Path(f"rank_{rank}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
