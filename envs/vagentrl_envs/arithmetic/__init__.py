"""A ladder of arithmetic: problems in seven rungs, and someone who says "too low" or "too high"."""

from vagentrl_envs.arithmetic.interaction import ArithmeticInteraction
from vagentrl_envs.arithmetic.tasks import ArithmeticTasks

__all__ = ["ArithmeticInteraction", "ArithmeticTasks"]
