"""Estimates of the KL divergence from a reference, from sampled tokens."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from vagentrl.errors import ConfigError
from vagentrl.losses.ratio import probability_ratio

KLKind = Literal["k1", "k2", "k3", "k3+"]


def kl_estimate(
    logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"], kind: KLKind
) -> Float[Tensor, "*shape"]:
    """KL(policy || reference) per token (Schulman, "Approximating KL divergence", 2020).

    With ``d = logprobs - ref_logprobs``:

    - ``k1``: ``d``. Unbiased, of either sign.
    - ``k2``: ``d**2 / 2``. Biased, never negative.
    - ``k3``: ``exp(-d) - 1 + d``. Unbiased, never negative.
    - ``k3+``: the value of k3 with the gradient of k2 (named as in verl).

    An unbiased value does not imply an unbiased gradient, because the policy also chose the token.
    In expectation over tokens that the policy samples, a policy gradient with the estimate in the
    reward, and the gradient of the estimate as a loss, are those of

    - ``k1``: KL(policy || reference) in the reward, nothing as a loss.
    - ``k2``: neither divergence in the reward, KL(policy || reference) as a loss.
    - ``k3``: KL(policy || reference) - KL(reference || policy) in the reward,
      KL(reference || policy) as a loss.
    - ``k3+``: as k3 in the reward, KL(policy || reference) as a loss.

    Args:
        logprobs: Log-probs under the policy of tokens that it sampled.
        ref_logprobs: Log-probs of the same tokens under the reference.
        kind: Which estimate.

    Returns:
        The estimate for each token, in nats.

    Raises:
        ConfigError: When ``kind`` is none of these.
    """
    difference = logprobs - ref_logprobs
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        return probability_ratio(ref_logprobs, logprobs) - 1 + difference
    if kind == "k3+":
        value, slope = (kl_estimate(logprobs, ref_logprobs, kind) for kind in ("k3", "k2"))
        return value.detach() + slope - slope.detach()
    raise ConfigError(f"kind is {kind!r}; choose 'k1', 'k2', 'k3' or 'k3+'")
