"""Do the engine that sampled and the trainer that learns see the same probabilities?"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def agreement(
    scored: Float[Tensor, " N"], sampled: Float[Tensor, " N"], beyond: float
) -> dict[str, float]:
    """How two log-probs of the same sampled tokens differ.

    Args:
        scored: What the trainer gives to each token.
        sampled: What the engine gave to it.
        beyond: Difference from which on a token is counted.

    Returns:
        ``gap`` and ``gap_max``, the mean and greatest absolute difference; ``kl``, the divergence
        of the engine's distribution from the trainer's, estimated as the mean of ``w - 1 - log w``
        with ``w = scored / sampled`` in probability (Schulman's k3; never negative); ``beyond``,
        the share of tokens that differ by more; and ``sample_size``, ``(sum w)^2 / (N sum w^2)``:
        the share of the tokens that are worth as much as that many of the trainer's own.
    """
    difference = (scored - sampled).double()
    weight = difference.clamp(max=20).exp()
    return {
        "gap": float(difference.abs().mean()),
        "gap_max": float(difference.abs().max()),
        "kl": float((weight - 1 - difference).mean()),
        "beyond": float((difference.abs() > beyond).double().mean()),
        "sample_size": float(weight.sum() ** 2 / (len(weight) * weight.square().sum())),
    }
