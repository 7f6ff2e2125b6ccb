"""Trajectories to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vagentrl.errors import ShapeError
from vagentrl.types import RolloutBatch, Trajectory

if TYPE_CHECKING:
    from PIL.Image import Image

    from vagentrl.rollout.renderer import Renderer


@dataclass
class _Row:
    """One context under construction; every list has one entry per token."""

    input_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    def prompt(self, ids: Sequence[int], images: Sequence[Image]) -> None:
        count = len(ids)
        self.input_ids += ids
        self.action_mask += [False] * count
        self.turn_ids += [-1] * count
        self.rewards += [0.0] * count
        self.logprobs += [0.0] * count
        self.images += images

    def reply(
        self, ids: Sequence[int], logprobs: Sequence[float], turn: int, reward: float
    ) -> None:
        count = len(ids)
        self.input_ids += ids
        self.action_mask += [True] * count
        self.turn_ids += [turn] * count
        self.rewards += [0.0] * (count - 1) + [reward]
        self.logprobs += logprobs


def collate(
    trajectories: Sequence[Trajectory],
    renderer: Renderer,
    *,
    temperature: float,
    context_length: int,
) -> RolloutBatch:
    """Full-history rows: each trajectory is one row, its final observation included.

    Args:
        trajectories: Episodes with at least one turn each; failed ones do not belong here.
        renderer: Renders the final observation and encodes the images.
        temperature: What the replies were sampled with.
        context_length: A final observation that does not fit is left out; the value is then read
            before the last sampled token.

    Raises:
        ShapeError: When there is no trajectory, or a failed one.
    """
    if not trajectories:
        raise ShapeError(
            "there are no trajectories to learn from; let fewer be filtered out, or play more"
        )
    rows, bootstrap_columns = [], []
    for number, trajectory in enumerate(trajectories):
        if trajectory.stop == "failed" or not trajectory.turns:
            raise ShapeError(
                f"trajectory {number} (seed {trajectory.seed}, {trajectory.stop}) has "
                f"{len(trajectory.turns)} turns; drop failed episodes before collating"
            )
        row = _Row()
        for turn_number, turn in enumerate(trajectory.turns):
            row.prompt(turn.prompt_ids, turn.observation.images)
            row.reply(turn.reply_ids, turn.reply_logprobs, turn_number, turn.reward)
        bootstrap_columns.append(_add_end(row, trajectory, renderer, context_length))
        rows.append(row)

    # One column more than the longest row: the value after a row's last token has a place to be.
    width = max(len(row.input_ids) for row in rows) + 1
    bootstrap = [
        -1 if column is None else number * width + column
        for number, column in enumerate(bootstrap_columns)
    ]
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    shows_images = any(row.images for row in rows)
    return RolloutBatch(
        input_ids=_pad([row.input_ids for row in rows], width, torch.long),
        attention_mask=torch.arange(width) < lengths[:, None],
        action_mask=_pad([row.action_mask for row in rows], width, torch.bool),
        turn_ids=_pad([row.turn_ids for row in rows], width, torch.long, fill=-1),
        rewards=_pad([row.rewards for row in rows], width, torch.float32),
        rollout_logprobs=_pad([row.logprobs for row in rows], width, torch.float32),
        trajectory_ids=torch.arange(len(rows)),
        group_ids=torch.tensor([trajectory.group_id for trajectory in trajectories]),
        policy_version=torch.tensor([trajectory.policy_version for trajectory in trajectories]),
        bootstrap_index=torch.tensor(bootstrap),
        temperature=temperature,
        vision=renderer.encode_rows([row.images for row in rows]) if shows_images else None,
    )


def _add_end(
    row: _Row, trajectory: Trajectory, renderer: Renderer, context_length: int
) -> int | None:
    """Append what follows the last turn; return the column to bootstrap from, None if none."""
    if trajectory.stop == "terminated":
        return None
    end = trajectory.final_observation
    if end is not None:
        ids = renderer.next(end, trajectory.turns[-1].finish)
        if len(row.input_ids) + len(ids) <= context_length:
            row.prompt(ids, end.images)
            return len(row.input_ids)
    return len(row.input_ids) - 1


def _pad(rows: Sequence[Sequence[float]], width: int, dtype: torch.dtype, fill: int = 0) -> Tensor:
    padded = torch.full((len(rows), width), fill, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded
