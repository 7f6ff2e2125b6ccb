"""From logits to tokens: one draw per row, each with settings and randomness of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vagentrl.engines.base import Sampling

SHORT_LIST = 1024  # most likely tokens to look at before a whole vocabulary is sorted


def uniforms(seed: int, count: int) -> list[float]:
    """The randomness of one reply: a number in [0, 1) per token, decided by the seed alone."""
    return np.random.Generator(np.random.Philox(seed)).random(count).tolist()


def sample(
    logits: Float[Tensor, "B V"], settings: Sequence[Sampling], draws: Float[Tensor, " B"]
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Draw one token per row.

    Args:
        logits: Scores of the next token; -inf for what must not be drawn.
        settings: Temperature, top-p and top-k of each row.
        draws: A number in [0, 1) per row that decides it.

    Returns:
        The tokens, and their log-probs under the tempered distribution before top-p and top-k
        (under temperature 1 where greedy).
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
    """Probabilities (not normalised again) with everything outside top-k and top-p at zero."""
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
    # the last token that is still needed to reach the wanted mass
    threshold = likely.where(before < wanted, torch.inf).amin(-1, keepdim=True)
    return probs.where(probs >= threshold, 0)


def _draw(weights: Tensor, draws: Tensor) -> Tensor:
    """Invert the cumulative distribution, in vocabulary order.

    Float64: in float32 the sum over a large vocabulary rounds by more than a rare token weighs,
    which can give a token without any weight a share.
    """
    cdf = weights.double().cumsum(-1)
    ids = torch.searchsorted(cdf, (draws * cdf[:, -1])[:, None], right=True)[:, 0]
    return ids.clamp(max=weights.shape[-1] - 1)
