"""What is minimised: losses per token, and how much each token counts."""

from vagentrl.losses.aggregation import Aggregation, AggregationMode, aggregation_weights
from vagentrl.losses.kl import KLKind, kl_estimate
from vagentrl.losses.policy import PolicyLoss, PPOClip, approximate_kl, clip_fraction, ppo_clip
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.losses.value import value_loss

__all__ = [
    "Aggregation",
    "AggregationMode",
    "KLKind",
    "PPOClip",
    "PolicyLoss",
    "aggregation_weights",
    "approximate_kl",
    "clip_fraction",
    "kl_estimate",
    "masked_mean",
    "ppo_clip",
    "probability_ratio",
    "value_loss",
]
