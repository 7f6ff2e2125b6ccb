"""What the model sees of the past when it replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from vagentrl.errors import ConfigError, PartError

Thoughts = Literal["keep", "strip"]


class Context(ABC):
    """The turns before the present one that stand in the model's context; subclasses write `start`.

    A turn whose context continues the one before it, token by token, shares a training row with it.
    When the past is cut or rewritten, a new row begins: nothing is learned from tokens in a context
    that they were not sampled in.

    Args:
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` their
            ``<think>…</think>``, so that only what was done is remembered.

    Attributes:
        memory: Turns that may be seen again, None for all.
    """

    memory: int | None = None
    thoughts: Thoughts = "keep"

    def __init__(self, thoughts: Thoughts = "keep") -> None:
        if thoughts not in ("keep", "strip"):
            raise ConfigError(f"thoughts is {thoughts!r}; choose 'keep' or 'strip'")
        self.thoughts = thoughts

    @abstractmethod
    def start(self, turn: int) -> int:
        """Index of the oldest visible turn; `turn` itself if no past is visible.

        Args:
            turn: Index of the present turn, from 0.
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
    """The whole episode.

    Args:
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` their thoughts; the
            prefix then breaks at every turn, and each has a row of its own.
    """

    memory = None

    def start(self, turn: int) -> int:
        return 0


class Window(Context):
    """The last turns only, so that a context is no longer after 400 turns than after 4 (Verlog).

    Args:
        turns: Turns before the present one that are seen; 0 shows the present alone.
        thoughts: ``keep`` earlier replies as they were sampled, or ``strip`` their thoughts.
        clear_every: Forget everything after so many turns (5 in Verlog's ablation); None: never.
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
        self.memory = turns
        self.clear_every = clear_every

    def start(self, turn: int) -> int:
        assert self.memory is not None
        cleared = 0 if self.clear_every is None else turn - turn % self.clear_every
        return max(turn - self.memory, cleared, 0)
