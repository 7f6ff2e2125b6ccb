"""Scoring a collected batch: forward passes without gradients, divided among the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vagentrl import ranks
from vagentrl.models.packing import reading_order
from vagentrl.rollout.exchange import bring_rows
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
        old[index] = agent.actor.logprobs(states, chunk)[0].cpu()
        if agent.reference is not None and ref is not None:
            ref[index] = agent.reference(chunk).cpu()
        if agent.critic is not None and values is not None:
            values[index] = agent.critic(chunk, states).cpu()
    for scored in (old, ref, values):
        if scored is not None:
            ranks.sum_over_ranks(scored)
    return Scores(old, ref, values)


def score_actor(agent: AgentModule, rollout: RolloutBatch) -> Tensor:
    """Log-probs ``(B, T)`` of the sampled tokens of all rows under the actor."""
    logprobs = torch.zeros_like(rollout.rewards)
    for index, chunk in scoring_chunks(agent, rollout):
        logprobs[index] = agent.actor(chunk).cpu()
    ranks.sum_over_ranks(logprobs)
    return logprobs


def score_values(agent: AgentModule, rollout: RolloutBatch) -> Tensor:
    """Values ``(B, T)`` of all rows under the critic."""
    assert agent.critic is not None
    values = torch.zeros_like(rollout.rewards)
    for index, chunk in scoring_chunks(agent, rollout):
        shared = agent.critic.backbone is None
        states = agent.actor.states(chunk) if shared else None
        values[index] = agent.critic(chunk, states).cpu()
    ranks.sum_over_ranks(values)
    return values


def scoring_chunks(
    agent: AgentModule, rollout: RolloutBatch
) -> Iterator[tuple[tuple[Tensor, slice], RolloutBatch]]:
    """This rank's share of the rows, in chunks of `score_batch_size` on the models' device.

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
    mine = [(rows, rows) for rows in ranks.shard(chunks)]
    if len(mine) * ranks.world_size() < len(chunks):
        mine.append((order[:0], order[:1]))
    rollout = bring_rows(rollout, {row for _, rows in mine for row in rows.tolist()})
    for stored, rows in mine:
        chunk = rollout.select(rows)
        yield (stored, slice(0, chunk.input_ids.shape[1])), chunk.to(agent.device)
