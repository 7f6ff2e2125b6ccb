from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.environment import (
    ActionEnvironment,
    Outcome,
    Split,
    index_of,
    seed_of,
    split_of,
    split_of_state,
)
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import NoThink
from vagentrl.types import Observation, Reply
from vagentrl_envs.sokoban import Sokoban


class Corridor(ActionEnvironment):
    """Three steps to the right, each worth 1; the first cell is a wall to the left."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(action_names=("Left", "Right"), format=NoThink(), **settings)

    def system_prompt(self) -> str:
        return "Walk."

    def _start(self, seed: int, transition_seed: int) -> None:
        self.place = 0

    def _act(self, action: str) -> Outcome:
        before = self.place
        self.place = max(before + (1 if action == "Right" else -1), 0)
        done = self.place == 3
        return Outcome(self.place - before, done, done, changed=self.place != before)

    def _observe(self) -> Observation:
        return Observation(f"at {self.place}")


def played(*turns: str, **settings: Any):
    """The last turn's result, and the environment."""
    env = Corridor(**settings)
    env.reset(0)
    result = None
    for text in turns:
        result = env.step(env.format.parse(f"<answer>{text}</answer>" if text else ""))
    assert result is not None
    return result, env


SPLITS = get_args(Split)


@given(st.sampled_from(SPLITS), st.integers(0, 2**62), st.sampled_from(SPLITS))
def test_a_seed_belongs_to_the_split_that_it_was_drawn_for(split: Split, index: int, other: Split):
    seed = seed_of(split, index)
    assert seed >= 0
    assert (split_of(seed) == other) == (split == other)


@given(st.integers(0, 2**64))
def test_every_seed_is_one_of_its_split_and_no_seed_twice(seed: int):
    split, divisor = split_of(seed), 2 if seed % 2 == 0 else 4
    assert seed_of(split, seed // divisor) == seed
    assert seed_of(split, seed // divisor + 1) > seed


def test_the_first_seeds_of_the_splits():
    # if this fails, published results no longer mean the same episodes
    first = {split: [seed_of(split, index) for index in range(3)] for split in SPLITS}
    assert first == {"train": [0, 2, 4], "validation": [1, 5, 9], "test": [3, 7, 11]}
    assert [[index_of(seed) for seed in seeds] for seeds in first.values()] == [[0, 1, 2]] * 3


def test_a_tenth_of_the_states_each_is_for_validation_and_for_test():
    counts = Counter(split_of_state(f"room {number}") for number in range(10_000))
    assert set(counts) == set(SPLITS)
    # five standard deviations: 5 sqrt(10,000 * 0.1 * 0.9) = 150
    assert counts["validation"] == pytest.approx(1000, abs=150)
    assert counts["test"] == pytest.approx(1000, abs=150)


def test_the_initial_state_is_unknown_where_the_environment_tells_no_state():
    assert Corridor().initial_state(0) is None


def test_the_initial_state_is_that_of_the_seed_whatever_was_played_before():
    env = Sokoban(observation="text")
    fresh = [env.initial_state(seed) for seed in range(20)]
    env.reset(3)
    env.step(Reply("", actions=("Up",)))
    assert [Sokoban().initial_state(seed) for seed in range(20)] == fresh
    assert [env.initial_state(seed) for seed in range(20)] == fresh
    assert len(set(fresh)) > 10


def test_an_action_is_played():
    result, _ = played("Right")
    assert result.reward == 1
    assert result.observation.text == "at 1"
    assert result.metrics == {
        "success": 0,
        "format_valid": 1,
        "valid_actions": 1,
        "effective_actions": 1,
    }


def test_action_names_are_read_in_any_case():
    assert played("rIGHT")[0].reward == 1


def test_a_malformed_reply_costs_the_penalty_and_moves_nothing():
    result, env = played("", format_penalty=0.3, format_reward=0.5)
    assert result.reward == -0.3
    assert env.place == 0
    assert result.metrics["format_valid"] == 0
    assert result.metrics["valid_actions"] == 0


def test_a_well_formed_reply_earns_the_format_reward():
    assert played("Right", format_reward=0.5)[0].reward == 1.5


def test_an_unknown_action_is_skipped():
    result, env = played("Jump,Right", actions_per_turn=2, invalid_penalty=0.25)
    assert env.place == 1
    assert result.reward == 0.75
    assert result.metrics["valid_actions"] == 0.5


def test_an_unknown_action_gives_way_to_the_default_one():
    settings = {"invalid_action": "default", "default_action": "Right", "invalid_penalty": 0.25}
    result, env = played("Jump", **settings)
    assert env.place == 1
    assert result.reward == 0.75
    assert result.metrics["valid_actions"] == 0
    # malformed: the same action, but the format penalty and not the other one
    result, env = played("", **settings, format_penalty=0.1)
    assert env.place == 1
    assert result.reward == 0.9


def test_an_unknown_action_ends_the_turn():
    result, env = played("Right,Jump,Right", actions_per_turn=3, invalid_action="end_turn")
    assert env.place == 1
    assert result.metrics["valid_actions"] == 0.5
    assert not result.truncated


def test_actions_beyond_those_of_a_turn_are_ignored():
    result, env = played("Right,Right,Jump", actions_per_turn=2)
    assert env.place == 2
    assert result.metrics["valid_actions"] == 1


def test_actions_that_change_nothing_are_counted():
    result, _ = played("Left,Right", actions_per_turn=2)
    assert result.metrics["effective_actions"] == 0.5


def test_the_end_of_the_task_terminates_and_ends_the_turn():
    result, env = played("Right,Right,Right,Left", actions_per_turn=4)
    assert result.terminated and not result.truncated
    assert result.metrics["success"] == 1
    assert env.place == 3
    assert result.observation.text == "at 3"


def test_the_turn_limit_truncates_with_a_real_observation():
    result, _ = played("Right", "", turn_limit=2)
    assert result.truncated and not result.terminated
    assert result.observation.text == "at 1"


def test_the_action_budget_truncates_within_a_turn():
    result, env = played("Left,Right", "Right,Right", actions_per_turn=2, actions_per_episode=3)
    assert env.place == 2
    assert result.truncated


def test_termination_wins_over_truncation():
    limits = {"turn_limit": 1, "actions_per_turn": 3, "actions_per_episode": 3}
    result, _ = played("Right,Right,Right", **limits)
    assert result.terminated and not result.truncated


def test_every_reward_is_scaled():
    assert played("Right", reward_scale=0.5)[0].reward == 0.5
    assert played("", format_penalty=1, reward_scale=0.5)[0].reward == -0.5


def test_every_observation_can_say_how_many_turns_are_left():
    env = Corridor(turn_limit=3, show_turns_left=True, feedback=True)
    assert env.reset(0).text == "at 0\nTurns left: 3."
    assert env.step(Reply("", actions=("Right",))).observation.text == "at 1\nTurns left: 2."
    assert env.step(Reply("", problem="no end")).observation.text == (
        "Your reply was wrong: no end.\nat 1\nTurns left: 1."
    )
    assert env.step(Reply("", actions=("Left",))).observation.text == "at 0\nTurns left: 0."
    assert env.reset(0).text == "at 0\nTurns left: 3."


def test_every_observation_can_say_how_many_actions_are_left():
    limits = {"turn_limit": 3, "actions_per_turn": 2, "actions_per_episode": 5}
    env = Corridor(show_turns_left=True, **limits)
    assert env.reset(0).text == "at 0\nTurns left: 3. Actions left: 5."
    result = env.step(Reply("", actions=("Left", "Right")))
    assert result.observation.text == "at 1\nTurns left: 2. Actions left: 3."


def test_a_reply_outside_an_episode_is_refused():
    with pytest.raises(EnvError, match="call reset"):
        Corridor().step(Reply("", actions=("Right",)))
    _, env = played("Right", turn_limit=1)
    with pytest.raises(EnvError, match="call reset"):
        env.step(Reply("", actions=("Right",)))


def test_reset_starts_counting_anew():
    _, env = played("Right", turn_limit=1)
    env.reset(1)
    assert env.step(Reply("", actions=("Right",))).reward == 1


def test_feedback_says_what_was_wrong():
    assert played("", feedback=True)[0].observation.text == (
        "Your reply was wrong: no <answer>.\nat 0"
    )
    # what the agent wrote is not repeated: it could be an image placeholder
    assert played("<image>", feedback=True)[0].observation.text == (
        "Your reply was wrong: unknown action; the actions are Left, Right.\nat 0"
    )
    assert played("Right", feedback=True)[0].observation.text == "at 1"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"actions_per_turn": 0}, "actions_per_turn is 0"),
        ({"turn_limit": 0}, "turn_limit is 0"),
        ({"format_penalty": -0.1}, "format_penalty is -0.1"),
        ({"actions_per_turn": 5, "actions_per_episode": 3}, "actions_per_episode.*per_turn is 5"),
        ({"invalid_action": "default"}, "invalid_action.*default_action"),
        ({"default_action": "Right"}, "invalid_action.*default_action"),
        ({"invalid_action": "default", "default_action": "Fly"}, "'Fly'.*Left, Right"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Corridor(**settings)


def test_a_format_that_cannot_carry_the_actions_is_refused():
    class Spoken(Corridor):
        def __init__(self, separator: str | None, actions_per_turn: int) -> None:
            format = NoThink(action_separator=separator)
            ActionEnvironment.__init__(self, ("go left", "go"), format, actions_per_turn)

    Spoken(None, actions_per_turn=1)
    with pytest.raises(ConfigError, match=r"actions_per_turn is 2.*action_separator"):
        Spoken(None, actions_per_turn=2)
    with pytest.raises(ConfigError, match="action_separator ' ' occurs"):
        Spoken(" ", actions_per_turn=1)


class Timed(Corridor):
    """Its second action meets a limit of its own, or the end of the task, or both."""

    def __init__(self, done: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.done = done

    def _act(self, action: str) -> Outcome:
        second = self._actions == 1
        return Outcome(1.0, done=self.done and second, truncated=second)


def test_a_limit_of_the_tasks_own_truncates():
    env = Timed(done=False, turn_limit=9, actions_per_turn=3)
    env.reset(0)
    result = env.step(Reply("", actions=("Right", "Right", "Right")))
    assert (result.terminated, result.truncated, result.reward) == (False, True, 2.0)
    with pytest.raises(EnvError, match="call reset"):
        env.step(Reply("", actions=("Right",)))


def test_the_end_of_the_task_counts_before_a_limit():
    env = Timed(done=True, turn_limit=9, actions_per_turn=3)
    env.reset(0)
    result = env.step(Reply("", actions=("Right", "Right", "Right")))
    assert (result.terminated, result.truncated, result.reward) == (True, False, 2.0)


def test_aliases_are_repaired_and_counted():
    settings: dict[str, Any] = {"aliases": {"step right": "Right"}, "actions_per_turn": 4}
    env = Corridor(**settings)
    env.reset(0)
    metrics = env.step(Reply("", actions=("Step_Right.", "left", "left!", "fly"))).metrics
    assert metrics["valid_actions"] == 0.75
    assert metrics["repaired_actions"] == 0.5  # the first and the third of four


def test_without_aliases_nothing_is_repaired():
    env = Corridor()
    env.reset(0)
    metrics = env.step(Reply("", actions=("left.",))).metrics
    assert metrics["valid_actions"] == 0.0
    assert "repaired_actions" not in metrics


def test_an_alias_for_no_action_is_refused():
    with pytest.raises(ConfigError, match="aliases stand for Up; the actions are Left, Right"):
        Corridor(aliases={"north": "Up"})
