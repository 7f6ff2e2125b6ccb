"""How a limit affects the learning signal, in a task that can be solved by hand.

There is one state, and one turn of one token until the limit. The agent solves the task with
probability 1/8 and earns 1, or does not and reaches the limit. The critic is one number v, its
exact regression target in every iteration: the mean of the returns.
"""

from collections.abc import Callable

import pytest
import torch

from tests import toy
from vagentrl.advantages import (
    AdvantageEstimator,
    BiLevelGAE,
    DualDiscountGAE,
    MaskedGAE,
    TurnGAE,
)
from vagentrl.rollout.collate import collate
from vagentrl.types import AtLimit, Observation, Prompt, Reply, Scores, Trajectory, Turn

CHANCE = 1 / 8
ESTIMATORS: dict[str, Callable[[float], AdvantageEstimator]] = {
    "MaskedGAE": lambda gamma: MaskedGAE(gamma=gamma, whiten=False),
    "TurnGAE": lambda gamma: TurnGAE(turn_gamma=gamma, whiten=False),
    "BiLevelGAE": lambda gamma: BiLevelGAE(turn_gamma=gamma, whiten=False),
    "DualDiscountGAE": lambda gamma: DualDiscountGAE(step_gamma=gamma, whiten=False),
}
every_estimator = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)


def episode(solved: bool) -> Trajectory:
    state = Observation("the state")
    turn = Turn(state, Prompt((11,)), (20 + solved,), (-1.0,), Reply(""), float(solved), "stop")
    if solved:
        return Trajectory("toy", 0, 0, (turn,), "terminated", state)
    return Trajectory("toy", 0, 0, (turn,), "truncated", state, end=Prompt((11,)))


def signal(estimator: AdvantageEstimator, at_limit: AtLimit, iterations: int) -> list[float]:
    """The advantage of solving the task minus the advantage of not solving it."""
    episodes = [episode(solved=True), episode(solved=False)]
    rollout = collate(episodes, toy.renderer(), temperature=1.0, at_limit=at_limit)
    chances = torch.tensor([[CHANCE], [1 - CHANCE]])
    value, differences = torch.tensor(0.0), []
    for _ in range(iterations):
        values = torch.ones(rollout.input_ids.shape) * value
        credit = estimator(rollout, Scores(values, values=values))
        assert credit.returns is not None
        solved, unsolved = credit.advantages[rollout.action_mask].tolist()
        differences.append(solved - unsolved)
        value = (chances * credit.returns).sum()
    return differences


@every_estimator
def test_without_a_discount_or_an_end_the_signal_vanishes(make):
    # returns: 1 if solved, else v, so 1 - v shrinks by 7/8 in every iteration
    wanted = [(7 / 8) ** n for n in range(41)]
    assert wanted[40] < 0.005
    assert signal(make(1.0), "bootstrap", 41) == pytest.approx(wanted, abs=1e-5)


@every_estimator
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_where_the_limit_is_the_end_the_signal_stays(make, gamma: float):
    # returns: 1 if solved, else 0, whatever v is
    assert signal(make(gamma), "end", 41) == pytest.approx([1.0] * 41)


@every_estimator
def test_a_discount_keeps_some_of_the_signal_of_a_task_without_end(make):
    # v = 1/8 + 7/8 * 0.9 v = 10/17, and the difference is 1 - 0.9 v = 8/17
    assert signal(make(0.9), "bootstrap", 60)[-1] == pytest.approx(8 / 17, abs=1e-4)


@pytest.mark.parametrize(
    ("estimator", "undiscounted"),
    [
        (MaskedGAE(gamma=1.0), True),
        (MaskedGAE(gamma=0.99), False),
        (TurnGAE(turn_gamma=1.0), True),
        (TurnGAE(turn_gamma=0.99), False),
        (BiLevelGAE(gamma=0.9, turn_gamma=1.0), True),  # gamma stays inside a turn
        (BiLevelGAE(gamma=1.0, turn_gamma=0.99), False),
        (DualDiscountGAE(token_gamma=1.0, step_gamma=1.0), True),
        (DualDiscountGAE(token_gamma=0.9, step_gamma=1.0), False),  # so are a turn's tokens
        (DualDiscountGAE(token_gamma=1.0, step_gamma=0.99), False),
    ],
)
def test_an_estimator_knows_whether_turns_are_discounted(estimator, undiscounted: bool):
    assert estimator.undiscounted == undiscounted
