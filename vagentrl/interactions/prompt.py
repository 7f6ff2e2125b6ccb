"""Reads a task's messages as the beginning of an episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from PIL.Image import Image

from vagentrl.errors import RowError, seen
from vagentrl.interactions.tasks import Task, turns_problem
from vagentrl.types import IMAGE_PLACEHOLDER, Example, Observation, harmless


class TaskPrompt(NamedTuple):
    """How a task's episode begins.

    Attributes:
        system: The system message; empty without one.
        examples: Exchanges before the last message.
        observation: The last message.
    """

    system: str
    examples: tuple[Example, ...]
    observation: Observation


def read_prompt(task: Task) -> TaskPrompt:
    """Read a task's messages.

    Raises:
        RowError: When they are not an optional system message, then messages of the user and the
            assistant in turn, the last the user's; or when placeholders and images differ in
            number.
    """
    messages = [(message.get("role"), message.get("content")) for message in task.messages]
    roles = [role for role, _ in messages]
    if problem := turns_problem(roles):
        raise RowError(f"row {task.number}: {problem}")
    told = int(roles[0] == "system")
    texts = []
    for role, content in messages:
        if not isinstance(content, str):
            raise RowError(f"row {task.number}: the {role}'s content is {seen(content)}; give text")
        texts.append(content)
    system = harmless(texts[0]) if told else ""
    asked, replies = texts[told::2], texts[told + 1 :: 2]
    *earlier, last = _observations(task, asked)
    return TaskPrompt(system, tuple(map(Example, earlier, replies)), last)


def _observations(task: Task, texts: list[str]) -> Iterator[Observation]:
    """The user's messages, each with its images."""
    if not task.images:  # a text may mention a placeholder
        yield from (Observation(harmless(text)) for text in texts)
        return
    counts = [text.count(IMAGE_PLACEHOLDER) for text in texts]
    if sum(counts) != len(task.images):
        raise RowError(
            f"row {task.number} has {len(task.images)} images, but {sum(counts)} "
            f"{IMAGE_PLACEHOLDER} in its user messages; write one where each image belongs"
        )
    images: Iterator[Image] = iter(task.images)
    for text, count in zip(texts, counts, strict=True):
        yield Observation(text, tuple(next(images) for _ in range(count)))
