"""`BaseInteraction`: someone who answers the agent, turn by turn, and scores its replies.

The signatures are those of verl 0.7.1, so that classes written for it run unchanged.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar
from uuid import uuid4


class BaseInteraction:
    """Answers the agent's replies; one object may serve many conversations at once.

    Args:
        config: The ``config`` of the interaction's entry in YAML, with its ``name``.
    """

    replays: ClassVar[bool] = False
    """Whether the answers follow from the messages and the row alone, so that a conversation can be
    played again and gives the same."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a conversation.

        Args:
            instance_id: Names the conversation, and is passed to all other methods; None draws a
                name, which only code that calls this method itself ever asks for.
            **kwargs: The row's ``interaction_kwargs``, its ``name`` included.

        Returns:
            The name of the conversation.
        """
        return str(uuid4()) if instance_id is None else instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str | list[dict[str, Any]], float, dict[str, Any]]:
        """Answer the agent's last reply.

        Args:
            instance_id: Names the conversation.
            messages: All messages so far, each with ``role`` and ``content``; a copy.
            **kwargs: The row's ``interaction_kwargs``, its ``name`` included.

        Returns:
            Whether the conversation is over, the answer, the turn's score, and metrics. The answer
            is a text, or a list of ``{"type": "text", "text": …}`` and
            ``{"type": "image", "image": …}``, where an image is a PIL image, a path or bytes.
        """
        return False, "Please go on.", 0.0, {}

    def agent_instructions(self) -> str:
        """What the agent must know beside its task; it ends the system prompt. Not part of verl."""
        return ""

    def best_reply(self, **kwargs: Any) -> str | None:
        """The agent's best first reply to a row; None if unknown. Not part of verl.

        ``vagentrl warmstart`` clones it, and ``vagentrl check-env`` plays it.

        Args:
            **kwargs: The row's ``interaction_kwargs``.
        """
        return None

    def random_reply(self, rng: Random, **kwargs: Any) -> str | None:
        """A reply drawn at random among those that make sense; None if unknown. Not part of verl.

        The demonstrator of ``vagentrl warmstart`` errs with it, and ``vagentrl check-env`` measures
        what it earns.

        Args:
            rng: The only source of randomness.
            **kwargs: The row's ``interaction_kwargs``.
        """
        return None

    # A class may override the next two methods with or without an `instance_id`, which they get if
    # they take it. With `*args` a class may also call either by `super()` in both ways.

    async def calculate_score(self, *args: Any, **kwargs: Any) -> float:
        """The score of the conversation so far; called at its end where ``reward: external``."""
        return 0.0

    async def finalize_interaction(self, *args: Any, **kwargs: Any) -> None:
        """Forget the conversation; called exactly once, however it ends."""
