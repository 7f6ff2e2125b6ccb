"""How a minibatch is divided among ranks and passes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.test_loader import loader, minibatches, rows_of, weights_of
from vagentrl.rollout.micro_batches import by_rows, by_tokens, empty_share, level

sorted_lengths = st.lists(st.integers(1, 200), min_size=1, max_size=60).map(sorted)


def test_rows_are_dealt_by_their_tokens_by_hand():
    # 9 to the first rank, 8 to the second, 5 to the second (8 < 9), 4 to the first, 3 to either:
    # both have 13 by then, and the first is taken. A budget of 10 holds 3 and 4 (2 x 4), no more.
    lengths = [3, 4, 5, 8, 9]
    assert by_tokens(lengths, 10, 2) == [[[0, 1], [4]], [[2], [3]]]


def test_a_row_beyond_the_budget_is_a_part_of_its_own():
    assert by_tokens([2, 3, 50, 60], 6, 1) == [[[0, 1], [2], [3]]]


def test_the_budget_counts_padding():
    # 2 + 5 tokens, but 2 rows of 5 columns
    assert by_tokens([2, 5], 9, 1) == [[[0], [1]]]
    assert by_tokens([2, 5], 10, 1) == [[[0, 1]]]


def test_a_rank_with_fewer_parts_halves_its_largest_and_then_fills_up():
    assert level([[0, 1, 2], [3]], 3) == [[0], [1, 2], [3]]
    assert level([[0, 1, 2], [3]], 6) == [[0], [1], [2], [3], [], []]
    assert level([], 2) == [[], []]
    assert empty_share([[[0], []], [[1], [2]]]) == 0.25


@given(sorted_lengths, st.integers(1, 500), st.integers(1, 5))
def test_every_row_is_dealt_once_within_the_budget(lengths: list[int], budget: int, ranks: int):
    shares = by_tokens(lengths, budget, ranks)
    assert len(shares) == ranks
    parts = [part for share in shares for part in share]
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    for part in parts:
        longest = max(lengths[place] for place in part)
        assert len(part) == 1 or len(part) * longest <= budget


@given(sorted_lengths, st.integers(1, 5))
def test_no_rank_has_more_tokens_than_the_mean_and_a_row(lengths: list[int], ranks: int):
    loads = [
        sum(lengths[place] for part in share for place in part)
        for share in by_tokens(lengths, 1000, ranks)
    ]
    assert max(loads) <= sum(lengths) / ranks + max(lengths)
    assert max(loads) - min(loads) <= max(lengths)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 5))
def test_by_rows_parts_are_the_neighbours_that_tensor_split_makes(
    rows: int, passes: int, ranks: int
):
    wanted = torch.arange(rows).tensor_split(passes * ranks)
    for rank, parts in enumerate(by_rows(rows, passes, ranks)):
        assert parts == [part.tolist() for part in wanted[rank::ranks]]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30), st.integers(1, 4))
def test_budgets_change_neither_the_steps_nor_what_a_row_weighs(
    rows: int, minibatch_size: int, budget: int, ranks: int
):
    settings = {"minibatch_size": minibatch_size, "passes": 2, "seed": 3}
    alone = minibatches(loader(rows, **settings, micro_batch_size=100))
    together = [
        loader(rows, **settings, micro_batch_tokens=budget, ranks=ranks, rank=rank)
        for rank in range(ranks)
    ]
    assert len({len(list(served)) for served in together} | {len(s) for s in together}) == 1
    empty = 0
    for whole, *shares in zip(alone, *map(minibatches, together), strict=True):
        parts = [part for share in shares for part in share]
        assert weights_of(parts) == weights_of(whole)  # to the last bit
        empty += sum(not rows_of(part) for part in parts)
    passes = ranks * len(together[0])
    assert all(served.fillers == empty / passes for served in together)


def test_fillers_are_counted_over_all_ranks():
    # 2 rows on 4 ranks, a pass each: 2 of 4 passes are of no use
    for rank in range(4):
        served = loader(2, minibatch_size=2, micro_batch_tokens=100, ranks=4, rank=rank)
        assert (len(served), served.fillers) == (1, 0.5)
    assert loader(5, minibatch_size=3, micro_batch_size=1).fillers == 1 / 6
