"""Rows laid end to end in one sequence, in which a prefix that several rows share stands once.

Rows of a batch begin alike: all with the system prompt, the members of a group with their first
observation, the contexts of an episode whose thoughts are stripped with its earlier turns. A model
reads such a prefix once. Only attention tells the rows apart: the tokens that a row adds see the
prefix and each other, as in a row of its own, and gradients flow back into the prefix from all rows
that share it. There is no padding.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from vagentrl.types import RolloutBatch

log = logging.getLogger(__name__)

ATTENTION = "vagentrl_packed"

SAVED_AT_LEAST = 0.2
"""Share of the padded tokens that packing must save; else the rows are read padded."""


PADDED_BLOCK = 1.5
"""Attention may cost this many times what it needs if fewer calls, of equal rows, do it."""


@dataclass(frozen=True)
class Block:
    """Rows whose attention is computed in one call, padded on the right.

    Attributes:
        queries: ``(b, Q)`` places of the rows' new tokens.
        is_query: ``(b, Q)`` False in the padding of `queries`.
        keys: ``(b, K)`` places of all tokens of the rows.
        mask: ``(b, 1, Q, K)`` True where a new token sees another; None if causal attention does
            it, since all tokens are new. Padding of `keys` is seen by padding of `queries` only.
    """

    queries: Int[Tensor, "b Q"]
    is_query: Bool[Tensor, "b Q"]
    keys: Int[Tensor, "b K"]
    mask: Bool[Tensor, "b 1 Q K"] | None


@dataclass(frozen=True)
class Packing:
    """How ``R`` rows of ``T`` columns lie in one sequence of ``N`` tokens.

    Attributes:
        cells: ``(N,)`` where each token of the sequence stands in the rows, as a flat index.
        marks: ``(N,)`` its tokens, as `pack` was given them.
        places: ``(R, T)`` where each token of the rows stands in the sequence; 0 for padding.
        real: ``(R, T)`` True where a row has a token.
        keys: ``(K,)`` the places of all tokens that the new ones of a row see: those of its whole
            length, row after row. Rows without new tokens are left out here and below.
        new: Number of tokens that each row adds to the sequence, in the sequence's order.
        lengths: Number of tokens of these rows.
    """

    cells: Int[Tensor, " N"]
    marks: Int[Tensor, " N"]
    places: Int[Tensor, "R T"]
    real: Bool[Tensor, "R T"]
    keys: Int[Tensor, " K"]
    new: tuple[int, ...]
    lengths: tuple[int, ...]

    def to(self, device: torch.device) -> Packing:
        return replace(
            self,
            cells=self.cells.to(device),
            marks=self.marks.to(device),
            places=self.places.to(device),
            real=self.real.to(device),
            keys=self.keys.to(device),
        )

    @property
    def saves(self) -> bool:
        """Whether it is worth reading the rows this way."""
        return len(self.cells) <= (1 - SAVED_AT_LEAST) * self.real.numel()

    def unpack(self, states: Float[Tensor, "N D"]) -> Float[Tensor, "R T D"]:
        """The states of the sequence, laid out in rows; 0 in the padding."""
        with_zero = torch.cat([torch.zeros_like(states[:1]), states])
        index = (self.places + 1) * self.real
        # its backward pass is faster than that of indexing
        return with_zero.index_select(0, index.flatten()).view(*index.shape, -1)

    @cached_property
    def blocks(self) -> list[Block]:
        """The rows in blocks of similar sizes, for attention over padded blocks."""
        blocks: list[Block] = []
        first = 0
        for last in range(1, len(self.new) + 1):
            if last == len(self.new) or not self._fit_together(first, last + 1):
                blocks.append(self._block(first, last))
                first = last
        return blocks

    def _fit_together(self, first: int, end: int) -> bool:
        new, lengths = self.new[first:end], self.lengths[first:end]
        needed = sum(n * length for n, length in zip(new, lengths, strict=True))
        return len(new) * max(new) * max(lengths) <= PADDED_BLOCK * needed

    def _block(self, first: int, end: int) -> Block:
        new, lengths = self.new[first:end], self.lengths[first:end]
        device = self.keys.device
        queries = torch.arange(max(new), device=device)
        columns = torch.arange(max(lengths), device=device)
        news, totals = (torch.tensor(counts, device=device)[:, None] for counts in (new, lengths))
        is_query, is_key = queries < news, columns < totals
        start, key_start = sum(self.new[:first]), sum(self.lengths[:first])
        places = torch.arange(start, start + sum(new), device=device)
        keys = self.keys[key_start : key_start + sum(lengths)]
        sees = columns <= (totals - news + queries)[..., None]
        return Block(
            queries=is_query.long().masked_scatter(is_query, places),
            is_query=is_query,
            keys=is_key.long().masked_scatter(is_key, keys),
            mask=None if new == lengths else sees[:, None],
        )

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Where the queries and the keys of each row begin, and the end of the last."""
        starts = (torch.tensor([0, *counts]).cumsum(0) for counts in (self.new, self.lengths))
        queries, keys = (start.int().to(self.keys.device) for start in starts)
        return queries, keys


def pack(marks: Int[Tensor, "R T"], real: Bool[Tensor, "R T"]) -> Packing:
    """Lay rows end to end.

    Args:
        marks: Tokens as numbers that are equal where a model reads the same.
        real: True on tokens, False on padding, which is on the right.
    """
    marks, real = marks.cpu(), real.cpu()
    order = _alphabetical(marks, real)
    marks, real = marks[order], real[order]
    # In alphabetical order, no earlier row shares more with a row than the one before it does.
    same = (marks[1:] == marks[:-1]) & real[1:] & real[:-1]
    shared = [0, *same.long().cumprod(-1).sum(-1).tolist()]
    columns = torch.arange(marks.shape[1])
    is_new = real & (columns >= torch.tensor(shared)[:, None])
    places = torch.zeros_like(marks)
    places[is_new] = torch.arange(int(is_new.sum()))
    for row in range(1, len(places)):
        places[row, : shared[row]] = places[row - 1, : shared[row]]
    reads = is_new.any(-1)
    back = order.argsort()
    return Packing(
        cells=(order[:, None] * len(columns) + columns)[is_new],
        marks=marks[is_new],
        places=places[back],
        real=real[back],
        keys=places[reads][real[reads]],
        new=tuple(is_new.sum(-1)[reads].tolist()),
        lengths=tuple(real.sum(-1)[reads].tolist()),
    )


def reading_order(rollout: RolloutBatch) -> Int[Tensor, " B"]:
    """Row numbers in an order in which rows that share long prefixes are neighbours.

    Groups stay together, since their members start from the same images too.
    """
    rows = _alphabetical(rollout.input_ids.cpu(), rollout.attention_mask.cpu())
    groups = rollout.group_ids.cpu()[rollout.trajectory_ids.cpu()]
    return rows[groups[rows].argsort(stable=True)]


def _alphabetical(marks: Tensor, real: Tensor) -> Tensor:
    """The rows sorted as words are: by their first token, then by their second, and so on."""
    positive = (marks - marks.min() + 1) * real  # so that a row comes before its continuations
    words = [row.tobytes() for row in positive.numpy().astype(">u8")]
    return torch.tensor(sorted(range(len(words)), key=words.__getitem__))


def allow_packing(model: PreTrainedModel) -> None:
    """Let `states_before` pack the rows that a model reads, where that saves enough.

    A model whose attention is not the usual one in every layer is left as it is.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    usual = config._attn_implementation == "sdpa" and not kinds - {"full_attention"}
    if usual and model._supports_attention_backend:
        config._attn_implementation = ATTENTION
    else:
        log.info(
            "%s reads rows padded: its attention is %s, its layers are %s; packing is for full "
            "attention by sdpa",
            type(model).__name__,
            config._attn_implementation,
            sorted(kinds),
        )


def may_pack(model: nn.Module) -> bool:
    """Whether `allow_packing` was called on the model, and it can."""
    if not isinstance(model, PreTrainedModel):
        return False
    return model.config.get_text_config()._attn_implementation == ATTENTION


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "B H Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "B Q H D"], None]:
    """`sdpa`, and with a `packing` each row's new tokens see their own row alone."""
    if packing is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    half = _half_precision(value)
    if half is not None:
        states = varlen_attn(
            query.to(half),
            key.to(half).index_select(0, packing.keys),
            value.to(half).index_select(0, packing.keys),
            *packing.bounds,
            max(packing.new),
            max(packing.lengths),
            scale=scaling,
            window_size=(-1, 0),  # causal, with the diagonal in the lower right corner
            enable_gqa=True,
        )
        return cast(Tensor, states)[None], None
    seen: list[Tensor] = []
    for block in packing.blocks:
        queries, keys, values = (
            tensor.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)
            for tensor, index in (
                (query, block.queries),
                (key, block.keys),
                (value, block.keys),
            )
        )
        states, _ = sdpa_attention_forward(
            module, queries, keys, values, block.mask, scaling=scaling
        )
        seen.append(states[block.is_query])
    return torch.cat(seen)[None], None


def _half_precision(tensor: Tensor) -> torch.dtype | None:
    """The type of 2 bytes in which flash attention reads rows of any lengths; None without it."""
    if not tensor.is_cuda:
        return None
    autocast = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if autocast else tensor.dtype
    return dtype if dtype.itemsize == 2 else None


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
