"""BabyAI: find, carry and open things in small rooms (Chevalier-Boisvert et al. 2019)."""

from vagentrl_envs.babyai.environment import BabyAI, Task

__all__ = ["BabyAI", "Task"]
