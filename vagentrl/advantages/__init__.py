"""Advantage estimators: a pure function for each, and the class that YAML names."""

from vagentrl.advantages.bi_level import BiLevelGAE, bi_level_gae
from vagentrl.advantages.continuations import Continuations
from vagentrl.advantages.dual_discount import DualDiscountGAE, dual_discount_gae
from vagentrl.advantages.estimator import AdvantageEstimator, CriticEstimator, EpisodeEstimator
from vagentrl.advantages.gigpo import GiGPO, gigpo
from vagentrl.advantages.group import GroupRelative, group_relative
from vagentrl.advantages.masked import MaskedGAE, masked_gae
from vagentrl.advantages.reinforce_plus_plus import ReinforcePlusPlus, reinforce_plus_plus
from vagentrl.advantages.streams import Streams
from vagentrl.advantages.turn import TurnGAE, turn_gae
from vagentrl.advantages.turn_group import TurnGroupRelative, turn_group_relative
from vagentrl.advantages.vine_turn import VineTurn, vine_turn
from vagentrl.advantages.whitening import whiten

__all__ = [
    "AdvantageEstimator",
    "BiLevelGAE",
    "Continuations",
    "CriticEstimator",
    "DualDiscountGAE",
    "EpisodeEstimator",
    "GiGPO",
    "GroupRelative",
    "MaskedGAE",
    "ReinforcePlusPlus",
    "Streams",
    "TurnGAE",
    "TurnGroupRelative",
    "VineTurn",
    "bi_level_gae",
    "dual_discount_gae",
    "gigpo",
    "group_relative",
    "masked_gae",
    "reinforce_plus_plus",
    "turn_gae",
    "turn_group_relative",
    "vine_turn",
    "whiten",
]
