"""The interface of simulators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, get_args

from vagentrl_envs.primitive_skill.scene import COLORS, Scene, Task
from vagentrl_envs.primitive_skill.skills import Skill

if TYPE_CHECKING:
    from PIL.Image import Image


class Backend(ABC):
    """Plays skills and draws pictures.

    Both are functions of the scene alone: a simulator remembers nothing from one call to the next.
    So episodes repeat exactly, and a copy of an environment may look ahead with the same simulator.
    """

    colors: tuple[str, ...] = tuple(COLORS)
    """Colours of the cubes that there are."""
    tasks: tuple[Task, ...] = get_args(Task)
    """Tasks whose things there are."""

    @abstractmethod
    def perform(self, scene: Scene, skill: Skill, slips: bool) -> Scene:
        """The scene after a skill, with its `result`; a skill that fails is no error.

        Args:
            scene: The scene before.
            skill: What to do.
            slips: Whether what is held slips out of the hand this time.
        """

    @abstractmethod
    def picture(self, scene: Scene, size: int) -> Image:
        """What the camera in front of the table sees, `size` pixels high and wide."""

    @abstractmethod
    def close(self) -> None:
        """Release the simulator; may be called twice."""
