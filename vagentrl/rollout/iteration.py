"""What one iteration is: who learns, from which batch of episodes, and from which part of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """One round of collecting and learning; an epoch of the trainer.

    Attributes:
        number: Iterations completed before it.
        actor_learns: Whether the actor's weights change; in a critic warm-up only the critic's do.
        batch: Number of the batch of episodes that it learns from. The rounds of a warm-up share
            batch 0; any other iteration has a batch of its own.
        batches: The size of that batch, in multiples of the usual one.
        part: Share of the rows that it learns from.
    """

    number: int
    actor_learns: bool = True
    batch: int = 0
    batches: int = 1
    part: float = 1.0


@dataclass(frozen=True)
class Warmup:
    """Iterations at the start in which only the critic learns.

    Attributes:
        rounds: The number of these iterations.
        batches: Batches of episodes that are collected once, for all rounds together.
        part: Share of the rows that a round learns from.
    """

    rounds: int = 0
    batches: int = 1
    part: float = 1.0

    def iteration(self, number: int) -> Iteration:
        """What the iteration of this number is, with the warm-up before the others."""
        if number < self.rounds:
            return Iteration(number, False, 0, self.batches, self.part)
        return Iteration(number, batch=number)
