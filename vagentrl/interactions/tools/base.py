"""What a tool is to the interaction: a description, and a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class ToolError(Exception):
    """A call cannot be answered; the text says why, and is shown to the agent.

    Tools may raise it. The text of any other exception is shown with the exception's name.
    """


class Tool(ABC):
    """A function that the agent may call.

    Attributes:
        name: Its name in a call.
        description: What it does.
        parameters: Its arguments, as the JSON schema of an object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Carry out a call.

        Args:
            arguments: As the agent gave them, not checked.

        Returns:
            A text, a PIL image, a value that JSON can express, or a list of these.

        Raises:
            ToolError: The arguments do not fit, or the tool says no.
        """

    def described(self) -> dict[str, Any]:
        """The description that models with the Hermes format were trained on."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}
