"""Scoring a collected batch: forward passes without gradients, divided among the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vagentrl import ranks
from vagentrl.models.packing import reading_order
from vagentrl.types import RolloutBatch, Scores

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule


def score(agent: AgentModule, rollout: RolloutBatch) -> Scores:
    """Log-probs, reference log-probs and values of all rows, each ``(B, T)``."""
    old = torch.zeros_like(rollout.rewards)
    ref = torch.zeros_like(old) if agent.reference is not None else None
    values = torch.zeros_like(old) if agent.critic is not None else None
    for index, chunk in scoring_chunks(agent, rollout):
        states = agent.actor.states(chunk)
        old[index] = agent.actor.logprobs(states, chunk)[0]
        if agent.reference is not None and ref is not None:
            ref[index] = agent.reference(chunk)
        if agent.critic is not None and values is not None:
            values[index] = agent.critic(chunk, states)
    for scored in (old, ref, values):
        if scored is not None:
            ranks.sum_over_ranks(scored)
    return Scores(old, ref, values)


def score_actor(agent: AgentModule, rollout: RolloutBatch) -> Tensor:
    """Log-probs ``(B, T)`` of the sampled tokens of all rows under the actor."""
    logprobs = torch.zeros_like(rollout.rewards)
    for index, chunk in scoring_chunks(agent, rollout):
        logprobs[index] = agent.actor(chunk)
    ranks.sum_over_ranks(logprobs)
    return logprobs


def score_values(agent: AgentModule, rollout: RolloutBatch) -> Tensor:
    """Values ``(B, T)`` of all rows under the critic."""
    assert agent.critic is not None
    values = torch.zeros_like(rollout.rewards)
    for index, chunk in scoring_chunks(agent, rollout):
        shared = agent.critic.backbone is None
        values[index] = agent.critic(chunk, agent.actor.states(chunk) if shared else None)
    ranks.sum_over_ranks(values)
    return values


def scoring_chunks(
    agent: AgentModule, rollout: RolloutBatch
) -> Iterator[tuple[tuple[Tensor, slice], RolloutBatch]]:
    """This rank's share of the rows, in chunks of `score_batch_size`.

    Each chunk comes with its index into a ``(B, T)`` tensor. Rows that share a prefix share a chunk
    if they may be packed; else rows of similar length do, which keeps the padding small. All ranks
    get equally many chunks, because sharded models are gathered in every forward pass; the last may
    be a row that is stored nowhere.
    """
    if agent.packing:
        order = reading_order(rollout)
    else:
        order = rollout.attention_mask.sum(-1).argsort(stable=True)
    chunks = order.split(agent.score_batch_size)
    mine = ranks.shard(chunks)
    for rows in mine:
        chunk = rollout.select(rows)
        yield (rows, slice(0, chunk.input_ids.shape[1])), chunk
    if len(mine) * ranks.world_size() < len(chunks):
        chunk = rollout.select(order[:1])
        yield (order[:0], slice(0, chunk.input_ids.shape[1])), chunk
