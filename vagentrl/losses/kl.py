"""Estimates of the KL divergence to a reference, from sampled tokens."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.ratio import probability_ratio

KLKind = Literal["k1", "k2", "k3"]


def kl_estimate(
    logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"], kind: KLKind
) -> Float[Tensor, "*shape"]:
    """KL(policy || reference) per token sampled by the policy (Schulman, "Approximating KL").

    k1 is unbiased but of either sign, k2 is never negative but biased, k3 is unbiased and never
    negative. k1 belongs in the reward: as a loss its expected gradient is zero.
    """
    difference = logprobs - ref_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        return probability_ratio(ref_logprobs, logprobs) - 1 + difference
    raise ConfigError(f"kind is {kind!r}; choose 'k1', 'k2' or 'k3'")
