"""Evaluation of policies on environments and seeds, with intervals and paired comparisons."""

from vagentrl.evaluation.evaluate import evaluate
from vagentrl.evaluation.ledger import PlayedEpisode
from vagentrl.evaluation.players import ChatPlayer, Player, PolicyPlayer
from vagentrl.evaluation.statistics import Difference, paired_difference, pass_at_k

__all__ = [
    "ChatPlayer",
    "Difference",
    "PlayedEpisode",
    "Player",
    "PolicyPlayer",
    "evaluate",
    "paired_difference",
    "pass_at_k",
]
