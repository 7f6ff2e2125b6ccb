"""How far the engine's log-probs are from the trainer's."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def agreement(
    scored: Float[Tensor, " N"], sampled: Float[Tensor, " N"], beyond: float
) -> dict[str, float]:
    """Compare two log-probs of the same sampled tokens.

    Args:
        scored: Log-prob of each token by the trainer.
        sampled: Log-prob of each token by the engine that sampled it.
        beyond: Absolute difference above which a token counts for ``beyond``, in nats.

    Returns:
        ``gap`` and ``gap_max``: mean and largest absolute difference, in nats.
        ``kl``: KL(engine || trainer), estimated as the mean of ``w - 1 - log w`` (Schulman's k3,
        which is never negative), with ``w`` the trainer's probability divided by the engine's.
        ``beyond``: share of the tokens that differ by more than ``beyond``.
        ``sample_size``: effective sample size as a share of the tokens,
        ``(sum w)^2 / (N sum w^2)``; 1 where engine and trainer agree.
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
