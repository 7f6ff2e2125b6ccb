"""`ToolInteraction`: runs the tools that the agent calls, and has its final answer judged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from vagentrl.errors import ConfigError, EnvError, RowError
from vagentrl.interactions.base import BaseInteraction
from vagentrl.interactions.messages import last_reply
from vagentrl.interactions.registry import read_entry
from vagentrl.interactions.session import id_arguments
from vagentrl.interactions.settings import read_settings
from vagentrl.interactions.tools.base import Tool, ToolError
from vagentrl.interactions.tools.calls import Call, Malformed, after_thinking, read_calls
from vagentrl.interactions.tools.prompt import tools_prompt
from vagentrl.interactions.tools.results import Block, blocks_of, joined, response
from vagentrl.interactions.tools.threads import Threads
from vagentrl.interactions.tools.toolset import Toolset

_LONGEST_ERROR = 500
"""Characters of an error that the agent is shown."""


@dataclass(frozen=True)
class ToolSettings:
    """Settings of `ToolInteraction`.

    Args:
        tools: Functions, or classes whose methods are tools, by dotted path; in Python also the
            objects themselves.
        mcp: Servers, each with the fields of `McpSettings`.
        answer: The interaction that judges the final answer, as ``{class_name: …, config: {…}}``.
            Without it, the answer must equal the row's ``ground_truth``.
        timeout_s: Seconds for a call.
        result_chars: Characters of a result; a longer one is cut.
        result_images: Images of a result; further ones are left out.
        call_chars: Characters of the longest call.
        calls_per_turn: Calls that are made in one turn.
        calls_per_conversation: Calls that are made in a conversation.
    """

    tools: list[Any] = field(default_factory=list)
    mcp: list[dict[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    timeout_s: float = 30.0
    result_chars: int = 4000
    result_images: int = 4
    call_chars: int = 20_000
    calls_per_turn: int = 8
    calls_per_conversation: int = 64

    def __post_init__(self) -> None:
        positive = (
            "timeout_s",
            "result_chars",
            "call_chars",
            "calls_per_turn",
            "calls_per_conversation",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a positive number")
        if self.result_images < 0:
            raise ConfigError(f"result_images is {self.result_images}; give 0 or more")


@dataclass
class _Conversation:
    tools: Mapping[str, Tool]
    closing: ExitStack
    ground_truth: Any
    judged: bool = False  # by the interaction of the setting `answer`
    calls: int = 0
    score: float = 0.0


@dataclass
class _Counts:
    """What happened in a turn, for the metrics."""

    calls: int = 0
    failed: int = 0
    malformed: int = 0
    timeouts: int = 0

    def metrics(self) -> dict[str, float]:
        return {
            "calls": float(self.calls),
            "failed_calls": float(self.failed),
            "malformed_calls": float(self.malformed),
            "timed_out_calls": float(self.timeouts),
        }


class ToolInteraction(BaseInteraction):
    """Makes the calls in a reply, one after another; a reply without a call is the final answer.

    `agent_instructions` tells the agent of its tools.

    Args:
        config: The fields of `ToolSettings`.

    Raises:
        ConfigError: A tool cannot be imported or described, or an MCP server does not start.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.settings = read_settings(config, ToolSettings, "ToolInteraction")
        self._servers = [_server(server) for server in self.settings.mcp]
        listed = [tool for server in self._servers for tool in server.tools]
        self._toolset = Toolset(self.settings.tools, listed)
        answer = self.settings.answer
        self._answering = None if answer is None else read_entry(answer, "`answer`").make()
        self._threads = Threads()
        self._conversations: dict[str, _Conversation] = {}

    def agent_instructions(self) -> str:
        """The tools, and how to call them."""
        return tools_prompt(self._toolset.all)

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> str:
        """Begin a conversation.

        Args:
            instance_id: Names the conversation; None draws a name.
            ground_truth: The right final answer, unless an interaction judges it.
            **kwargs: Constructors of tool classes get those that they name; the interaction that
                judges the answer gets them all.

        Raises:
            RowError: There is nothing to judge the final answer by.
            EnvError: An object of a tool class cannot be made.
        """
        if self._answering is None and ground_truth is None:
            raise RowError(
                "a row of ToolInteraction has no ground_truth; give it in interaction_kwargs, or "
                "name an interaction in the setting answer"
            )
        instance_id = await super().start_interaction(instance_id, **kwargs)
        row = {"ground_truth": ground_truth, **kwargs}
        closing = ExitStack()
        tools = await self._tools(row, closing)
        conversation = _Conversation(tools, closing, ground_truth)
        self._conversations[instance_id] = conversation
        if self._answering is not None:
            try:
                await self._answering.start_interaction(instance_id, **row)
            except BaseException:
                await self.finalize_interaction(instance_id)
                raise
            conversation.judged = True
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, Any, float, dict[str, Any]]:
        """Make the calls of the last reply, or judge it as the final answer.

        Returns:
            As `BaseInteraction.generate_response`; the answer is a list of content blocks if a
            tool has returned an image.
        """
        settings, conversation = self.settings, self._conversations[instance_id]
        reply = after_thinking(last_reply(messages))
        calls = read_calls(reply, settings.calls_per_turn, settings.call_chars)
        if not calls:
            return await self._judge(instance_id, reply, messages, kwargs)
        counts = _Counts()
        responses = [response(await self._answer(conversation, call, counts)) for call in calls]
        return False, joined(responses), 0.0, counts.metrics()

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The score of the final answer; 0 before it."""
        if self._answering is None:
            return self._conversations[instance_id].score
        method = self._answering.calculate_score
        return await method(*id_arguments(method, instance_id))

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the conversation and leave its objects."""
        conversation = self._conversations.pop(instance_id, None)
        if conversation is None:
            return
        try:
            if self._answering is not None and conversation.judged:
                method = self._answering.finalize_interaction
                await method(*id_arguments(method, instance_id))
        finally:
            if self._toolset.classes:
                async with asyncio.timeout(self.settings.timeout_s):
                    await self._threads.run(conversation.closing.close)

    async def close(self) -> None:
        """Close the sessions of MCP servers in this event loop; they end with it in any case."""
        for server in self._servers:
            await server.close()

    async def _tools(self, row: Mapping[str, Any], closing: ExitStack) -> Mapping[str, Tool]:
        if not self._toolset.classes:
            return self._toolset.of_conversation(row, closing)
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await self._threads.run(lambda: self._toolset.of_conversation(row, closing))
        except Exception as error:  # boundary: constructors of the user's
            raise EnvError(f"the tools of a conversation cannot be made: {_told(error)}") from error

    async def _judge(
        self,
        instance_id: str,
        reply: str,
        messages: list[dict[str, Any]],
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any, float, dict[str, Any]]:
        conversation, metrics = self._conversations[instance_id], _Counts().metrics()
        if self._answering is None:
            right = reply.strip() == str(conversation.ground_truth).strip()
            conversation.score = float(right)
            told = "That is the right answer." if right else "That is not the right answer."
            return True, told, conversation.score, {**metrics, "correct": float(right)}
        done, told, score, judged = await self._answering.generate_response(
            instance_id, messages, **kwargs
        )
        return done, told, score, {**(judged or {}), **metrics}

    async def _answer(
        self, conversation: _Conversation, call: Call | Malformed, counts: _Counts
    ) -> list[Block]:
        """The content blocks that answer a call."""
        if isinstance(call, Malformed):
            counts.malformed += 1
            return _error(call.problem)
        if conversation.calls >= self.settings.calls_per_conversation:
            counts.failed += 1
            most = self.settings.calls_per_conversation
            return _error(f"all {most} calls of this conversation are made; give your answer")
        conversation.calls += 1
        counts.calls += 1
        tool = conversation.tools.get(call.name)
        if tool is None:
            counts.failed += 1
            names = ", ".join(conversation.tools)
            return _error(f"there is no tool {call.name[:100]!r}; the tools are {names}")
        return await self._call(tool, call.arguments, counts)

    async def _call(self, tool: Tool, arguments: Mapping[str, Any], counts: _Counts) -> list[Block]:
        settings = self.settings
        limit = asyncio.timeout(settings.timeout_s)
        try:
            async with limit:
                result = await tool.call(arguments)
                if isinstance(result, str):
                    return blocks_of(result, settings.result_chars, settings.result_images)
                return await self._threads.run(  # it may take long to write a value as JSON
                    lambda: blocks_of(result, settings.result_chars, settings.result_images)
                )
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            problem = f"{tool.name} was cancelled"
        except ToolError as error:
            problem = str(error)
        except BaseException as error:  # boundary: a tool of the user's
            if limit.expired():
                counts.timeouts += 1
                problem = f"{tool.name} has not answered within {settings.timeout_s:g} s"
            elif isinstance(error, (KeyboardInterrupt, GeneratorExit)):
                raise
            else:
                problem = f"{tool.name} failed: {_told(error)}"
        counts.failed += 1
        return _error(problem)


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _error(problem: str) -> list[Block]:
    return blocks_of(f"Error: {problem}", _LONGEST_ERROR, 0)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _server(config: Mapping[str, Any]) -> Any:
    from vagentrl.interactions.tools.mcp_servers import mcp_server  # its libraries are an extra

    return mcp_server(config)
