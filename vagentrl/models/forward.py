"""Forward passes over the rows of a rollout, for every model of the trainer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from vagentrl.models.packing import Packing, may_pack, pack
from vagentrl.types import RolloutBatch, VisionInputs

LOGITS_PER_CHUNK = 2**26
"""Logits computed at once: 256 MB in float32, or 440 tokens with a vocabulary of 152k."""


def states_before(backbone: nn.Module, rollout: RolloutBatch) -> Tensor:
    """Hidden state before each token.

    A model with `packing.allow_packing` reads the rows packed if that saves enough.

    Args:
        backbone: A Hugging Face model without its head.
        rollout: Rows of ``(B, T)`` tokens; no image reaches into the last column.

    Returns:
        ``(B, T, D)``; the state in column ``t`` has read tokens 0 to ``t - 1``. Column 0 is zero.
    """
    packing = packing_of(backbone, rollout)
    if packing is None:
        inputs = _model_inputs(backbone, rollout)
        hidden = backbone(**inputs, use_cache=False).last_hidden_state
    else:
        inputs = _packed_inputs(backbone, rollout, packing)
        hidden = backbone(**inputs, packing=packing, use_cache=False).last_hidden_state
        hidden = packing.unpack(hidden[0])
    return torch.cat([torch.zeros_like(hidden[:, :1]), hidden], dim=1)


def _model_inputs(backbone: nn.Module, rollout: RolloutBatch) -> dict[str, Tensor]:
    # The last column is left out: no token comes after it. There is no attention mask: rows are
    # padded on the right, so causal attention alone keeps real tokens from seeing padding, and the
    # attention kernel may use its faster causal form.
    input_ids = rollout.input_ids[:, :-1]
    inputs = {"input_ids": input_ids}
    images = rollout.patches.model_inputs() if rollout.patches is not None else {}
    if images:
        inputs["mm_token_type_ids"] = input_ids.eq(_image_token(backbone)).int()
    return inputs | images


def _image_token(backbone: nn.Module) -> int:
    return backbone.config.image_token_id  # pyright: ignore


def packing_of(backbone: nn.Module, rollout: RolloutBatch) -> Packing | None:
    """How `states_before` packs the rows; None if it reads them padded."""
    if not may_pack(backbone):
        return None
    input_ids, vision = rollout.input_ids[:, :-1], rollout.patches
    marks = input_ids if vision is None else _mark_images(backbone, input_ids, vision)
    packing = pack(marks, rollout.attention_mask[:, :-1])
    return packing.to(input_ids.device) if packing.saves else None


def _packed_inputs(
    backbone: nn.Module, rollout: RolloutBatch, packing: Packing
) -> dict[str, Tensor]:
    input_ids, vision, cells = rollout.input_ids[:, :-1], rollout.patches, packing.cells
    positions, images = cells % input_ids.shape[1], {}
    if vision is not None and any(vision.rows):
        positions = _image_positions(backbone, input_ids, vision).flatten(1)[:, cells]
        read = _images_of(packing.marks, _image_sizes(backbone, vision))
        images = replace(vision, rows=(read,)).model_inputs()
    return {
        "input_ids": input_ids.flatten()[cells][None],
        "position_ids": positions[..., None, :],
        # Models pass a mask of four dimensions on as it is, and packed attention ignores it.
        "attention_mask": input_ids.new_zeros(1, 1, 1, 1),
        **images,
    }


def _mark_images(backbone: nn.Module, input_ids: Tensor, vision: VisionInputs) -> Tensor:
    """The tokens, those of image ``i`` replaced by ``-1 - i``: equal if they show the same."""
    sizes, shown = _image_sizes(backbone, vision), _shown(vision)
    numbers = shown.repeat_interleave(sizes[shown])
    return input_ids.masked_scatter(input_ids == _image_token(backbone), -1 - numbers)


def _images_of(marks: Tensor, sizes: Tensor) -> tuple[int, ...]:
    """The images whose tokens stand in a sequence of marks, in order."""
    tokens, counts = (-1 - marks[marks < 0]).tolist(), sizes.tolist()
    images: list[int] = []
    place = 0
    while place < len(tokens):
        images.append(tokens[place])
        place += counts[tokens[place]]
    return tuple(images)


def _image_positions(backbone: nn.Module, input_ids: Tensor, vision: VisionInputs) -> Tensor:
    """The model's own positions ``(3, B, T)`` of rows that show images."""
    is_image = input_ids.eq(_image_token(backbone)).int()
    grids = vision.image_grid_thw[_shown(vision)]
    return backbone.get_rope_index(  # pyright: ignore
        input_ids, mm_token_type_ids=is_image, image_grid_thw=grids
    )[0]


def _image_sizes(backbone: nn.Module, vision: VisionInputs) -> Tensor:
    """``(I,)`` tokens that each image takes."""
    merge: int = backbone.config.vision_config.spatial_merge_size  # pyright: ignore
    return vision.image_grid_thw.prod(-1) // merge**2


def _shown(vision: VisionInputs) -> Tensor:
    """The images that the rows show, row after row."""
    return vision.image_grid_thw.new_tensor([image for row in vision.rows for image in row])


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
