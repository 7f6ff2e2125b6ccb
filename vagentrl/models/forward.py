"""Forward passes over the rows of a rollout, for every model of the trainer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from vagentrl.types import RolloutBatch

LOGITS_PER_CHUNK = 2**26
"""Logits computed at once: 256 MB in float32, or 440 tokens with a vocabulary of 152k."""


def states_before(backbone: nn.Module, rollout: RolloutBatch) -> Tensor:
    """Hidden state before each token.

    Args:
        backbone: A Hugging Face model without its head.
        rollout: Rows of ``(B, T)`` tokens; no image reaches into the last column.

    Returns:
        ``(B, T, D)``; the state in column ``t`` has read tokens 0 to ``t - 1``. Column 0 is zero.
    """
    hidden = backbone(**_model_inputs(backbone, rollout), use_cache=False).last_hidden_state
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden], dim=1)


def _model_inputs(backbone: nn.Module, rollout: RolloutBatch) -> dict[str, Tensor]:
    # The last column is left out: no token comes after it. There is no attention mask: rows are
    # padded on the right, so causal attention alone keeps real tokens from seeing padding, and the
    # attention kernel may use its faster causal form.
    input_ids = rollout.input_ids[:, :-1]
    inputs = {"input_ids": input_ids}
    images = rollout.vision.model_inputs() if rollout.vision is not None else {}
    if images:
        image_token: int = backbone.config.image_token_id  # pyright: ignore
        inputs["mm_token_type_ids"] = input_ids.eq(image_token).int()
    return inputs | images


def token_logprobs(
    policy: PreTrainedModel,
    states: Tensor,
    rollout: RolloutBatch,
    banned_ids: Tensor,
    *,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the sampled tokens, and the entropy of the distributions they came from.

    The head runs on sampled tokens only, a chunk at a time. Its logits are recomputed in the
    backward pass, since with a large vocabulary they would fill the memory.

    Args:
        policy: The model whose head reads the states.
        states: ``(B, T, D)`` from `states_before`.
        rollout: The rows, with the temperature and the action mask.
        banned_ids: ``(K,)`` tokens that the engine never samples; their probability is 0 here too.
        with_entropy: Whether to compute the entropy.

    Returns:
        ``(B, T)`` log-probs and ``(B, T)`` entropies (None unless asked for), in nats, in float32
        at least, 0 off the action mask.
    """
    mask = rollout.action_mask
    head: nn.Linear = policy.get_output_embeddings()  # pyright: ignore
    picked, targets = states[mask], rollout.input_ids[mask]
    chunk = max(1, LOGITS_PER_CHUNK // head.out_features)
    recompute = torch.is_grad_enabled() and len(picked) > chunk

    def score(states: Tensor, targets: Tensor) -> Tensor:
        logits = at_least_float32(head(states)) / rollout.temperature
        # the lowest finite number: with -inf the entropy would be 0 * inf
        logits = logits.index_fill(-1, banned_ids, torch.finfo(logits.dtype).min)
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(-1, targets[:, None]).squeeze(-1)
        if not with_entropy:
            return chosen[None]
        return torch.stack([chosen, -(logprobs.exp() * logprobs).sum(-1)])

    scored = torch.cat(
        [
            checkpoint(score, *piece, use_reentrant=False) if recompute else score(*piece)
            for piece in zip(picked.split(chunk), targets.split(chunk), strict=True)
        ],
        dim=-1,
    )
    rows = [scored.new_zeros(mask.shape).masked_scatter(mask, column) for column in scored]
    return rows[0], rows[1] if with_entropy else None


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 if its type is narrower; float64 stays."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
