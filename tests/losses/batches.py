"""Builds minibatches for loss tests from only the tensors that a test needs."""

from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from vagentrl.losses import PolicyLoss
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

Turns = list[tuple[int, list[int]]]
"""For each row, its trajectory and the number of sampled tokens of each of its turns."""

ragged_turns: st.SearchStrategy[Turns] = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(1, 4), max_size=3)), min_size=1, max_size=5
)


def turn_ids_of(rows: Turns) -> tuple[Tensor, Tensor]:
    """``(B, T)`` turn ids and ``(B,)`` trajectory ids; a prompt token precedes each turn.

    Turns are numbered through all rows of a trajectory.
    """
    width = max(sum(lengths) + len(lengths) for _, lengths in rows) + 1
    turn_ids = torch.full((len(rows), width), -1)
    played = [0, 0, 0]
    for row, (trajectory, lengths) in enumerate(rows):
        start = 1
        for length in lengths:
            turn_ids[row, start : start + length] = played[trajectory]
            played[trajectory] += 1
            start += length + 1
    return turn_ids, torch.tensor([trajectory for trajectory, _ in rows])


def train_batch(
    old: Tensor,
    advantages: Tensor,
    *,
    turn_ids: Tensor | None = None,
    sampled_with: Tensor | None = None,
    trajectory_ids: Tensor | None = None,
) -> TrainBatch:
    """By default each row is a trajectory of one turn, every token of which is sampled, and engine
    and trainer agree."""
    rows = torch.arange(len(old))
    turn_ids = torch.zeros_like(old, dtype=torch.long) if turn_ids is None else turn_ids
    rollout = RolloutBatch(
        input_ids=torch.zeros_like(turn_ids),
        attention_mask=torch.ones_like(turn_ids, dtype=torch.bool),
        action_mask=turn_ids >= 0,
        turn_ids=turn_ids,
        state_ids=turn_ids,
        rewards=torch.zeros_like(old),
        rollout_logprobs=old if sampled_with is None else sampled_with,
        trajectory_ids=rows if trajectory_ids is None else trajectory_ids,
        group_ids=rows,
        policy_version=torch.zeros_like(turn_ids),
        bootstrap_index=torch.full_like(rows, -1),
    )
    return TrainBatch(rollout, Scores(old), Credit(advantages), torch.ones_like(old))


def corrected(batch: TrainBatch, loss: PolicyLoss) -> TrainBatch:
    """The batch with the importance weights that the loss asks for, if any."""
    if loss.importance is None:
        return batch
    counts = batch.rollout.action_mask.to(batch.scores.old_logprobs.dtype)
    importance = loss.importance.weights(batch.rollout, batch.scores, counts)
    return replace(batch, scores=replace(batch.scores, importance=importance))
