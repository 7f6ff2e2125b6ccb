"""Tasks: what an interaction is about, and where it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from PIL.Image import Image

from vagentrl.environment import Split, split_of_state
from vagentrl.errors import RowError, seen


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


class ListTasks(Tasks):
    """Tasks from rows in memory. A hash of its content gives each to a split: a tenth of the tasks
    each to validation and to test.

    Args:
        rows: The rows. Each has a ``prompt``, which is a text or a list of messages, and optionally
            ``images`` (PIL) and ``extra_info.interaction_kwargs`` or ``interaction_kwargs``. Where
            both are missing, an ``answer`` is passed on as ``ground_truth``.

    Raises:
        RowError: When a row is of another form.
    """

    def __init__(self, rows: Sequence[dict[str, Any] | Task]) -> None:
        self._tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        for number, row in enumerate(rows):
            task = replace(row, number=number) if isinstance(row, Task) else task_of(row, number)
            self._tasks[split_of_state(task.content)].append(task)

    def count(self, split: Split) -> int:
        return len(self._tasks[split])

    def task(self, split: Split, index: int) -> Task:
        return self._tasks[split][index]


def task_of(row: Mapping[str, Any], number: int) -> Task:
    """The task of a row; see `ListTasks`.

    Raises:
        RowError: When the row is of another form.
    """
    prompt = row.get("prompt")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, Sequence) or not all(isinstance(one, Mapping) for one in messages):
        wanted = "give a text, or a list of messages with `role` and `content`"
        raise RowError(f"row {number} has the prompt {seen(prompt)}; {wanted}")
    extra = row.get("extra_info") or {}
    kwargs = extra.get("interaction_kwargs") or row.get("interaction_kwargs")
    if kwargs is None:
        kwargs = {"ground_truth": row["answer"]} if "answer" in row else {}
    if not isinstance(kwargs, Mapping):
        raise RowError(f"row {number} has interaction_kwargs {seen(kwargs)}; give a dictionary")
    return Task(tuple(messages), tuple(row.get("images", ())), kwargs, number)
