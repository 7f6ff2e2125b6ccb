"""Tasks: what an interaction is about, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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

    @property
    def content(self) -> str:
        """A hash of the messages, the images and the `interaction`; the same in every process."""
        told = [(message.get("role"), message.get("content")) for message in self.messages]
        digest = blake2b(repr((told, sorted(self.interaction.items()))).encode(), digest_size=16)
        for image in self.images:
            digest.update(f"{image.mode}{image.size}".encode() + image.tobytes())
        return digest.hexdigest()


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


def turns_problem(roles: Sequence[object]) -> str | None:
    """What is wrong with the order of a prompt's messages; None if nothing is."""
    spoken = roles[1:] if roles[:1] == ["system"] else roles
    wanted = ["user" if number % 2 == 0 else "assistant" for number in range(len(spoken))]
    if spoken == wanted and len(spoken) % 2 == 1:
        return None
    return (
        f"the messages have the roles {roles}; give a system message or none, then user and "
        "assistant in turn, and the user's last"
    )
