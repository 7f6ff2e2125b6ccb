"""Crafter: an open world to survive in, with 22 achievements."""

from vagentrl_envs.crafter.environment import Crafter

__all__ = ["Crafter"]
