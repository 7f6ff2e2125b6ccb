"""A key-value cache with one slot per session, and the attention that reads it in place."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "vagentrl_grouped"
GROWTH = 1.25
"""Slots and cells grow by this factor: a larger one copies less often and wastes more memory."""


class SlotCache(Cache):
    """A cache with one slot per session; slots are filled to different lengths.

    The rows of a forward pass must be in consecutive slots, so that attention reads them without
    a copy; `swap` moves sessions there. The number of slots and the number of cells (one cell per
    token) grow by `GROWTH`, so the cache takes at most its square times what is needed, and at
    most `GROWTH` times once the longest session fills the context.

    Args:
        slots: Number of slots beyond which none is allocated in advance.
        cells: The same of the cells in a slot.
    """

    def __init__(self, slots: int = sys.maxsize, cells: int = sys.maxsize) -> None:
        super().__init__(layers=[])  # the cache layers of transformers need equal lengths
        self._limits = slots, cells
        self.keys: list[Tensor] = []  # per layer: (slots, heads, cells, head width)
        self.values: list[Tensor] = []

    def prepare(self, first_slot: int, cells: Int[Tensor, "B Q"], length: int) -> None:
        """Set which slots and cells the next forward pass reads and writes.

        Args:
            first_slot: Slot of the first row; the other rows follow it.
            cells: Cell, within its slot, to which each new token is written.
            length: Number of cells to read from every slot.
        """
        self._first, self._cells, self._length = first_slot, cells, length
        self._rows = torch.arange(len(cells), device=cells.device)[:, None]

    def update(
        self,
        key_states: Float[Tensor, "B G Q D"],
        value_states: Float[Tensor, "B G Q D"],
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "B G K D"], Float[Tensor, "B G K D"]]:
        """Store the keys and values of the new tokens; return all that attention reads."""
        return (
            self._write(self.keys, layer_idx, key_states),
            self._write(self.values, layer_idx, value_states),
        )

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes."""
        return sum(store.nbytes for store in (*self.keys, *self.values))

    @torch.inference_mode()
    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` cells of two slots."""
        for stores in (self.keys, self.values):
            for layer, store in enumerate(stores):
                stores[layer] = store = self._with_room(store, max(one, other) + 1, length)
                kept = store[one, :, :length].clone()
                store[one, :, :length] = store[other, :, :length]
                store[other, :, :length] = kept

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of cells that the current forward pass reads."""
        return self._length

    def _write(self, stores: list[Tensor], layer: int, new: Tensor) -> Tensor:
        if layer == len(stores):
            stores.append(new.new_zeros(0, new.shape[1], 0, new.shape[3]))
        behind = self._first + len(new)
        stores[layer] = self._with_room(stores[layer], behind, self._length)
        rows = stores[layer][self._first : behind]
        rows[self._rows, :, self._cells] = new.transpose(1, 2)
        return rows[:, :, : self._length]

    def _with_room(self, store: Tensor, slots: int, cells: int) -> Tensor:
        had_slots, heads, had_cells, width = store.shape
        if slots <= had_slots and cells <= had_cells:
            return store
        slots = _grown(had_slots, slots, self._limits[0])
        cells = _grown(had_cells, cells, self._limits[1])
        # Unused cells must hold zeros: attention multiplies masked values by 0, and 0 * nan is nan.
        larger = store.new_zeros(slots, heads, cells, width)
        larger[:had_slots, :, :had_cells] = store
        return larger


def _grown(had: int, needed: int, limit: int) -> int:
    if needed <= had:
        return had
    return max(needed, min(math.ceil(GROWTH * had), limit))


def grouped_attention(
    module: nn.Module,
    query: Float[Tensor, "B H Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "B Q H D"], None]:
    """`sdpa` for grouped-query attention without repeating the key-value heads where possible.

    With a single query per row (decoding), the query heads of a group become several queries of
    their key-value head, which any kernel supports. With more queries, the CPU kernel supports
    groups directly; on CUDA `enable_gqa` would prevent the fast kernel, so heads are repeated.
    """
    rows, heads, queries, width = query.shape
    grouped = queries > 1 and query.device.type == "cpu"
    if attention_mask is None or (queries > 1 and not grouped):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    if queries == 1:
        query = query.view(rows, key.shape[1], -1, width)
    mixed = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=grouped
    )
    # CUDA kernels return other strides than the CPU's, so a view is not always possible
    return mixed.reshape(rows, heads, queries, width).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
