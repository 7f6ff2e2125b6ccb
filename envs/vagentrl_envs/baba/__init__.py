"""Baba Is AI: a puzzle whose rules can be changed."""

from vagentrl_envs.baba.environment import Baba

__all__ = ["Baba"]
