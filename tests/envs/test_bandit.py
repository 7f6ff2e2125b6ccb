from collections import Counter
from typing import Any, get_args

import pytest

from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError
from vagentrl.types import Reply, StepResult
from vagentrl_envs.bandit import PAIRS, Bandit, BanditRev

STEADY = {pair.steady for pair in PAIRS}
RISKY = {pair.risky for pair in PAIRS}


def pull(env: Bandit, seed: int, kind: set[str], transition_seed: int = 0) -> StepResult:
    """Pull the arm whose name is of this kind."""
    env.reset(seed, transition_seed)
    (arm,) = set(env.action_names) & kind
    return env.step(Reply("", actions=(arm,)))


def shown(env: Bandit, seed: int) -> tuple[str, str]:
    words = env.reset(seed).text.removesuffix(".").split()
    return words[3], words[5]  # The arms are X and Y


def test_there_are_many_pairs_and_every_name_occurs_once():
    assert len(PAIRS) == 60
    assert len({name.casefold() for pair in PAIRS for name in pair}) == 2 * 60


def test_the_steady_arm_always_pays_a_tenth():
    for seed in range(100):
        result = pull(Bandit(), seed, STEADY, transition_seed=seed)
        assert result.reward == 0.1
        assert result.terminated and result.metrics["success"] == 0


def test_the_risky_arm_pays_one_in_a_quarter_of_the_episodes():
    env = Bandit()
    results = [pull(env, 6, RISKY, transition_seed) for transition_seed in range(4000)]
    assert {result.reward for result in results} == {0.0, 1.0}
    # one standard deviation of the mean is 0.007
    assert sum(result.reward for result in results) / 4000 == pytest.approx(0.25, abs=0.028)
    assert all(result.metrics["success"] == 1 for result in results)  # whatever it paid


def test_in_the_reverse_the_risky_name_is_the_steady_arm():
    for seed in range(50):
        assert pull(BanditRev(), seed, RISKY).reward == 0.1
        assert pull(BanditRev(), seed, STEADY).metrics["success"] == 1


@pytest.mark.parametrize("kind", [Bandit, BanditRev])
def test_the_oracle_knows_the_better_arm(kind: type[Bandit]):
    env = kind()
    for seed in range(50):
        env.reset(seed)
        (arm,) = env.oracle()
        assert arm in (STEADY if kind is BanditRev else RISKY)
        assert env.step(Reply("", actions=(arm.lower(),))).metrics["success"] == 1
        assert env.oracle() == ()


def test_what_is_better_depends_on_what_is_paid():
    # 0.3 for sure against 0.25 on average
    env = Bandit(steady_reward=0.3)
    assert pull(env, 0, STEADY).metrics["success"] == 1
    assert pull(env, 0, RISKY).metrics["success"] == 0


def test_rewards_are_scaled():
    assert pull(Bandit(reward_scale=2.0), 0, STEADY).reward == 0.2


@pytest.mark.parametrize("reply", [Reply("", problem="no <answer>"), Reply("", actions=("Zebra",))])
def test_one_turn_is_the_whole_game(reply: Reply):
    env = Bandit(format_penalty=0.5, invalid_penalty=0.5, feedback=True)
    arms = shown(env, 3)
    result = env.step(reply)
    assert result.terminated and not result.truncated
    assert (result.reward, result.metrics["success"]) == (-0.5, 0)
    if reply.problem is None:
        assert f"the actions are {', '.join(arms)}." in result.observation.text


def test_the_name_of_an_arm_that_is_not_there_is_unknown():
    env = Bandit()
    other = next(name for pair in PAIRS for name in pair if name not in shown(env, 0))
    assert env.step(Reply("", actions=(other,))).metrics["valid_actions"] == 0


@pytest.mark.parametrize("pairing", ["fixed", "mixed"])
def test_no_pair_is_in_two_splits(pairing: Any):
    env = Bandit(pairing=pairing)
    pairs = {
        split: {frozenset(shown(env, seed_of(split, index))) for index in range(3000)}
        for split in get_args(Split)
    }
    names = {split: set[str]().union(*drawn) for split, drawn in pairs.items()}
    assert sum(map(len, pairs.values())) == len(set().union(*pairs.values()))
    assert all(len(pair & RISKY) == 1 for drawn in pairs.values() for pair in drawn)
    if pairing == "fixed":
        # of sixty pairs a tenth is for validation and a tenth for test, names and all
        assert {split: len(drawn) for split, drawn in pairs.items()} == {
            "train": 48, "validation": 6, "test": 6
        }  # fmt: skip
        assert sum(map(len, names.values())) == 120
    else:
        # of 3600 combinations 2880, 360 and 360, not all of them drawn
        assert len(pairs["train"]) > 1500
        assert len(pairs["validation"]) > 300 and len(pairs["test"]) > 300
        assert {len(used) for used in names.values()} == {120}


def test_the_initial_state_is_the_arms_in_their_order():
    env = Bandit()
    assert all(env.initial_state(seed) == shown(env, seed) for seed in range(20))


def test_the_order_of_the_arms_tells_nothing():
    env = Bandit()
    first = Counter(shown(env, seed_of("train", index))[0] in RISKY for index in range(2000))
    assert first[True] / 2000 == pytest.approx(0.5, abs=0.05)


def test_members_of_a_group_share_the_arms_but_not_the_luck():
    env = Bandit()
    arms = {(env.reset(8, transition_seed).text) for transition_seed in range(20)}
    assert len(arms) == 1
    paid = [pull(env, 8, RISKY, transition_seed).reward for transition_seed in range(20)]
    assert len(set(paid)) == 2
    assert paid == [pull(env, 8, RISKY, transition_seed).reward for transition_seed in range(20)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"steady_reward": 0.25}, "both arms pay 0.25"),
        ({"risky_chance": 1.5}, "risky_chance is 1.5"),
        (
            {"invalid_action": "default", "default_action": "Pirate"},
            "different names in every episode",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Bandit(**settings)
