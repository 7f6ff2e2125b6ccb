"""Token sampling from a batch of logits, with settings and a random number per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vagentrl.engines.base import Sampling

SHORT_LIST = 1024  # top-p examines this many tokens before it sorts the whole vocabulary


def uniforms(seed: int, count: int) -> list[float]:
    """Return a reply's random numbers: one in [0, 1) per token, determined by the seed."""
    return np.random.Generator(np.random.Philox(seed)).random(count).tolist()


def sample(
    logits: Float[Tensor, "B V"], settings: Sequence[Sampling], draws: Float[Tensor, " B"]
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw one token per row.

    Args:
        logits: Logits of the next token; -inf for tokens that must not be drawn.
        settings: Temperature, top-p and top-k of each row.
        draws: Random number in [0, 1) of each row, which determines the token.

    Returns:
        The tokens, and their log-probs after temperature and before top-p and top-k (at
        temperature 1 for greedy rows).
    """
    kinds = [(row.temperature, row.top_p, row.top_k) for row in settings]
    if len(set(kinds)) == 1:
        return _sample_alike(logits, *kinds[0], draws)
    ids = torch.empty(len(kinds), dtype=torch.long, device=logits.device)
    logprobs = torch.empty(len(kinds), device=logits.device)
    for kind in set(kinds):
        rows = torch.tensor([i for i, k in enumerate(kinds) if k == kind], device=logits.device)
        ids[rows], logprobs[rows] = _sample_alike(logits[rows], *kind, draws[rows])
    return ids, logprobs


def _sample_alike(
    logits: Tensor, temperature: float, top_p: float, top_k: int, draws: Tensor
) -> tuple[Tensor, Tensor]:
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        ids = logprobs.argmax(-1)
    else:
        ids = _draw(_truncated(logprobs.exp(), top_p, top_k), draws)
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _truncated(probs: Tensor, top_p: float, top_k: int) -> Tensor:
    """Set probabilities outside top-k and top-p to zero, without renormalising."""
    top_k = min(top_k, probs.shape[-1])
    if top_k:
        likely = probs.topk(top_k).values
        probs = probs.where(probs >= likely[:, -1:], 0)
        if top_p == 1:
            return probs
        wanted = top_p * likely.sum(-1, keepdim=True)
    elif top_p < 1:
        likely = probs.topk(min(SHORT_LIST, probs.shape[-1])).values
        wanted = top_p
        if (likely.sum(-1) < top_p).any():
            likely = probs.sort(descending=True).values
    else:
        return probs
    before = likely.cumsum(-1) - likely
    # The least likely token that is needed to reach the wanted mass sets the threshold.
    threshold = likely.where(before < wanted, torch.inf).amin(-1, keepdim=True)
    return probs.where(probs >= threshold, 0)


def _draw(weights: Tensor, draws: Tensor) -> Tensor:
    """Sample by inverting the cumulative distribution, in vocabulary order.

    The sum is in float64: over a large vocabulary, rounding errors of a float32 sum exceed the
    probability of rare tokens, so a token with probability zero could be drawn.
    """
    cdf = weights.double().cumsum(-1)
    ids = torch.searchsorted(cdf, (draws * cdf[:, -1])[:, None], right=True)[:, 0]
    return ids.clamp(max=weights.shape[-1] - 1)
