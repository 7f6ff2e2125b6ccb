"""How much better each sampled token was than expected: pure functions, and a class for each."""

from vagentrl.advantages.bi_level import BiLevelGAE, bi_level_gae
from vagentrl.advantages.dual_discount import DualDiscountGAE, dual_discount_gae
from vagentrl.advantages.estimator import AdvantageEstimator, CriticEstimator
from vagentrl.advantages.group import GroupRelative, group_relative
from vagentrl.advantages.masked import MaskedGAE, masked_gae
from vagentrl.advantages.streams import Streams
from vagentrl.advantages.turn import TurnGAE, turn_gae
from vagentrl.advantages.whitening import whiten

__all__ = [
    "AdvantageEstimator",
    "BiLevelGAE",
    "CriticEstimator",
    "DualDiscountGAE",
    "GroupRelative",
    "MaskedGAE",
    "Streams",
    "TurnGAE",
    "bi_level_gae",
    "dual_discount_gae",
    "group_relative",
    "masked_gae",
    "turn_gae",
    "whiten",
]
