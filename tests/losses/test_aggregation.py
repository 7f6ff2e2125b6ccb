import pytest
import torch

from vagentrl.errors import ConfigError
from vagentrl.losses import Aggregation, aggregation_weights, trajectory_lengths

# trajectory 4 owns rows 0 and 2 with 3 tokens, trajectory 7 owns row 1 with 1; row 3 is padding
MASK = torch.tensor(
    [
        [False, True, True],
        [False, True, False],
        [False, False, True],
        [False, False, False],
    ]
)
TRAJECTORIES = torch.tensor([4, 7, 4, 9])
MODES = [
    Aggregation("token_mean"),
    Aggregation("trajectory_mean"),
    Aggregation("constant_length", constant_length=5),
]
every_mode = pytest.mark.parametrize("aggregation", MODES, ids=lambda a: a.mode)


@pytest.mark.parametrize(
    ("aggregation", "long", "short"),
    [
        (MODES[0], 1 / 4, 1 / 4),  # four tokens
        (MODES[1], 1 / 6, 1 / 2),  # two trajectories, of three tokens and of one
        (MODES[2], 1 / 10, 1 / 10),  # two trajectories, five tokens each by decree
    ],
    ids=lambda value: value.mode if isinstance(value, Aggregation) else None,
)
def test_weights_of_a_long_and_a_short_trajectory(
    aggregation: Aggregation, long: float, short: float
):
    expected = torch.tensor(
        [[0.0, long, long], [0.0, short, 0.0], [0.0, 0.0, long], [0.0, 0.0, 0.0]]
    )
    torch.testing.assert_close(aggregation(MASK, TRAJECTORIES), expected)


@every_mode
def test_gradients_of_micro_batches_add_up_to_the_minibatchs(aggregation: Aggregation):
    features = torch.randn(*MASK.shape, 6, dtype=torch.float64)

    def gradient(rows: slice, weights: torch.Tensor) -> torch.Tensor:
        parameters = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
        per_token_loss = (features[rows] @ parameters).tanh()
        (weights[rows] * per_token_loss).sum().backward()
        assert parameters.grad is not None
        return parameters.grad

    weights = aggregation(MASK, TRAJECTORIES)
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
        aggregation(MASK, TRAJECTORIES, lengths), aggregation(MASK, TRAJECTORIES)
    )


@pytest.mark.parametrize(
    ("aggregation", "first", "second"),
    [
        (MODES[0], [1 / 3, 1 / 3], [1.0]),  # three tokens, and one
        # rows 0 and 1: two thirds of one trajectory and all of another are 5/3 of a trajectory;
        # tokens of the first count 1 / (5/3 * 3), of the second 1 / (5/3). Row 2: 1 / (1/3 * 3)
        (MODES[1], [1 / 5, 3 / 5], [1.0]),
        (MODES[2], [3 / 25, 3 / 25], [3 / 5]),  # 1 / (5/3 * 5), and 1 / (1/3 * 5)
    ],
    ids=lambda value: value.mode if isinstance(value, Aggregation) else None,
)
def test_a_trajectory_split_over_minibatches_counts_in_parts(
    aggregation: Aggregation, first: list[float], second: list[float]
):
    lengths = trajectory_lengths(MASK, TRAJECTORIES)
    weights = aggregation(MASK[:2], TRAJECTORIES[:2], lengths[:2])
    torch.testing.assert_close(weights, MASK[:2] * torch.tensor(first)[:, None])
    weights = aggregation(MASK[2:], TRAJECTORIES[2:], lengths[2:])
    torch.testing.assert_close(weights, MASK[2:] * torch.tensor([*second, 0.0])[:, None])


@every_mode
def test_columns_and_rows_of_padding_change_nothing(aggregation: Aggregation):
    mask = torch.nn.functional.pad(MASK, (0, 5, 0, 2))
    trajectories = torch.cat([TRAJECTORIES, torch.tensor([9, 11])])
    weights = aggregation(mask, trajectories)
    torch.testing.assert_close(weights[:4, :3], aggregation(MASK, TRAJECTORIES))
    assert not weights[:, 3:].any() and not weights[4:].any()


@every_mode
def test_a_minibatch_without_sampled_tokens_weighs_nothing(aggregation: Aggregation):
    assert not aggregation(torch.zeros_like(MASK), TRAJECTORIES).any()


def test_a_constant_length_is_asked_for_and_refused_elsewhere():
    with pytest.raises(ConfigError, match="constant_length is None"):
        Aggregation("constant_length")
    with pytest.raises(ConfigError, match="constant_length is 8 but mode is 'token_mean'"):
        Aggregation("token_mean", constant_length=8)
    with pytest.raises(ConfigError, match="constant_length is 0"):
        aggregation_weights(MASK, TRAJECTORIES, "constant_length", constant_length=0)
