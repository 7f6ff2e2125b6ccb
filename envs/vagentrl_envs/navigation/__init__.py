"""Navigation: find a named object in furnished rooms that are seen in first person."""

from vagentrl_envs.navigation.environment import Navigation

__all__ = ["Navigation"]
