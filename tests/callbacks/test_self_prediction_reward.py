"""`SelfPredictionReward` pays each turn for its own prediction, on every rank."""

from typing import Any

import pytest

from tests import toy
from vagentrl import ranks
from vagentrl.callbacks import SelfPredictionReward
from vagentrl.errors import ConfigError
from vagentrl.types import Prompt, Reply, Trajectory, Turn
from vagentrl_judges.exact_state import ExactState

AGENT: Any = None


def turn(left: int, says: str | None, predicts: str | None) -> Turn:
    reply = Reply("", actions=("go",), observation_claim=says, prediction_claim=predicts)
    observation = toy.Observation(f"{left} are left")
    return Turn(observation, Prompt((0,), ()), (1,), (0.0,), reply, 0.0, "stop", bonus=0.25)


def seen(left: int) -> str:
    return f'{{"left":{left}}}'


def countdown(first: int, *, wrong: bool = False) -> Trajectory:
    """An agent that says what it is shown, and predicts right or that nothing changes."""
    turns = [
        turn(left, seen(left), seen(left if wrong else left - 1)) for left in (first, first - 1)
    ]
    return Trajectory("train", first, first, tuple(turns), "terminated")


EPISODES = [countdown(9), countdown(9, wrong=True), countdown(6), countdown(6)]


def reward(**settings: Any) -> SelfPredictionReward:
    return SelfPredictionReward(ExactState(), "structured", coefficient=0.5, **settings)


def bonuses(trajectories: list[Trajectory]) -> list[list[float]]:
    return [[turn.bonus for turn in trajectory.turns] for trajectory in trajectories]


def test_a_right_prediction_earns_the_coefficient_and_a_last_one_nothing():
    callback = reward()
    paid = callback.on_trajectories(AGENT, EPISODES)
    assert bonuses(paid) == [[0.75, 0.25], [0.25, 0.25], [0.75, 0.25], [0.75, 0.25]]
    report: dict[str, float] = {}
    callback.on_report(AGENT, report)
    assert report == {"rollout/self_prediction": 0.75, "rollout/self_prediction_known": 0.5}


def test_what_is_relative_adds_up_to_nothing():
    paid = reward(relative=True).on_trajectories(AGENT, EPISODES)
    # three of eight turns have a value of 1, which is a mean of 0.375
    low, high = 0.25 - 0.5 * 0.375, 0.75 - 0.5 * 0.375
    assert bonuses(paid) == [[high, low], [low, low], [high, low], [high, low]]


def test_two_ranks_pay_as_one_process(monkeypatch: pytest.MonkeyPatch):
    """The second rank's episodes confirm those of the first."""
    sent: dict[int, Any] = {}
    for rank, own in enumerate((EPISODES[::2], EPISODES[1::2])):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(ranks, "gather", lambda mine, rank=rank: sent.setdefault(rank, mine))
        reward().on_trajectories(AGENT, own)
    everyones = [item for pair in zip(sent[0], sent[1], strict=True) for item in pair]
    monkeypatch.setattr(ranks, "gather", lambda mine: everyones)
    expected = bonuses(reward_alone(monkeypatch))
    for rank, own in enumerate((EPISODES[::2], EPISODES[1::2])):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        assert bonuses(reward().on_trajectories(AGENT, own)) == expected[rank::2]


def reward_alone(monkeypatch: pytest.MonkeyPatch) -> list[Trajectory]:
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "rank", lambda: 0)
        patch.setattr(ranks, "gather", list)
        return reward().on_trajectories(AGENT, EPISODES)


def test_a_batch_without_turns_is_left_alone():
    assert reward(relative=True).on_trajectories(AGENT, []) == []


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ConfigError, match=r"SelfPredictionReward\.coefficient is -1"):
        SelfPredictionReward(ExactState(), coefficient=-1)
