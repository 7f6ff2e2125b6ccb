"""Keys and values of many episodes in one store, and the attention that reads it in place."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "vagentrl_grouped"


class SlotCache(Cache):
    """One slot per episode, each filled to a length of its own.

    The rows of a forward pass sit in neighbouring slots, so that attention reads them without a
    copy; `swap` brings them there. Slots and cells grow by doubling.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])  # transformers' layers know one length for all rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def aim(self, first_slot: int, cells: Int[Tensor, "B Q"], width: int) -> None:
        """Say where the next forward pass belongs.

        Args:
            first_slot: Slot of the first row; the others follow it.
            cells: The cell of every new token, counted from the start of its slot.
            width: Cells to read of every slot.
        """
        self._first, self._width = first_slot, width
        self._rows = torch.arange(len(cells), device=cells.device)[:, None]
        self._cells = cells

    def update(
        self,
        key_states: Float[Tensor, "B H Q D"],
        value_states: Float[Tensor, "B H Q D"],
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "B H W D"], Float[Tensor, "B H W D"]]:
        """Store what the new tokens bring; return everything up to the width."""
        return (
            self._append(self._keys, layer_idx, key_states),
            self._append(self._values, layer_idx, value_states),
        )

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first `length` cells of two slots."""
        for store in (*self._keys, *self._values):
            kept = store[one, :, :length].clone()
            store[one, :, :length] = store[other, :, :length]
            store[other, :, :length] = kept

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Cells that the current forward pass reads."""
        return self._width

    def _append(self, stores: list[Tensor], layer: int, new: Tensor) -> Tensor:
        if layer == len(stores):
            stores.append(new.new_zeros(0, new.shape[1], 0, new.shape[3]))
        last_slot = self._first + len(new)
        stores[layer] = _with_room(stores[layer], last_slot, self._width)
        rows = stores[layer][self._first : last_slot]
        rows[self._rows, :, self._cells] = new.transpose(1, 2)
        return rows[:, :, : self._width]


def _with_room(store: Tensor, slots: int, cells: int) -> Tensor:
    if slots <= store.shape[0] and cells <= store.shape[2]:
        return store
    slots = slots if slots <= store.shape[0] else max(slots, 2 * store.shape[0])
    cells = cells if cells <= store.shape[2] else max(cells, 2 * store.shape[2])
    # zeros: attention multiplies even the masked cells, and 0 * nan is nan
    larger = store.new_zeros(max(slots, store.shape[0]), store.shape[1], max(cells, store.shape[2]), store.shape[3])
    larger[: store.shape[0], :, : store.shape[2]] = store
    return larger


def grouped_attention(
    module: nn.Module,
    query: Float[Tensor, "B H Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "B Q H D"], None]:
    """`sdpa` that does not copy key-value heads for the query heads that share them, where it can.

    A single query becomes one of several queries of its key-value head, which any kernel takes.
    For more than one the CPU kernel knows groups; others would leave their fast path.
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
    return mixed.view(rows, heads, queries, width).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
