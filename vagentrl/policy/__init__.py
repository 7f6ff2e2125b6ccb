"""A trained policy to use: it plays episodes, answers observations and becomes a folder."""

from vagentrl.policy.export import export_policy
from vagentrl.policy.load import load_policy
from vagentrl.policy.play import Dialogue, Policy

__all__ = ["Dialogue", "Policy", "export_policy", "load_policy"]
