from typing import Any

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vagentrl.engines.kv_cache import SlotCache, grouped_attention


def step(cache: SlotCache, first_slot: int, cells: list[list[int]], value: float) -> torch.Tensor:
    """Write one value to these cells, and return the keys of the pass (one head, width one)."""
    where = torch.tensor(cells)
    cache.prepare(first_slot, where, int(where.max()) + 1)
    new = torch.full((len(cells), 1, where.shape[1], 1), value)
    keys, values = cache.update(new, -new, 0)
    torch.testing.assert_close(keys, -values)
    return keys[:, 0, :, 0]


def test_each_row_grows_from_its_own_length():
    cache = SlotCache()
    step(cache, 0, [[0, 1, 2], [0, 1, 2]], 1.0)
    keys = step(cache, 0, [[3], [1]], 2.0)  # the second row had one token and padding
    assert keys.tolist() == [[1, 1, 1, 2], [1, 2, 1, 0]]


def test_growing_keeps_the_old_cells_and_fills_new_ones_with_zeros():
    cache = SlotCache()
    step(cache, 0, [[0]], 1.0)
    keys = step(cache, 1, [[4]], 2.0)
    assert keys.tolist() == [[0, 0, 0, 0, 2]]
    assert cache.keys[0][:, 0, :, 0].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 2]]


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ((), 1.25**2 * 1.04),  # slots and cells, some rounded up; doubling would take 3.25
        ((9, 70), 1.0),  # 9 sessions that fill a context of 70 tokens: what was planned
    ],
)
def test_a_cache_that_grows_token_by_token_takes_little_more_than_it_holds(
    limits: tuple[int, ...], most: float
):
    cache = SlotCache(*limits)
    for length in range(1, 71):
        for slot in range(min(9, length)):  # sessions come one after the other
            step(cache, slot, [[length - 1]], 1.0)
    planned = 9 * 70 * 2 * 4  # slots, cells, keys and values of one head of width one, float32
    assert planned <= cache.nbytes <= most * planned


def test_swap_exchanges_two_slots_and_leaves_the_others():
    cache = SlotCache()
    step(cache, 0, [[0]], 1.0)
    step(cache, 1, [[0]], 2.0)
    step(cache, 2, [[0]], 3.0)
    cache.swap(0, 2, length=1)
    assert cache.keys[0][:3, 0, 0, 0].tolist() == [3, 2, 1]
    assert cache.values[0][:3, 0, 0, 0].tolist() == [-3, -2, -1]


def test_swap_reaches_slots_that_nothing_was_written_to():
    cache = SlotCache()
    step(cache, 0, [[0]], 1.0)
    cache.swap(0, 4, length=1)
    assert cache.keys[0][:, 0, 0, 0].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_attention_equals_sdpa(queries, kv_heads):
    module = nn.Module()
    module.num_key_value_groups = 4 // kv_heads
    query = torch.randn(3, queries, 4, 16).transpose(1, 2)
    key, value = torch.randn(2, 3, kv_heads, 9, 16)
    mask = torch.rand(3, 1, queries, 9) < 0.7
    mask[..., 0] = True
    wanted, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    found, _ = grouped_attention(module, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("queries", [1, 5])
def test_attention_may_come_in_any_strides(queries: int, monkeypatch: pytest.MonkeyPatch):
    """CUDA's kernels lay heads out last, and the CPU's do not."""
    torch.manual_seed(0)
    query = torch.randn(3, 4, queries, 16)
    key, value = torch.randn(2, 3, 2, 9, 16)
    mask = torch.ones(3, 1, queries, 9, dtype=torch.bool)
    module: Any = nn.Module()
    module.num_key_value_groups = 2
    wanted, _ = grouped_attention(module, query, key, value, mask)
    kernel = nn.functional.scaled_dot_product_attention

    def heads_last(*arguments: torch.Tensor, **settings: object) -> torch.Tensor:
        mixed: torch.Tensor = kernel(*arguments, **settings)  # pyright: ignore
        return mixed.transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", heads_last)
    found, _ = grouped_attention(module, query, key, value, mask)
    assert found.equal(wanted)
