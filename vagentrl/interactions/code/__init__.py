"""Programs that the agent writes, run under confinement against tests."""

from vagentrl.interactions.code.interaction import CodeInteraction, CodeSettings

__all__ = ["CodeInteraction", "CodeSettings"]
