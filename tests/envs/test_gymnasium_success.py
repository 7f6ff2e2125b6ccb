import logging
from typing import Any

import gymnasium
import pytest

from vagentrl.environment import Environment
from vagentrl.types import Reply, StepResult
from vagentrl_envs import gymnasium_captions as captions
from vagentrl_envs.gymnasium_environment import GymnasiumEnvironment
from vagentrl_envs.gymnasium_success import told_by, warn_untold


class Paid(gymnasium.Env):
    """It pays the rewards that it is given, one after the other, and terminates with the last."""

    action_space = gymnasium.spaces.Discrete(1)
    observation_space = gymnasium.spaces.Text(9)

    def __init__(
        self, rewards: list[float], terminates: bool = True, success: bool | None = None
    ) -> None:
        self.rewards = rewards
        self.terminates = terminates
        self.told = {} if success is None else {"success": success}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = list(self.rewards)
        return "start", {}

    def step(self, action: Any) -> Any:
        reward = self.left.pop(0)
        return "on", reward, self.terminates and not self.left, False, self.told


for id, threshold in (("Free", None), ("Paying", 2.0), ("Costly", -2.0)):
    gymnasium.register(
        f"{id}-v0", f"{__name__}:Paid", reward_threshold=threshold, max_episode_steps=4
    )


def paid(id: str, rewards: list[float], **settings: Any) -> GymnasiumEnvironment:
    kwargs = {"rewards": rewards} | settings.pop("kwargs", {})
    given: dict[str, Any] = {"actions": ["go"], "task": "Go.", "share_starts": True}
    return GymnasiumEnvironment(f"{__name__}:{id}-v0", kwargs=kwargs, **given | settings)


def last_of(env: Environment) -> StepResult:
    """The last step of an episode in which every reply is the only action."""
    env.reset(0)
    while True:
        result = env.step(Reply("", actions=("go",)))
        if result.terminated or result.truncated:
            return result


def success(id: str, rewards: list[float], **settings: Any) -> float | None:
    return last_of(paid(id, rewards, **settings)).metrics.get("success")


# --------------------------------------------------------------------- the sum that a user asks for


@pytest.mark.parametrize(
    "limit",
    [{"turn_limit": 3}, {"actions_per_episode": 3}, {"kwargs": {"max_episode_steps": 3}}],
)
def test_the_sum_counts_whatever_ends_the_episode(limit: dict[str, Any]):
    assert success("Free", [1.0] * 9, success_return=3, **limit) == 1.0  # 1 + 1 + 1
    assert success("Free", [1.0] * 9, success_return=4, **limit) == 0.0


def test_the_sum_counts_in_a_termination():
    assert success("Free", [1.0, -5.0, 4.0], success_return=1) == 0.0  # 1 - 5 + 4 = 0
    assert success("Free", [1.0, -5.0, 5.0], success_return=1) == 1.0


def test_every_episode_has_a_sum_of_its_own():
    env = paid("Free", [1.0, 1.0], success_return=3)
    assert [last_of(env).metrics["success"] for _ in range(2)] == [0.0, 0.0]  # not 2 + 2 = 4


def test_the_sum_of_earlier_turns_counts_if_the_last_reply_is_malformed():
    env = paid("Free", [1.0] * 9, success_return=2, turn_limit=3)
    env.reset(0)
    for _ in range(2):
        env.step(Reply("", actions=("go",)))
    last = env.step(Reply("", problem="no answer"))
    assert (last.truncated, last.metrics["success"]) == (True, 1.0)


def test_a_sum_of_0_or_less_is_not_reached_by_doing_nothing():
    env = paid("Free", [-1.0] * 9, success_return=-2, turn_limit=1)
    env.reset(0)
    assert env.step(Reply("", problem="no answer")).metrics["success"] == 0.0
    assert success("Free", [-1.0] * 9, success_return=-2, turn_limit=1) == 0.0
    assert success("Free", [-1.0, -1.0], success_return=-2) == 1.0  # terminated with -2
    assert success("Free", [-1.0] * 9, success_return=-4) == 1.0  # the library's limit of 4
    assert success("Free", [-1.0] * 9, success_return=-3) == 0.0


# ------------------------------------------------------------------------- what the library reports


def test_the_info_is_believed_before_the_rewards():
    assert success("Free", [0.0, 1.0], kwargs={"success": False}) == 0.0
    assert success("Paying", [0.0, 0.0], kwargs={"success": True}) == 1.0
    assert success("Free", [0.0] * 9, kwargs={"success": True}, turn_limit=2) == 1.0


# ------------------------------------------------------------------------- the registered threshold


def test_a_registered_threshold_is_the_sum_by_default():
    assert success("Paying", [1.0, 1.0]) == 1.0  # terminated with 2
    assert success("Paying", [0.5, 1.0]) == 0.0  # terminated with 1.5, every step paid
    assert success("Paying", [0.5] * 9) == 1.0  # truncated by the library with 2


def test_a_payment_at_the_end_is_a_success_below_the_threshold():
    assert success("Paying", [-1.0, -1.0, 3.0]) == 1.0  # 1, as of a long way in Taxi
    assert success("Paying", [-1.0, -1.0, 0.0]) == 0.0


@pytest.mark.parametrize("limit", [{"turn_limit": 3}, {"kwargs": {"max_episode_steps": 3}}])
def test_a_threshold_that_may_be_out_of_reach_is_not_used(limit: dict[str, Any]):
    assert success("Paying", [1.0] * 9, **limit) is None  # 3 of the 4 registered steps


def test_several_actions_in_a_turn_bring_a_threshold_into_reach():
    env = paid("Paying", [1.0] * 9, turn_limit=2, actions_per_turn=2)  # 2 * 2 = 4 steps
    env.reset(0)
    env.step(Reply("", actions=("go",)))
    assert env.step(Reply("", actions=("go",))).metrics["success"] == 1.0  # 1 + 1 = 2


def test_a_threshold_of_costs_is_met_by_a_short_way():
    assert success("Costly", [-1.0, -1.0]) == 1.0
    assert success("Costly", [-1.0, -1.0, -1.0]) == 0.0
    assert success("Costly", [-1.0, -1.0, 0.0], turn_limit=3) == 1.0  # a turn limit is no obstacle


def test_a_shortened_time_limit_does_not_meet_a_threshold_of_costs():
    # -1 is above -2 only because the library stops after 1 of the 4 registered steps.
    assert success("Costly", [-1.0] * 9, kwargs={"max_episode_steps": 1}) == 0.0


# --------------------------------------------------------------------------------- the rewards only


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ([0.0, 0.0, 1.0], True),  # the goal of a lake
        ([0.0, 0.0, 0.0], False),  # a hole
        ([1.0], True),  # a hand of blackjack
        ([-1.0], False),
        ([-1.0, -10.0, 20.0], True),  # a passenger brought home
        ([0.0, 1.0, 0.0, 1.0], True),  # the second of two stages
        ([-0.1, -0.1, -1.0], False),  # a pit
        ([-1.0, -1.0, 0.0], False),
        ([1.0, 1.0, 1.0], None),  # a pole that fell
        ([0.5, 0.7], None),
        ([-1.0, -100.0, -1.0], None),  # the end of a walk along a cliff
    ],
)
def test_rewards_tell_a_termination(rewards: list[float], told: bool | None):
    assert told_by(rewards, terminated=True) is told


@pytest.mark.parametrize(
    ("rewards", "told"),
    [([0.0, 1.0], False), ([-1.0, -1.0], False), ([1.0, 1.0], None), ([], False)],
)
def test_rewards_tell_a_truncation(rewards: list[float], told: bool | None):
    assert told_by(rewards, terminated=False) is told


def test_success_is_left_out_and_warned_of_once_if_nothing_tells(caplog: pytest.LogCaptureFixture):
    warn_untold.cache_clear()
    env = paid("Free", [1.0, 1.0, 1.0])
    with caplog.at_level(logging.WARNING):
        env.reset(0)
        for _ in range(2):
            assert env.step(Reply("", actions=("go",))).metrics["success"] == 0.0  # it goes on
        assert "success" not in env.step(Reply("", actions=("go",))).metrics
        assert "success" not in last_of(env).metrics
    assert [record.message.split(":")[0] for record in caplog.records] == [__name__]
    assert "set success_return" in caplog.text


def test_success_is_told_again_in_the_next_episode():
    env = paid("Free", [1.0, 1.0], turn_limit=2)
    assert "success" not in last_of(env).metrics
    env.reset(0)
    env.step(Reply("", problem="no answer"))
    last = env.step(Reply("", problem="no answer"))
    assert (last.truncated, last.metrics["success"]) == (True, 0.0)


# -------------------------------------------------------------------------------- Gymnasium's own


def cart_pole(**settings: Any) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(
        "CartPole-v1", ["left", "right"], "Balance.", captioner=captions.cart_pole, **settings
    )


def balanced(env: GymnasiumEnvironment) -> StepResult:
    """The end of an episode of a player that catches the pole."""
    env.reset(0)
    while True:
        place, speed, angle, turning = env._seen
        leaning = 3 * angle + turning + 0.1 * place + 0.2 * speed
        result = env.step(Reply("", actions=("right" if leaning > 0 else "left",)))
        if result.terminated or result.truncated:
            return result


def test_a_balanced_pole_is_a_success_by_the_registered_475():
    assert balanced(cart_pole(turn_limit=500)).metrics["success"] == 1.0


def test_a_balanced_pole_reaches_190_in_200_turns():
    last = balanced(cart_pole(success_return=190))
    assert (last.truncated, last.metrics["success"]) == (True, 1.0)


def test_a_fallen_pole_is_no_success():
    env = cart_pole(turn_limit=500)
    env.reset(0)
    result = env.step(Reply("", actions=("left",)))
    while not result.terminated:
        result = env.step(Reply("", actions=("left",)))
    assert result.metrics["success"] == 0.0


def test_a_lake_and_a_taxi_do_not_need_the_mean_that_is_registered():
    lake = GymnasiumEnvironment(
        "FrozenLake-v1",
        ["left", "down", "right", "up"],
        "Cross.",
        captioner=captions.frozen_lake,
        kwargs={"is_slippery": False},
        share_starts=True,
    )
    lake.reset(0)
    for action in ("down", "down", "right", "down", "right"):
        lake.step(Reply("", actions=(action,)))
    last = lake.step(Reply("", actions=("right",)))
    assert last.metrics["success"] == 1.0  # 1, registered: 0.7
    taxi = GymnasiumEnvironment(
        "Taxi-v4",
        ["south", "north", "east", "west", "pick up", "drop off"],
        "Drive.",
        captioner=captions.taxi,
        share_starts=True,
    )
    taxi.reset(0)
    # The passenger is in the taxi at row 0, column 0, the red stop, where it wants to go.
    game: Any = taxi._game.unwrapped
    game.s = ((0 * 5 + 0) * 5 + 4) * 4 + 0
    for _ in range(15):
        taxi.step(Reply("", actions=("north",)))  # against the edge
    last = taxi.step(Reply("", actions=("drop off",)))
    assert (last.reward, last.metrics["success"]) == (20.0, 1.0)  # 20 - 15 = 5, registered: 8
