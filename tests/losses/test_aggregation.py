from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.batches import Turns, ragged_turns, turn_ids_of
from vagentrl.errors import ConfigError
from vagentrl.losses import Aggregation, aggregation_weights, trajectory_lengths

# trajectory 4 has 3 tokens: turn 0 in row 0 and turn 1 in row 2; trajectory 7 has 1 token, in row
# 1; row 3 is padding
TURNS = torch.tensor([[-1, 0, 0], [-1, 0, -1], [-1, -1, 1], [-1, -1, -1]])
MASK = TURNS >= 0
TRAJECTORIES = torch.tensor([4, 7, 4, 9])
MODES = [
    Aggregation("token_mean"),
    Aggregation("turn_mean"),
    Aggregation("trajectory_mean"),
    Aggregation("constant_length", constant_length=5),
]
MEANS = MODES[:3]
every_mode = pytest.mark.parametrize("aggregation", MODES, ids=lambda a: a.mode)


def name(value: object) -> str | None:
    return value.mode if isinstance(value, Aggregation) else None


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (MODES[0], [1 / 4, 1 / 4, 1 / 4]),  # four tokens
        (MODES[1], [1 / 6, 1 / 3, 1 / 3]),  # three turns, of two tokens, one and one
        (MODES[2], [1 / 6, 1 / 2, 1 / 6]),  # two trajectories, of three tokens and of one
        (MODES[3], [1 / 10, 1 / 10, 1 / 10]),  # two trajectories, five tokens each by decree
    ],
    ids=name,
)
def test_what_a_token_of_each_row_counts(aggregation: Aggregation, expected: list[float]):
    weights = aggregation(MASK, TURNS, TRAJECTORIES)
    torch.testing.assert_close(weights, MASK * torch.tensor([*expected, 0.0])[:, None])


def test_turns_of_one_row_count_the_same():
    # one row: turns of 3 tokens and of 1, with an observed token between them; another row: 2
    turns = torch.tensor([[0, 0, 0, -1, 1], [-1, -1, -1, 0, 0]])
    weights = Aggregation("turn_mean")(turns >= 0, turns, torch.tensor([0, 1]))
    expected = [[1 / 9, 1 / 9, 1 / 9, 0, 1 / 3], [0, 0, 0, 1 / 6, 1 / 6]]
    torch.testing.assert_close(weights, torch.tensor(expected))


@given(ragged_turns)
def test_every_turn_counts_the_same_in_turn_mean(rows: Turns):
    turns, trajectories = turn_ids_of(rows)
    weights = Aggregation("turn_mean")(turns >= 0, turns, trajectories)
    number = sum(len(lengths) for _, lengths in rows)
    for row, numbers in zip(weights, turns, strict=True):
        for turn in numbers[numbers >= 0].unique():
            torch.testing.assert_close(row[numbers == turn].sum(), torch.tensor(1 / number))


@given(ragged_turns, st.sampled_from(MODES), st.randoms())
def test_neither_the_order_of_rows_nor_padding_changes_a_weight(
    rows: Turns, aggregation: Aggregation, random: Random
):
    turns, trajectories = turn_ids_of(rows)
    weights = aggregation(turns >= 0, turns, trajectories)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = torch.nn.functional.pad(turns[order], (0, 3, 0, 2), value=-1)
    other = aggregation(
        shuffled >= 0, shuffled, torch.cat([trajectories[order], torch.tensor([98, 99])])
    )
    torch.testing.assert_close(other[: len(rows), : turns.shape[1]], weights[order])
    assert not other[len(rows) :].any() and not other[:, turns.shape[1] :].any()


@given(ragged_turns, st.sampled_from(MEANS))
def test_the_weights_of_a_mean_sum_to_1(rows: Turns, aggregation: Aggregation):
    turns, trajectories = turn_ids_of(rows)
    total = aggregation(turns >= 0, turns, trajectories).sum()
    torch.testing.assert_close(total, torch.tensor(1.0 if (turns >= 0).any() else 0.0))


@every_mode
def test_gradients_of_micro_batches_add_up_to_the_minibatchs(aggregation: Aggregation):
    features = torch.randn(*MASK.shape, 6, dtype=torch.float64)

    def gradient(rows: slice, weights: Tensor) -> Tensor:
        parameters = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
        per_token_loss = (features[rows] @ parameters).tanh()
        (weights[rows] * per_token_loss).sum().backward()
        assert parameters.grad is not None
        return parameters.grad

    weights = aggregation(MASK, TURNS, TRAJECTORIES)
    whole = gradient(slice(None), weights)
    parts = [gradient(slice(start, start + 1), weights) for start in range(len(MASK))]
    assert whole.abs().sum() > 0
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)


def test_lengths_are_those_of_whole_trajectories():
    assert trajectory_lengths(MASK, TRAJECTORIES).tolist() == [3, 1, 3, 0]


@every_mode
def test_lengths_change_nothing_when_the_trajectories_are_whole(aggregation: Aggregation):
    lengths = trajectory_lengths(MASK, TRAJECTORIES)
    torch.testing.assert_close(
        aggregation(MASK, TURNS, TRAJECTORIES, lengths), aggregation(MASK, TURNS, TRAJECTORIES)
    )


@pytest.mark.parametrize(
    ("aggregation", "first", "second"),
    [
        (MODES[0], [1 / 3, 1 / 3], [1.0]),  # three tokens, and one
        (MODES[1], [1 / 4, 1 / 2], [1.0]),  # two turns, and one: a turn is never split
        # rows 0 and 1: two thirds of one trajectory and all of another are 5/3 of a trajectory;
        # tokens of the first count 1 / (5/3 * 3), of the second 1 / (5/3). Row 2: 1 / (1/3 * 3)
        (MODES[2], [1 / 5, 3 / 5], [1.0]),
        (MODES[3], [3 / 25, 3 / 25], [3 / 5]),  # 1 / (5/3 * 5), and 1 / (1/3 * 5)
    ],
    ids=name,
)
def test_a_trajectory_split_over_minibatches_counts_in_parts(
    aggregation: Aggregation, first: list[float], second: list[float]
):
    lengths = trajectory_lengths(MASK, TRAJECTORIES)
    weights = aggregation(MASK[:2], TURNS[:2], TRAJECTORIES[:2], lengths[:2])
    torch.testing.assert_close(weights, MASK[:2] * torch.tensor(first)[:, None])
    weights = aggregation(MASK[2:], TURNS[2:], TRAJECTORIES[2:], lengths[2:])
    torch.testing.assert_close(weights, MASK[2:] * torch.tensor([*second, 0.0])[:, None])


@every_mode
def test_a_minibatch_without_sampled_tokens_weighs_nothing(aggregation: Aggregation):
    assert not aggregation(torch.zeros_like(MASK), torch.full_like(TURNS, -1), TRAJECTORIES).any()


def test_a_constant_length_is_asked_for_and_refused_elsewhere():
    with pytest.raises(ConfigError, match="constant_length is None"):
        Aggregation("constant_length")
    with pytest.raises(ConfigError, match="constant_length is 8 but mode is 'token_mean'"):
        Aggregation("token_mean", constant_length=8)
    with pytest.raises(ConfigError, match="constant_length is 0"):
        aggregation_weights(MASK, TURNS, TRAJECTORIES, "constant_length", constant_length=0)


def test_a_constant_length_may_be_less_than_a_reply_has_tokens():
    lengths = trajectory_lengths(MASK, TRAJECTORIES)
    aggregation = Aggregation("constant_length", constant_length=1)
    # row 2 is a third of a trajectory: 1 / (1/3 * 1)
    weights = aggregation(MASK[2:3], TURNS[2:3], TRAJECTORIES[2:3], lengths[2:3])
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.0, 3.0]]))
