"""PrimitiveSkill: a robot arm that is told which skill to use, and where."""

from vagentrl_envs.primitive_skill.backend import Backend
from vagentrl_envs.primitive_skill.environment import PrimitiveSkill
from vagentrl_envs.primitive_skill.scene import Task

__all__ = ["Backend", "PrimitiveSkill", "Task"]
