"""Collates trajectories into tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vagentrl.errors import ShapeError
from vagentrl.pictures import digest
from vagentrl.types import AtLimit, Observation, Prompt, RolloutBatch, Trajectory, Turn, encodable

if TYPE_CHECKING:
    from PIL.Image import Image

    from vagentrl.rollout.renderer import Renderer


@dataclass
class _Row:
    """One row under construction; every list but `images` has one entry per token."""

    trajectory: int
    input_ids: list[int] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    state_ids: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    continued_values: list[float] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    def prompt(self, prompt: Prompt) -> None:
        count = len(prompt.ids)
        self.input_ids += prompt.ids
        self.action_mask += [False] * count
        self.turn_ids += [-1] * count
        self.state_ids += [-1] * count
        self.rewards += [0.0] * count
        self.logprobs += [0.0] * count
        self.versions += [-1] * count
        self.continued_values += [math.nan] * count
        self.images += prompt.images

    def reply(self, turn: Turn, number: int, state: int) -> None:
        count = len(turn.reply_ids)
        self.input_ids += turn.reply_ids
        self.action_mask += [True] * count
        self.turn_ids += [number] * count
        self.state_ids += [state] * count
        self.rewards += [0.0] * (count - 1) + [turn.reward + turn.bonus]
        self.logprobs += turn.reply_logprobs
        self.versions += [turn.policy_version] * count
        value = turn.continued_value
        self.continued_values += [math.nan if value is None else value] * count


def collate(
    trajectories: Sequence[Trajectory],
    renderer: Renderer,
    *,
    temperature: float,
    at_limit: AtLimit = "end",
) -> RolloutBatch:
    """Lay trajectories out as rows of tokens, on the CPU.

    A turn whose prompt is a whole context begins a new row; any other turn continues the row of
    the turn before it.

    Args:
        trajectories: Episodes with at least one turn each, none of them failed.
        renderer: Collects the images, and encodes them when the rows are moved to a device.
        temperature: The temperature at which the replies were sampled.
        at_limit: ``bootstrap`` gives a truncated trajectory the value of its last state; a
            trajectory that was ``cut`` always gets that value.

    Raises:
        ShapeError: When there is no trajectory, or a failed one.
    """
    if not trajectories:
        raise ShapeError(
            "there are no trajectories to learn from; use a filter that keeps more, or play more"
        )
    rows, ends = _rows(trajectories, at_limit)
    # One column more than the longest row holds the value after that row's last token.
    width = max(len(row.input_ids) for row in rows) + 1
    lengths = torch.tensor([len(row.input_ids) for row in rows])
    shows_images = any(row.images for row in rows)
    values = [row.continued_values for row in rows]
    continued_values = _pad(values, width, torch.float32, fill=math.nan)
    return RolloutBatch(
        input_ids=_pad([row.input_ids for row in rows], width, torch.long),
        attention_mask=torch.arange(width) < lengths[:, None],
        action_mask=_pad([row.action_mask for row in rows], width, torch.bool),
        turn_ids=_pad([row.turn_ids for row in rows], width, torch.long, fill=-1),
        state_ids=_pad([row.state_ids for row in rows], width, torch.long, fill=-1),
        rewards=_pad([row.rewards for row in rows], width, torch.float32),
        rollout_logprobs=_pad([row.logprobs for row in rows], width, torch.float32),
        policy_version=_pad([row.versions for row in rows], width, torch.long, fill=-1),
        trajectory_ids=torch.tensor([row.trajectory for row in rows]),
        group_ids=torch.tensor([trajectory.group_id for trajectory in trajectories]),
        bootstrap_index=torch.tensor(
            [-1 if end is None else end[0] * width + end[1] for end in ends]
        ),
        temperature=temperature,
        vision=renderer.pictures([row.images for row in rows]) if shows_images else None,
        continued_values=None if continued_values.isnan().all() else continued_values,
    )


def _rows(
    trajectories: Sequence[Trajectory], at_limit: AtLimit
) -> tuple[list[_Row], list[tuple[int, int] | None]]:
    """All rows, and for each trajectory the row and column to bootstrap from, or None."""
    final = ("terminated", "truncated") if at_limit == "end" else ("terminated",)
    states: dict[tuple[int, bytes], int] = {}
    rows: list[_Row] = []
    ends: list[tuple[int, int] | None] = []
    for number, trajectory in enumerate(trajectories):
        if trajectory.stop == "failed" or not trajectory.turns:
            raise ShapeError(
                f"trajectory {number} (seed {trajectory.seed}, {trajectory.stop}) has "
                f"{len(trajectory.turns)} turns; drop failed episodes before collating"
            )
        for turn_number, turn in enumerate(trajectory.turns):
            if turn_number == 0 or turn.prompt.whole:
                rows.append(_Row(number))
            seen = (trajectory.group_id, _fingerprint(turn.observation))
            rows[-1].prompt(turn.prompt)
            rows[-1].reply(turn, turn_number, states.setdefault(seen, len(states)))
        if trajectory.stop in final:
            ends.append(None)
        elif trajectory.end is None:
            ends.append((len(rows) - 1, len(rows[-1].input_ids) - 1))
        else:
            if trajectory.end.whole:
                rows.append(_Row(number))
            rows[-1].prompt(trajectory.end)
            ends.append((len(rows) - 1, len(rows[-1].input_ids)))
    return rows, ends


def _fingerprint(observation: Observation) -> bytes:
    """A digest of an observation's text and images; equal observations have the same digest."""
    seen = hashlib.blake2b(encodable(observation.text).encode(), digest_size=16)
    for image in observation.images:
        seen.update(digest(image))
    return seen.digest()


def _pad(
    rows: Sequence[Sequence[float]], width: int, dtype: torch.dtype, fill: float = 0
) -> Tensor:
    padded = torch.full((len(rows), width), fill, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded
