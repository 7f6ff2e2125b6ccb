"""What the agent is told about its tools, in the system message."""

from __future__ import annotations

import json
from collections.abc import Iterable

from vagentrl.interactions.tools.base import Tool
from vagentrl.interactions.tools.calls import CLOSING, OPENING


def tools_prompt(tools: Iterable[Tool]) -> str:
    """Describe tools, and how to call them, in the format of Hermes and Qwen models."""
    lines = [json.dumps(tool.described(), ensure_ascii=False) for tool in tools]
    call = '{"name": <function name>, "arguments": <object of arguments>}'
    return "\n".join(
        [
            "# Tools",
            "",
            "These functions are available, one JSON description per line:",
            "<tools>",
            *lines,
            "</tools>",
            "",
            "To call functions, write for each call:",
            OPENING,
            call,
            CLOSING,
            "Each result comes back within <tool_response></tool_response>. A reply without a "
            "call is your final answer.",
        ]
    )
