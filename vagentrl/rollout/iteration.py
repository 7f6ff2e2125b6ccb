"""The schedule of iterations: whether the actor learns, and from which episodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Iteration:
    """One round of collecting episodes and learning from them; one epoch of the trainer.

    Attributes:
        number: Number of iterations completed before this one.
        actor_learns: Whether the actor's weights change. In a critic warm-up only the critic's do.
        batch: Number of the batch of episodes to learn from. All rounds of a warm-up use batch 0;
            any other iteration has a batch of its own.
        batches: Size of that batch, in multiples of the usual batch size.
        part: Share of the batch's rows to learn from.
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
        batches: Number of batches of episodes; they are collected once, for all rounds.
        part: Share of the rows that each round learns from.
    """

    rounds: int = 0
    batches: int = 1
    part: float = 1.0

    def iteration(self, number: int) -> Iteration:
        """The iteration with this number, counted from the start of the run."""
        if number < self.rounds:
            return Iteration(number, False, 0, self.batches, self.part)
        return Iteration(number, batch=number)
