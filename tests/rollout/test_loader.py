from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests import toy
from vagentrl.losses import Aggregation
from vagentrl.rollout.loader import MinibatchLoader, NoMinibatches
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch

settings_of_a_loader = st.fixed_dictionaries(
    {
        "minibatch_size": st.integers(1, 12),
        "micro_batch_size": st.integers(1, 6),
        "passes": st.integers(1, 3),
        "seed": st.integers(0, 10),
    }
)


def batch(rows: int) -> RolloutBatch:
    """Row r holds the token r; it has 2 + (7 r) % 5 tokens, all sampled except the first."""
    lengths = torch.tensor([2 + 7 * row % 5 for row in range(rows)])
    columns = torch.arange(int(lengths.max()) + 1)
    real = columns < lengths[:, None]
    action_mask = real & (columns > 0)
    return toy.one_turn_rows(torch.arange(rows)[:, None] * real, real, action_mask)


def loader(rows: int, mode: str = "token_mean", /, **settings: float) -> MinibatchLoader:
    return serve(batch(rows), mode, **settings)


def serve(rollout: RolloutBatch, mode: str, /, **settings: float) -> MinibatchLoader:
    numbers = rollout.input_ids.float()
    return MinibatchLoader(
        rollout,
        Scores(numbers),
        Credit(numbers),
        Aggregation(mode),  # pyright: ignore
        **{"minibatch_size": 4, "micro_batch_size": 2, "passes": 1, "seed": 0} | settings,  # pyright: ignore
    )


def minibatches(served: MinibatchLoader) -> list[list[TrainBatch]]:
    """The micro-batches between two steps of the optimizer."""
    parts, step = list(served), served.accumulate
    return [parts[start : start + step] for start in range(0, len(parts), step)]


def rows_of(part: TrainBatch) -> list[int]:
    """The rows with a weight above 0."""
    counts = part.weights.sum(-1) > 0
    return part.rollout.trajectory_ids[counts].tolist()


def test_rows_are_served_by_hand():
    # 10 rows in minibatches of about 4: round(2.5) = 2 of 5 rows, each as 2 + 2 + 1
    served = loader(10)
    assert (len(served), served.accumulate) == (6, 3)
    sizes = [[len(part.rollout) for part in parts] for parts in minibatches(served)]
    assert sizes == [[2, 2, 1], [2, 2, 1]]


@given(st.integers(1, 40), settings_of_a_loader)
def test_every_row_is_served_once_a_pass(rows: int, settings: dict[str, int]):
    served = loader(rows, **settings)
    order = [row for part in served for row in rows_of(part)]
    for start in range(0, len(order), rows):
        assert sorted(order[start : start + rows]) == list(range(rows))
    assert len(order) == rows * settings["passes"]


@given(st.integers(1, 40), settings_of_a_loader)
def test_minibatches_are_of_equal_size_and_number_of_parts(rows: int, settings: dict[str, int]):
    served = loader(rows, **settings)
    groups = minibatches(served)
    assert len(groups) == settings["passes"] * served.minibatches
    assert {len(parts) for parts in groups} == {served.accumulate}
    assert len(served) == len(groups) * served.accumulate
    sizes = {sum(len(rows_of(part)) for part in parts) for parts in groups}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), settings_of_a_loader)
def test_no_part_has_more_rows_than_asked_for(rows: int, settings: dict[str, int]):
    sizes = {len(part.rollout) for part in loader(rows, **settings)}
    assert 1 <= min(sizes) <= max(sizes) <= settings["micro_batch_size"]


@given(
    st.integers(1, 40),
    settings_of_a_loader,
    st.sampled_from(["token_mean", "turn_mean", "trajectory_mean"]),
)
def test_the_weights_of_a_minibatch_sum_to_1(rows: int, settings: dict[str, int], mode: str):
    for parts in minibatches(loader(rows, mode, **settings)):
        total = sum(part.weights.sum() for part in parts)
        torch.testing.assert_close(total, torch.tensor(1.0))


def test_weights_are_counted_before_the_minibatch_is_split():
    [parts] = minibatches(loader(3, minibatch_size=3, micro_batch_size=1))
    # 2, 4 and 6 tokens, the first of each observed: 1 + 3 + 5 sampled tokens, 1/9 each
    assert [round(9 * part.weights.sum().item(), 4) for part in parts] == [1, 3, 5]


def test_a_minibatch_that_is_a_row_short_is_filled_with_a_row_of_no_weight():
    # 5 rows in minibatches of 3 and 2, one by one: 3 parts each, the last of the second a filler
    full, short = minibatches(loader(5, minibatch_size=3, micro_batch_size=1))
    assert [len(rows_of(part)) for part in full] == [1, 1, 1]
    assert [len(rows_of(part)) for part in short] == [1, 1, 0]
    assert short[2].rollout.trajectory_ids.tolist() == short[0].rollout.trajectory_ids.tolist()


def test_rows_of_like_length_go_together():
    for parts in minibatches(loader(40, minibatch_size=20, micro_batch_size=5)):
        lengths = [part.rollout.attention_mask.sum(-1).tolist() for part in parts]
        flat = [length for part in lengths for length in part]
        assert flat == sorted(flat)
        widths = [part.rollout.input_ids.shape[1] for part in parts]
        assert widths == [max(part) + 1 for part in lengths]


def test_everything_about_a_row_travels_with_it():
    for part in loader(12):
        own = part.rollout.trajectory_ids[:, None] * part.rollout.attention_mask
        torch.testing.assert_close(part.rollout.input_ids, own)
        torch.testing.assert_close(part.scores.old_logprobs, own.float())
        torch.testing.assert_close(part.credit.advantages, own.float())
        assert (part.weights > 0).equal(part.rollout.action_mask)


def order(served: MinibatchLoader) -> list[int]:
    return [row for part in served for row in rows_of(part)]


def test_the_seed_decides_the_order():
    assert order(loader(20, seed=1)) == order(loader(20, seed=1))
    assert order(loader(20, seed=1)) != order(loader(20, seed=2))
    served = loader(20, seed=1)
    assert order(served) == order(served)  # the order is the same in a second pass over the loader


def test_every_pass_has_an_order_of_its_own():
    both = order(loader(20, passes=2))
    assert both[:20] != both[20:]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_batch_smaller_than_a_minibatch_is_one(rows: int):
    served = loader(rows, minibatch_size=64, micro_batch_size=8)
    assert len(served) == 1
    assert sorted(order(served)) == list(range(rows))


def test_the_weights_of_rows_do_not_depend_on_the_micro_batch_size():
    def weights(micro_batch_size: int) -> Tensor:
        total = torch.zeros(12)
        for part in loader(12, micro_batch_size=micro_batch_size):
            total[part.rollout.trajectory_ids] += part.weights.sum(-1)
        return total

    torch.testing.assert_close(weights(1), weights(3))
    torch.testing.assert_close(weights(1), weights(100))


def test_the_seed_decides_which_part_is_served():
    def part(seed: int, share: float) -> list[int]:
        return sorted(order(loader(20, seed=seed, part=share)))

    some = part(1, 0.3)
    assert len(some) == 6
    torch.rand(1)  # the global generator has no say
    assert part(1, 0.3) == some != part(2, 0.3)
    assert len(part(1, 0.01)) == 1
    assert part(1, 1.0) == list(range(20))


def test_a_trajectory_in_two_minibatches_counts_in_each_as_the_part_that_is_there():
    # Rows 0 to 3 have 1, 3, 5 and 2 sampled tokens; the trajectories, of two rows each, 4 and 7.
    # In a minibatch, row r is tokens / length of a trajectory, and the rows' shares sum to 1.
    rollout = replace(batch(4), trajectory_ids=torch.tensor([0, 0, 1, 1]))
    tokens, whole = [1, 3, 5, 2], [4, 4, 7, 7]
    served = serve(rollout, "trajectory_mean", minibatch_size=2, micro_batch_size=2)
    for part in served:
        rows = [[1, 3, 5, 2].index(count) for count in part.rollout.action_mask.sum(-1).tolist()]
        shares = [tokens[row] / whole[row] for row in rows]
        wanted = torch.tensor([share / sum(shares) for share in shares])
        torch.testing.assert_close(part.weights.sum(-1), wanted)


def test_an_iteration_without_a_step_serves_one_batch_that_is_none():
    nothing = NoMinibatches()
    assert (len(nothing), nothing.accumulate, list(nothing)) == (1, 1, [None])


def weights_of(parts: list[TrainBatch]) -> dict[int, float]:
    """The weight of each row whose weight is above 0."""
    weights = {
        row: weight
        for part in parts
        for row, weight in zip(
            part.rollout.trajectory_ids.tolist(), part.weights.sum(-1).tolist(), strict=True
        )
        if weight > 0
    }
    assert len(weights) == sum(len(rows_of(part)) for part in parts)  # none twice
    return weights


@given(st.integers(1, 40), settings_of_a_loader, st.integers(2, 4))
def test_ranks_share_the_rows_of_every_step_and_make_as_many_passes(
    rows: int, settings: dict[str, int], ranks: int
):
    alone = minibatches(loader(rows, **settings))
    together = [loader(rows, **settings, ranks=ranks, rank=rank) for rank in range(ranks)]
    for whole, *shares in zip(alone, *map(minibatches, together), strict=True):
        assert len({len(share) for share in shares}) == 1
        served = weights_of([part for share in shares for part in share])
        assert served == pytest.approx(weights_of(whole))


def test_a_trajectory_that_is_split_over_minibatches_counts_in_parts():
    # rows of 1, 3 and 5 sampled tokens; the first and the last are one trajectory of 6
    rollout = replace(
        batch(3), trajectory_ids=torch.tensor([0, 1, 0]), group_ids=torch.tensor([0, 0])
    )
    by_hand = {
        (1, 3): [1 / 7, 2 / 7],  # 1/6 + 1 = 7/6 trajectories, of 6 and of 3 tokens
        (1, 5): [1 / 6, 1 / 6],
        (3, 5): [2 / 11, 1 / 11],  # 1 + 5/6 = 11/6 trajectories
        (1,): [1.0],
        (3,): [1 / 3],
        (5,): [1 / 5],
    }
    found = {}
    for seed in range(20):
        for part in serve(rollout, "trajectory_mean", minibatch_size=2, seed=seed):
            lengths = part.rollout.action_mask.sum(1).tolist()
            found[tuple(lengths)] = part.weights.amax(1).tolist()
    assert found.keys() == by_hand.keys()
    for lengths, weights in by_hand.items():
        assert found[lengths] == pytest.approx(weights)


def test_rows_that_begin_alike_share_a_micro_batch_if_asked():
    rollout = batch(8)
    ids = rollout.input_ids.clone()
    ids[:, 0] = torch.tensor([2, 1, 2, 1, 2, 1, 2, 1])
    rollout = replace(
        rollout, input_ids=ids, trajectory_ids=torch.arange(8), group_ids=torch.zeros(8).long()
    )
    served = serve(rollout, "token_mean", minibatch_size=8, micro_batch_size=4, by_prefix=True)
    assert [sorted(rows_of(part)) for part in served] == [[1, 3, 5, 7], [0, 2, 4, 6]]
