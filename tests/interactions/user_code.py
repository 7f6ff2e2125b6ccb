"""A module as a user of verl has written it; it imports nothing but verl."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CODE = '''
import asyncio
import time
from collections import deque
from typing import Any, Dict, List, Optional, Tuple
from uuid import uuid4

from verl.interactions.base import BaseInteraction


class Table(BaseInteraction):
    """Keeps its conversations in a dictionary, as all of verl's examples do."""

    def __init__(self, config: Dict[str, Any]):
        super().__init__(config)
        self._instance_dict = {}
        self.log = deque(maxlen=0 if config.get("quiet") else None)

    async def start_interaction(
        self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs
    ) -> str:
        if instance_id is None:
            instance_id = str(uuid4())
        await asyncio.sleep(0)
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth}
        self.log.append(("start", instance_id, kwargs))
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: List[Dict[str, Any]], **kwargs
    ) -> Tuple[bool, str, float, dict]:
        content = ""
        for item in reversed(messages):
            if item.get("role") == "assistant":
                content = item.get("content", "")
                break
        self._instance_dict[instance_id]["response"] = content
        self.log.append(("generate", instance_id, kwargs, messages))
        score = await self.calculate_score(instance_id)
        if score == 1.0:
            return True, "Right!", score, {"tries": len(messages) // 2}
        return False, "Wrong, try again.", score, {"tries": len(messages) // 2}

    async def calculate_score(self, instance_id: str, **kwargs) -> float:
        one = self._instance_dict[instance_id]
        return 1.0 if one["ground_truth"] in one["response"] else 0.0

    async def finalize_interaction(self, instance_id: str, **kwargs) -> None:
        self.log.append(("finalize", instance_id))
        del self._instance_dict[instance_id]


class SolverInteraction(Table):
    pass


class BareInteraction(BaseInteraction):
    """Overrides the last two methods as the base class of verl declares them."""

    finalized = 0

    async def calculate_score(self) -> float:
        return 0.75

    async def finalize_interaction(self) -> None:
        await super().finalize_interaction()
        type(self).finalized += 1


class RenamingInteraction(Table):
    """Returns another id than it was given, which verl never looked at."""

    async def start_interaction(self, instance_id=None, **kwargs):
        await super().start_interaction(instance_id, **kwargs)
        return "mine"


class MutatingInteraction(Table):
    async def generate_response(self, instance_id, messages, **kwargs):
        result = await super().generate_response(instance_id, list(messages), **kwargs)
        self.log.append([dict(message) for message in messages])
        kwargs["numbers"].append(len(messages))
        for message in messages:
            message["content"] = "gone"
        messages.clear()
        return result


class StubbornInteraction(Table):
    """Never ends a conversation, not even when its answer was found."""

    async def generate_response(self, instance_id, messages, **kwargs):
        _, text, score, more = await super().generate_response(instance_id, messages, **kwargs)
        return False, text, score, more


class FaultyInteraction(Table):
    """Raises in the method that its config names, after doing what the method does."""

    async def _fail(self, method):
        await asyncio.sleep(0)
        match self.config.get("fails"), self.config.get("how", "raise"):
            case (name, _) if name != method:
                return
            case _, "raise":
                raise KeyError(f"no key in {method}")
            case _, "exit":
                raise SystemExit(3)
            case _, "cancel":
                raise asyncio.CancelledError()
            case _, "hang":
                await asyncio.sleep(3600)
            case _, "stubborn":
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    raise ValueError("cancelled, and said something else")

    async def start_interaction(self, instance_id=None, **kwargs):
        await super().start_interaction(instance_id, **kwargs)
        await self._fail("start_interaction")
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        result = await super().generate_response(instance_id, messages, **kwargs)
        await self._fail("generate_response")
        return result

    async def calculate_score(self, instance_id, **kwargs):
        await self._fail("calculate_score")
        return await super().calculate_score(instance_id, **kwargs)

    async def finalize_interaction(self, instance_id, **kwargs):
        await super().finalize_interaction(instance_id, **kwargs)
        await self._fail("finalize_interaction")


class BlockingInteraction(Table):
    async def generate_response(self, instance_id, messages, **kwargs):
        time.sleep(self.config["seconds"])  # this line blocks
        return await super().generate_response(instance_id, messages, **kwargs)


class ReturningInteraction(Table):
    """Returns what the row says."""

    async def generate_response(self, instance_id, messages, returns=None, **kwargs):
        return returns


class Ducks:
    """Derives from nothing."""

    def __init__(self, config):
        self.config = config

    async def start_interaction(self, instance_id=None, **kwargs):
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "Quack.", 1.0, {}

    async def calculate_score(self, instance_id):
        return 1.0

    async def finalize_interaction(self, instance_id):
        pass


class Lame:
    def __init__(self, config):
        pass

    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "", 0.0, {}


class Plain(Table):
    def generate_response(self, instance_id, messages, **kwargs):
        return True, "", 0.0, {}


class Greedy(Table):
    async def finalize_interaction(self, instance_id, reason):
        pass
'''


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write the module to a folder on the path; returns its name, which no other test has."""
    name = f"user_code_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
