"""Random ragged batches, also as lists of turns for reference loops."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """``(N, T)`` tensors and ``bootstrap`` ``(N,)``, in float64."""

    rewards: Tensor
    values: Tensor
    action_mask: Tensor
    turn_ids: Tensor
    bootstrap: Tensor | None

    def in_float32(self) -> "Batch":
        bootstrap = None if self.bootstrap is None else self.bootstrap.float()
        rewards, values = self.rewards.float(), self.values.float()
        return replace(self, rewards=rewards, values=values, bootstrap=bootstrap)

    def rows(self) -> list[list[tuple[int, float, float, int]]]:
        """Per row the (column, reward, value, turn) of each sampled token."""
        return [
            [
                (t, float(self.rewards[n, t]), float(self.values[n, t]), int(self.turn_ids[n, t]))
                for t in self.action_mask[n].nonzero().flatten().tolist()
            ]
            for n in range(len(self.action_mask))
        ]

    def after(self, row: int) -> float:
        return 0.0 if self.bootstrap is None else float(self.bootstrap[row])


def make_batch(rows: Sequence[Sequence[tuple[int, int]]], truncated: bool, seed: int) -> Batch:
    """Rows of turns, each (tokens observed before it, tokens sampled)."""
    generator = torch.Generator().manual_seed(seed)
    width = max(1, *(sum(gap + length for gap, length in row) for row in rows))
    turn_ids = torch.full((len(rows), width), -1)
    for n, row in enumerate(rows):
        start = 0
        for turn, (gap, length) in enumerate(row):
            turn_ids[n, start + gap : start + gap + length] = turn
            start += gap + length

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rewards = noise(len(rows), width)
    rewards[torch.rand(rewards.shape, generator=generator) < 0.5] = 0.0  # turns without reward
    values = noise(len(rows), width)
    bootstrap = noise(len(rows)) * (noise(len(rows)) > 0) if truncated else None
    return Batch(rewards, values, turn_ids >= 0, turn_ids, bootstrap)


turns = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=4)  # none: all masked
batches = st.builds(
    make_batch, st.lists(turns, min_size=2, max_size=5), st.booleans(), st.integers(0, 1000)
)
discount = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def loop_turns(row: list[tuple[int, float, float, int]]) -> list[list[tuple[int, float, float]]]:
    numbers = sorted({turn for *_, turn in row})
    return [[token[:3] for token in row if token[3] == number] for number in numbers]
