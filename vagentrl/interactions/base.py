"""`BaseInteraction`: someone who answers the agent, turn by turn, and scores its replies.

The signatures are those of verl 0.7.1, so that classes written for it run unchanged.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4


class BaseInteraction:
    """Answers the agent's replies; one object may serve many conversations at once.

    Args:
        config: The ``config`` of the interaction's entry in YAML, with its ``name``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **kwargs: Any) -> str:
        """Begin a conversation.

        Args:
            instance_id: Names the conversation; None draws a name.
            **kwargs: The row's ``interaction_kwargs``, its ``name`` included.

        Returns:
            The name of the conversation.
        """
        return str(uuid4()) if instance_id is None else instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Answer the agent's last reply.

        Args:
            instance_id: Names the conversation.
            messages: All messages so far, each with ``role`` and ``content``.
            **kwargs: The row's ``interaction_kwargs``, its ``name`` included.

        Returns:
            Whether the conversation is over, the answer, the turn's score, and metrics.
        """
        return False, "Please go on.", 0.0, {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the conversation so far."""
        return 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the conversation."""
