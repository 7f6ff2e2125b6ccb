"""Losses: a pure function per token for each, the class that YAML names, and their aggregation."""

from vagentrl.losses.aggregation import (
    Aggregation,
    AggregationMode,
    aggregation_weights,
    trajectory_lengths,
)
from vagentrl.losses.agreement import agreement
from vagentrl.losses.cispo import CISPO, cispo
from vagentrl.losses.gspo import GSPO, gspo, sequence_ratio
from vagentrl.losses.importance import ImportanceMask, TruncatedImportance, importance_ratio
from vagentrl.losses.kl import KLKind, kl_estimate
from vagentrl.losses.policy import PolicyLoss, approximate_kl
from vagentrl.losses.ppo import PPOClip, clip_fraction, ppo_clip
from vagentrl.losses.ratio import masked_mean, probability_ratio
from vagentrl.losses.reinforce import Reinforce, reinforce
from vagentrl.losses.value import explained_variance, value_loss

__all__ = [
    "CISPO",
    "GSPO",
    "Aggregation",
    "AggregationMode",
    "ImportanceMask",
    "KLKind",
    "PPOClip",
    "PolicyLoss",
    "Reinforce",
    "TruncatedImportance",
    "aggregation_weights",
    "agreement",
    "approximate_kl",
    "cispo",
    "clip_fraction",
    "explained_variance",
    "gspo",
    "importance_ratio",
    "kl_estimate",
    "masked_mean",
    "ppo_clip",
    "probability_ratio",
    "reinforce",
    "sequence_ratio",
    "trajectory_lengths",
    "value_loss",
]
