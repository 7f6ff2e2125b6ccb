"""`Gsm8kInteraction` as verl 0.7.1 has it, under the name that verl gives it.

Code of verl's users derives from it, and models were trained on its answers; both stay as they
were. `vagentrl.interactions.gsm8k` has one with settings, metrics and stricter reading.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vagentrl.interactions import gsm8k
from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.messages import last_reply

_CORRECT = "Your response is correct!"
_INCORRECT = "Your response is incorrect! You need to reflect on your answer and try again."
_PREFIX = "#### "


class Gsm8kInteraction(BaseInteraction):
    """Asks until the last number of a reply is the right one.

    Subclasses find a conversation's ``response``, ``ground_truth`` and ``reward`` in
    ``_instance_dict``. A row without ``ground_truth`` is never solved.

    Args:
        config: Nothing but the name is used.
    """

    replays: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._instance_dict: dict[str, dict[str, Any]] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any
    ) -> str:
        """Begin a problem."""
        instance_id = await super().start_interaction(instance_id, **kwargs)
        problem = {"response": "", "ground_truth": ground_truth, "reward": 0.0}
        self._instance_dict[instance_id] = problem
        return instance_id

    def best_reply(self, ground_truth: Any = None, **kwargs: Any) -> str | None:
        return f"{_PREFIX}{ground_truth}"

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge the last reply; the conversation ends with the right answer."""
        reply = last_reply(messages)
        prefix = "" if reply.startswith(_PREFIX) else _PREFIX
        self._instance_dict[instance_id]["response"] = prefix + reply
        score = await self.calculate_score(instance_id)
        right = score == 1.0
        return right, _CORRECT if right else _INCORRECT, score, {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the last reply."""
        problem = self._instance_dict[instance_id]
        return gsm8k.compute_score(
            problem["response"],
            problem["ground_truth"],
            method="flexible",
            format_score=0.0,
            score=1.0,
        )

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the problem.

        Raises:
            KeyError: There is no such conversation.
        """
        del self._instance_dict[instance_id]
