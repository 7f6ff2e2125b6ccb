"""How a minibatch is divided among ranks and passes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.test_loader import loader, minibatches, rows_of, weights_of
from vagentrl.rollout.micro_batches import by_rows, by_tokens, empty_share, padded, passes_for

sorted_lengths = st.lists(st.integers(1, 200), min_size=1, max_size=60).map(sorted)


def test_rows_are_divided_by_their_tokens_by_hand():
    # A budget of 12 holds 4 rows of 3 (12), 2 of 6 (12), and 10 alone: 3 parts, 2 for each of 2
    # ranks, so one is missing. With a budget of 10 there are 4: 3 of 3 (9), 3 and 6 take 12 > 10.
    lengths = [3, 3, 3, 3, 6, 6, 10]
    assert passes_for(lengths, 12, 1) == 3
    assert passes_for(lengths, 12, 2) == 2
    # 12 tokens of two rows of 6 to the first rank, 12 of four rows of 3 to the second, 10 to it;
    # the fourth part is made by halving the one with the most rows: 6 and 6
    assert by_tokens(lengths, 12, 2, 2) == [[[4, 5], [2, 3]], [[6], [0, 1]]]


def test_parts_are_evened_out_where_the_budget_leaves_room():
    # 5 rows of 10: a budget of 40 would make parts of 4 and 1, and 30 is enough for two
    assert by_tokens([10] * 5, 40, 2, 1) == [[[0, 1, 2], [3, 4]]]


def test_a_row_beyond_the_budget_is_a_part_of_its_own():
    assert passes_for([2, 3, 50, 60], 6, 1) == 3
    assert by_tokens([2, 3, 50, 60], 6, 3, 1) == [[[3], [2], [0, 1]]]


def test_the_budget_counts_padding():
    # 2 + 5 tokens, but 2 rows of 5 columns
    assert passes_for([2, 5], 9, 1) == 2
    assert passes_for([2, 5], 10, 1) == 1


def test_where_rows_are_too_few_empty_parts_fill_up():
    assert by_tokens([4, 7], 100, 2, 2) == [[[1], []], [[0], []]]
    assert empty_share([[[[0], []], [[1], [2]]]]) == 0.25


@given(sorted_lengths, st.integers(1, 500), st.integers(1, 5), st.integers(0, 3))
def test_every_row_is_dealt_once_within_the_budget(
    lengths: list[int], budget: int, ranks: int, more: int
):
    passes = passes_for(lengths, budget, ranks) + more
    shares = by_tokens(lengths, budget, passes, ranks)
    assert [len(share) for share in shares] == [passes] * ranks
    parts = [part for share in shares for part in share if part]
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    for part in parts:
        assert part == list(range(part[0], part[-1] + 1))  # rows of like length
        assert len(part) == 1 or padded(part, lengths) <= budget


@given(sorted_lengths, st.integers(1, 500), st.integers(1, 5))
def test_a_rank_has_its_longest_part_first(lengths: list[int], budget: int, ranks: int):
    for share in by_tokens(lengths, budget, passes_for(lengths, budget, ranks), ranks):
        sizes = [padded(part, lengths) for part in share]
        assert sizes == sorted(sizes, reverse=True)


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
