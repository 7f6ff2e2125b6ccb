"""Stores episodes as Parquet files, for `vagentrl view`."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from vagentrl import ranks
from vagentrl.errors import ConfigError
from vagentrl.modules.agent import agent_of
from vagentrl.modules.checks import check_least
from vagentrl.modules.rollouts import rollouts_of
from vagentrl.modules.run_folders import run_folder
from vagentrl.modules.scoring import scoring_chunks
from vagentrl.rollout.exchange import with_pixels
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER
from vagentrl.viewer.records import RowWriter, StoredSplit, TokenScores, load_pyarrow

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.types import RolloutBatch, TrainBatch, Trajectory

log = logging.getLogger(__name__)

Members = list[tuple[int, "Trajectory"]]
"""Trajectories, each with its place in its group."""


class TrajectoryStore(Callback):
    """Stores trajectories with all that is known of their turns and tokens, to be looked at.

    They are written to the folder ``trajectories`` of the run, one Parquet file for an iteration or
    an evaluation, and each distinct image once. ``vagentrl view RUN`` shows them. What the run
    learns does not change.

    Args:
        every_n_iterations: How often training episodes are stored. Evaluations are always stored.
        groups: Groups of training episodes to store each time, over all environments.
        evaluation_episodes: Episodes of each environment to store in each evaluation: always the
            first seeds, so that one seed can be followed through the training.
        entropy: Also store the entropy of each token, which needs another forward pass of the actor
            over the stored groups.
        max_mb: Most megabytes (10^6 bytes) of files and images. Beyond it old files are dropped:
            training iterations first, and so that what is left stays spread over the training.
    """

    def __init__(
        self,
        every_n_iterations: int = 5,
        groups: int = 4,
        evaluation_episodes: int = 64,
        entropy: bool = True,
        max_mb: float = 500.0,
    ) -> None:
        check_least(
            "TrajectoryStore",
            1,
            every_n_iterations=every_n_iterations,
            groups=groups,
            evaluation_episodes=evaluation_episodes,
        )
        if not 0 < max_mb < math.inf:
            raise ConfigError(f"TrajectoryStore.max_mb is {max_mb}; give megabytes above 0")
        load_pyarrow()
        self.every_n_iterations = every_n_iterations
        self.groups = groups
        self.evaluation_episodes = evaluation_episodes
        self.entropy = entropy
        self.max_mb = max_mb
        self._folder: TrajectoryFolder | None = None
        self._stored: list[Trajectory] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder = self._stored = None

    # --------------------------------------------------------------------------- what is stored

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        agent, rollouts = agent_of(pl_module), rollouts_of(trainer)
        again = rollouts.trajectories is self._stored  # a later round of a critic warm-up
        self._stored = rollouts.trajectories
        if again or agent.iteration % self.every_n_iterations:
            return
        numbered = with_members(rollouts.trajectories)
        chosen = spread(list(numbered), self.groups)
        played = [member for group in chosen for member in numbered[group]]
        scores: list[list[TokenScores] | None] = [None] * len(played)
        if rollouts.assessed is not None:
            scores = self._scores(agent, played, rollouts.learned, rollouts.assessed)
        self._write(trainer, agent, "train", played, scores)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_evaluated(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_evaluated(trainer, pl_module, "test")

    def _write_evaluated(
        self, trainer: Trainer, pl_module: LightningModule, split: StoredSplit
    ) -> None:
        played: Members = []
        for trajectories in rollouts_of(trainer).evaluated.values():
            first = trajectories[: self.evaluation_episodes]
            played += [(0, trajectory) for trajectory in first]
        self._write(trainer, agent_of(pl_module), split, played, [None] * len(played))

    def _write(
        self,
        trainer: Trainer,
        agent: AgentModule,
        split: StoredSplit,
        played: Members,
        scores: Sequence[Sequence[TokenScores] | None],
    ) -> None:
        """Write a file on rank 0. A full disk costs the trajectories, but not the run."""
        folder = run_folder(trainer) / FOLDER
        writes = trainer.is_global_zero and not trainer.fast_dev_run and bool(played)  # pyright: ignore
        trajectories = with_pixels([trajectory for _, trajectory in played], here=writes)
        if not writes:
            return
        writer = RowWriter(rollouts_of(trainer).renderer.token_names)
        for (member, _), trajectory, tokens in zip(played, trajectories, scores, strict=True):
            writer.add(
                trajectory, split=split, iteration=agent.iteration, member=member, scores=tokens
            )
        try:
            if self._folder is None:
                self._folder = TrajectoryFolder(folder, self.max_mb * 1e6)
            self._folder.write(split, agent.iteration, writer.rows, writer.images)
        except OSError as error:
            log.warning("iteration %d: no trajectories are stored: %s", agent.iteration, error)

    # -------------------------------------------------------------------------------- the tokens

    def _scores(
        self,
        agent: AgentModule,
        played: Members,
        learned: Sequence[Trajectory],
        batch: TrainBatch,
    ) -> list[list[TokenScores] | None]:
        """What is known of the tokens of each trajectory; None of those not learned from.

        All ranks must call this together.
        """
        numbers = {_identity(trajectory): number for number, trajectory in enumerate(learned)}
        wanted = [numbers.get(_identity(trajectory)) for _, trajectory in played]
        known = torch.tensor([n for n in wanted if n is not None])
        rows = torch.isin(batch.rollout.trajectory_ids, known).nonzero().flatten()
        batch = batch.select(rows)
        entropies = entropies_of(agent, batch.rollout) if self.entropy and len(rows) else None
        tables = {
            "actor_logprobs": batch.scores.old_logprobs,
            "reference_logprobs": batch.scores.ref_logprobs,
            "entropies": entropies,
            "values": batch.scores.values,
            "advantages": batch.credit.advantages,
        }
        floats = {name: None if t is None else t.float() for name, t in tables.items()}
        ids, turns = batch.rollout.trajectory_ids, batch.rollout.turn_ids
        return [
            None
            if number is None
            else _of_turns(floats, turns, ids == number, len(trajectory.turns))
            for (_, trajectory), number in zip(played, wanted, strict=True)
        ]


def with_members(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int], Members]:
    """The trajectories by environment and group, numbered within their group."""
    groups: defaultdict[tuple[str, int], Members] = defaultdict(list)
    for trajectory in trajectories:
        members = groups[trajectory.environment, trajectory.group_id]
        members.append((len(members), trajectory))
    return dict(sorted(groups.items(), key=lambda item: item[0][1]))


def spread(items: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """`count` of the items, evenly spread over all of them; all if there are no more."""
    count = min(count, len(items))
    return [items[place * len(items) // count] for place in range(count)]


@torch.no_grad()
def entropies_of(agent: AgentModule, rollout: RolloutBatch) -> Tensor:
    """``(B, T)`` entropy of the distribution that each token was sampled from, in nats.

    All ranks must call this together: each computes a share, as in scoring.
    """
    entropies = torch.zeros_like(rollout.rewards)
    with agent.trainer.precision_plugin.forward_context():
        for index, chunk in scoring_chunks(agent, rollout):
            entropy = agent.actor.logprobs(agent.actor.states(chunk), chunk, with_entropy=True)[1]
            assert entropy is not None
            entropies[index] = entropy.float().cpu()
    ranks.sum_over_ranks(entropies)
    return entropies


def _of_turns(
    tables: Mapping[str, Tensor | None], turn_ids: Tensor, rows: Tensor, turns: int
) -> list[TokenScores]:
    """The scores of the tokens of each turn of the trajectory in these rows."""
    own = turn_ids[rows]
    named = {name: None if table is None else table[rows] for name, table in tables.items()}
    return [
        TokenScores(**{n: None if t is None else t[own == turn].tolist() for n, t in named.items()})
        for turn in range(turns)
    ]


def _identity(trajectory: Trajectory) -> tuple[str, int, int, int, int]:
    """What no other trajectory of an iteration has; continuations replace the objects."""
    return (
        trajectory.environment,
        trajectory.group_id,
        trajectory.seed,
        trajectory.transition_seed,
        trajectory.earlier_turns,
    )
