"""The mutual information of prompts and replies, from scoring replies under other prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from vagentrl.modules.scoring import score_actor
from vagentrl.rollout.collate import collate
from vagentrl.types import Trajectory, Turn

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule
    from vagentrl.modules.rollouts import Rollouts


def mutual_information(scores: Float[Tensor, "K K"]) -> float:
    """The mean of log p(reply | own prompt) − log mean over prompts p(reply | prompt), in nats.

    Near 0 the replies do not depend on their prompts. With K prompts it cannot exceed log K, which
    it reaches when each reply is likely under its own prompt only.

    Args:
        scores: Log-prob of each reply (row) under each prompt (column); prompt k is reply k's own.
    """
    mixture = scores.logsumexp(-1) - math.log(len(scores))
    return float((scores.diagonal() - mixture).mean())


def cross_score(agent: AgentModule, turns: Sequence[Turn], data: Rollouts) -> Float[Tensor, "K K"]:
    """Log-prob of the reply of each turn (row) after the prompt of each turn (column).

    Args:
        agent: The module whose actor scores the replies. All ranks must call this together.
        turns: Turns whose prompts are whole contexts.
        data: Its renderer and its sampling temperature are used.
    """
    swapped = [
        replace(said, prompt=asked.prompt, observation=asked.observation)
        for said in turns
        for asked in turns
    ]
    rows = [Trajectory("", 0, row, (turn,), "terminated") for row, turn in enumerate(swapped)]
    rollout = collate(rows, data.renderer, temperature=data.sampling.temperature)
    with torch.no_grad(), agent.trainer.precision_plugin.forward_context():
        logprobs = score_actor(agent, rollout)
    return logprobs.double().sum(-1).reshape(len(turns), len(turns))


def first_turns(
    trajectories: Sequence[Trajectory], count: int, context_length: int, seed: int
) -> list[Turn]:
    """The first turns of episodes of different groups, whose replies fit after each other's prompt.

    Args:
        trajectories: The episodes.
        count: How many to draw at most.
        context_length: Tokens of the longest context.
        seed: Decides which ones.
    """
    firsts: dict[int, list[Turn]] = {}
    for each in trajectories:
        if each.turns and each.turns[0].prompt.whole:
            firsts.setdefault(each.group_id, []).append(each.turns[0])
    draw = Random(seed)
    groups = draw.sample(sorted(firsts), min(count, len(firsts)))
    turns = [draw.choice(firsts[group]) for group in groups]
    longest = max((len(turn.reply_ids) for turn in turns), default=0)
    return [turn for turn in turns if len(turn.prompt.ids) + longest <= context_length]
