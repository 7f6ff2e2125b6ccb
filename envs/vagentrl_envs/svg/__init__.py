"""SVG reconstruction: a drawing is seen and written as SVG, better in every turn."""

from vagentrl_envs.svg.drawings import Level
from vagentrl_envs.svg.environment import SVGReconstruction
from vagentrl_envs.svg.markup import Limits
from vagentrl_envs.svg.score import Weights

__all__ = ["Level", "Limits", "SVGReconstruction", "Weights"]
