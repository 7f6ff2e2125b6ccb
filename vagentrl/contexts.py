"""Contexts: which earlier turns the model sees when it replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from vagentrl.errors import ConfigError, PartError

Thoughts = Literal["keep", "strip"]


class Context(ABC):
    """Chooses the earlier turns that stand in the model's context; subclasses write ``start``.

    If the context of a turn continues that of the turn before it, token by token, both share a
    training row. If earlier turns are cut or rewritten, a new row begins. So every sampled token is
    trained in the context in which it was sampled.

    Args:
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` the
            ``<think>…</think>`` from them.

    Attributes:
        memory: The number of earlier turns that may be visible; None for all.

    Raises:
        ConfigError: When ``thoughts`` is neither.
    """

    memory: int | None = None
    thoughts: Thoughts = "keep"

    def __init__(self, thoughts: Thoughts = "keep") -> None:
        if thoughts not in ("keep", "strip"):
            raise ConfigError(f"thoughts is {thoughts!r}; choose 'keep' or 'strip'")
        self.thoughts = thoughts

    @abstractmethod
    def start(self, turn: int) -> int:
        """Index of the oldest visible turn; ``turn`` itself if no earlier turn is visible.

        Args:
            turn: Index of the turn to be played, from 0.
        """

    def __call__(self, turn: int) -> int:
        """The oldest turn that the subclass shows, checked."""
        start = self.start(turn)
        oldest = 0 if self.memory is None else max(turn - self.memory, 0)
        if not isinstance(start, int) or not oldest <= start <= turn:
            wanted = f"return the index of a turn from {oldest} to {turn}"
            if oldest:
                wanted += f", for its memory is {self.memory} (None remembers all turns)"
            raise PartError.returned(self, f"start({turn})", start, wanted)
        return start


class FullHistory(Context):
    """Shows the whole episode.

    Args:
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` their thoughts. With
            ``strip`` the context is rewritten after every reply that has a thought, so that the
            next turn begins a new row.
    """

    memory = None

    def start(self, turn: int) -> int:
        return 0


class Window(Context):
    """Shows the last few turns only, so the context does not grow with the episode (Verlog).

    Args:
        turns: The number of earlier turns that are visible; 0 shows only the current observation.
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` their thoughts.
        clear_every: Hide all earlier turns again after every `clear_every` turns (5 in Verlog's
            ablation); None never does.

    Raises:
        ConfigError: When ``turns`` is negative, ``clear_every`` below 1, or ``thoughts`` neither.
    """

    def __init__(
        self, turns: int = 2, thoughts: Thoughts = "keep", clear_every: int | None = None
    ) -> None:
        super().__init__(thoughts)
        if turns < 0:
            raise ConfigError(
                f"Window.turns is {turns}; give the number of earlier turns to show, 0 for none"
            )
        if clear_every is not None and clear_every < 1:
            raise ConfigError(
                f"Window.clear_every is {clear_every}; give a number of turns, or null"
            )
        self.turns = self.memory = turns
        self.clear_every = clear_every

    def start(self, turn: int) -> int:
        assert self.memory is not None
        cleared = 0 if self.clear_every is None else turn - turn % self.clear_every
        return max(turn - self.memory, cleared, 0)
