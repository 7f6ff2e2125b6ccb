"""Minibatches for the losses, from no more than what a test is about."""

import torch
from torch import Tensor

from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


def train_batch(
    old: Tensor,
    advantages: Tensor,
    *,
    turn_ids: Tensor | None = None,
    sampled_with: Tensor | None = None,
) -> TrainBatch:
    """Each row is a trajectory of its own; by default one turn, every token of it sampled, and
    engine and trainer agree."""
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
        trajectory_ids=rows,
        group_ids=rows,
        policy_version=torch.zeros_like(rows),
        bootstrap_index=torch.full_like(rows, -1),
    )
    return TrainBatch(rollout, Scores(old), Credit(advantages), torch.ones_like(old))
