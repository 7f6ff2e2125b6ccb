"""Tasks: what an interaction is about, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL.Image import Image

from vagentrl.environment import Split


@dataclass(frozen=True)
class Task:
    """One row of a data set, as a conversation begins.

    Attributes:
        messages: The messages of the prompt, each with ``role`` (``system``, ``user`` or
            ``assistant``) and ``content``, a text with one ``<image>`` placeholder for each image.
            The last one is the user's.
        images: The images, in the order of their placeholders.
        interaction: The row's ``interaction_kwargs``; ``name`` in it names the interaction.
        number: Number of the row in its source, from 0.
    """

    messages: tuple[Mapping[str, str], ...]
    images: tuple[Image, ...] = ()
    interaction: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


class Tasks(ABC):
    """A source of tasks, divided into training, validation and test.

    It must be cheap to pickle, because worker processes get copies of it.
    """

    @abstractmethod
    def count(self, split: Split) -> int:
        """Number of tasks of a split."""

    @abstractmethod
    def task(self, split: Split, index: int) -> Task:
        """A task of a split, the same in every process.

        Args:
            split: No task of one split has the content of one of another.
            index: From 0 to ``count(split) - 1``.

        Raises:
            RowError: When the row cannot be used; the message has its number.
        """
