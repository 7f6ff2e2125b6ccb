"""Tools that the agent calls: functions of the user's, and those of MCP servers."""

from vagentrl.interactions.tools.base import Tool, ToolError
from vagentrl.interactions.tools.interaction import ToolInteraction, ToolSettings

__all__ = ["Tool", "ToolError", "ToolInteraction", "ToolSettings"]
