"""How well a cloned model plays and perceives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from lightning import Trainer
from torch.utils.data import DataLoader

from vagentrl.advantages import GroupRelative
from vagentrl.callbacks import IterationProgress
from vagentrl.cli.warmstart.cloning import QUIET
from vagentrl.contexts import Context, FullHistory
from vagentrl.datamodule import RolloutDataModule
from vagentrl.environment import Environment, seed_of
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.source import TRAIN
from vagentrl.types import Trajectory


class _OnSeeds(RolloutDataModule):
    """Evaluates on the seeds that it is given."""

    def __init__(
        self, env: Callable[[], Environment], seeds: Sequence[int], context: Context
    ) -> None:
        super().__init__(
            lambda: env(),  # a mixture too is one environment here
            context=context,
            # All episodes are reset at once, which a busy core may need minutes for; that they do
            # not hang, thousands of demonstrations have shown.
            timeout_s=600.0,
        )
        self.seeds = tuple(seeds)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([(TRAIN, self.seeds)], batch_size=None)  # pyright: ignore


def evaluate(
    env: Callable[[], Environment],
    folder: Path,
    seeds: Sequence[int],
    context: Context = FullHistory(),  # noqa: B008 (frozen)
) -> dict[str, float]:
    """Score a checkpoint on one episode per seed.

    Returns:
        ``success_rate`` at T = 0.5 with its interval, ``turns``, ``malformed_replies``, and
        ``perception``: the share of turns in which the whole state was described truly.
    """
    agent = AgentModule(policy=str(folder), advantage=GroupRelative())
    data = _OnSeeds(env, seeds, context)
    trainer = Trainer(accelerator="cpu", callbacks=[IterationProgress()], **QUIET)
    trainer.validate(agent, data, verbose=False)
    metrics = {k.removeprefix("val/"): float(v) for k, v in trainer.callback_metrics.items()}
    wanted = (
        "success_rate", "success_rate_low", "success_rate_high", "turns", "malformed_replies"
    )  # fmt: skip
    with closing(env()) as environment:
        seen = perception(environment, data.evaluated[TRAIN])
    return {name: metrics[name] for name in wanted} | ({} if seen is None else {"perception": seen})


def success_in_training(env: Callable[[], Environment], folder: Path, context: Context) -> float:
    """Success rate on seeds that training may draw: held-out ones are kept for the score."""
    seeds = [seed_of("train", index) for index in range(256)]
    return evaluate(env, folder, seeds, context)["success_rate"]


def perception(environment: Environment, trajectories: Sequence[Trajectory]) -> float | None:
    """Share of turns whose observation claim is the true state, word by word.

    The episodes are played again, which their seeds allow. None where nothing is claimed.
    """
    if "observation" not in environment.format.claims:
        return None
    right = total = 0
    for trajectory in trajectories:
        environment.reset(trajectory.seed, trajectory.transition_seed)
        for turn in trajectory.turns:
            state = environment.state()
            if state is not None and environment.format.state is not None:
                total += 1
                right += turn.reply.observation_claim == getattr(state, environment.format.state)
            environment.step(turn.reply)
    return right / max(total, 1)
