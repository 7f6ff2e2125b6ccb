from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.rollout.report import (
    effective_episodes,
    episode_report,
    staleness_report,
    success_interval,
)
from vagentrl.types import Finish, Observation, Prompt, Reply, Trajectory, Turn


def turn(
    reward: float,
    *,
    tokens: int = 1,
    finish: Finish = "stop",
    problem: str | None = None,
    **metrics: float,
) -> Turn:
    reply = Reply("go", problem=problem)
    return Turn(
        Observation("now"),
        Prompt((1,)),
        (2,) * tokens,
        (-1.0,) * tokens,
        reply,
        reward,
        finish,
        metrics,
    )


def episode(*turns: Turn) -> Trajectory:
    return Trajectory("toy", 0, 0, turns, "terminated", Observation("the end"))


FAILED = Trajectory("toy", 0, 0, (turn(5.0, success=1.0),), "failed", error="EnvError: broken")


def test_an_episode_that_goes_on_counts_when_it_ends_and_as_a_whole():
    cut = replace(episode(turn(1.0), turn(2.0, tokens=4)), stop="cut")
    rest = replace(episode(turn(4.0, success=1.0)), earlier_turns=2, earlier_reward=3.0)
    report = episode_report([cut, rest], "")
    assert (report["success_rate"], report["return"], report["turns"]) == (1.0, 7.0, 3.0)
    assert report["reply_tokens"] == 2.0  # 1, 4 and 1 in three turns
    assert "return" not in episode_report([cut], "")


# Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (0, 10, 0.0000, 0.2775),  # 3.8415 / (10 + 3.8415)
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0000),
    ],
)
def test_the_interval_is_wilsons(successes: int, episodes: int, low: float, high: float):
    assert success_interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)


def test_without_episodes_any_success_rate_is_possible():
    assert success_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_stays_between_0_and_1(counts: tuple[int, int]):
    low, high = success_interval(*counts)
    assert 0 <= low <= counts[0] / counts[1] <= high <= 1


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [
        # No state repeats: the variance of the mean is p (1 - p) / n.
        ([[1], [0], [0], [0]], 4),
        # Repeats add no information: totals 2 and 0 are 1 from their mean, so the variance is
        # (1 + 1) / 4² = 1/8, and 1/4 / (1/8) = 2.
        ([[1, 1], [0, 0]], 2),
        # p = 3/8; totals 2, 1, 0, 0 against 3/4 each: (25 + 1 + 9 + 9) / 16 = 11/4, over 8² it is
        # 11/256, and 15/64 / (11/256) = 60/11.
        ([[1, 1], [1, 0], [0, 0], [0, 0]], 60 / 11),
        # States end more alike than by chance: no more than the episodes that were played.
        ([[1, 0], [1, 0]], 4),
        # All end alike: 5² / (2² + 2² + 1²) states of one size.
        ([[1, 1], [1, 1], [1]], 25 / 9),
        ([[0, 0], [0, 0]], 2),
        # One state only: its episodes are all there is to count.
        ([[1, 1, 1]], 3),
        ([[1, 0, 1]], 3),
    ],
)
def test_episodes_from_one_state_count_for_what_they_tell(outcomes: list[list[int]], count: float):
    assert effective_episodes([[bool(o) for o in ends] for ends in outcomes]) == pytest.approx(
        count
    )


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=12))
def test_no_more_episodes_count_than_were_played(outcomes: list[list[bool]]):
    assert 0 < effective_episodes(outcomes) <= sum(map(len, outcomes)) + 1e-9


@pytest.mark.parametrize("repeats_alike", [True, False])
def test_the_interval_covers_the_true_rate_as_often_as_it_says(repeats_alike: bool):
    rng, covered, trials = np.random.default_rng(0), 0, 1000
    for _ in range(trials):
        chances = rng.beta(0.9, 0.1, size=126)  # of each state, 0.9 on average
        if repeats_alike:
            chances = (rng.random(126) < chances).astype(float)
        ends = rng.random((126, 2)) < chances[:, None]
        count = effective_episodes(ends.tolist())
        low, high = success_interval(ends.mean() * count, count)
        covered += low <= 0.9 <= high
    # three standard deviations: 3 sqrt(0.95 * 0.05 / 1000) = 0.021; counting all episodes covers
    # 0.83 and 0.90
    assert covered / trials == pytest.approx(0.95, abs=0.021)


def test_episodes_of_one_seed_count_as_dependent():
    won, lost = episode(turn(1.0, success=1.0)), episode(turn(0.0, success=0.0))
    report = episode_report([won, won, replace(lost, seed=1), replace(lost, seed=1)], "")
    assert report["success_rate"] == 0.5
    assert report["success_rate_low"] == pytest.approx(success_interval(1, 2)[0])


def test_means_are_over_episodes_or_over_turns():
    report = episode_report(
        [
            episode(turn(1.0, tokens=4, success=1.0)),
            replace(
                episode(
                    turn(-0.5, tokens=3, finish="length", problem="no end of turn"),
                    turn(0.0, tokens=2, problem="no answer"),
                    turn(0.0, tokens=3),
                ),
                stop="truncated",
            ),
        ],
        prefix="val/",
    )
    low, high = success_interval(1, 2)
    assert report == {
        "val/episodes": 2,
        "val/failed": 0,
        "val/success_rate": 0.5,
        "val/success_rate_low": low,
        "val/success_rate_high": high,
        "val/return": 0.25,  # (1 - 0.5) / 2
        "val/turns": 2,  # (1 + 3) / 2
        "val/truncated": 0.5,
        "val/reply_tokens": 3,  # (4 + 3 + 2 + 3) / 4
        "val/unfinished_replies": 0.25,
        "val/malformed_replies": 0.5,
    }


def test_a_metric_is_averaged_over_the_turns_that_have_it():
    report = episode_report([episode(turn(0, boxes=1.0), turn(0, boxes=2.0), turn(0))], "")
    assert report["boxes"] == 1.5


def test_failed_episodes_are_counted_but_not_as_played():
    report = episode_report([FAILED, episode(turn(1.0, success=0.0)), FAILED, FAILED], "")
    assert report["episodes"] == 4
    assert report["failed"] == 0.75
    assert report["return"] == 1.0
    assert report["success_rate"] == 0.0
    assert report["success_rate_high"] == success_interval(0, 1)[1]


def test_scores_of_claims_are_averaged_over_those_that_were_judged():
    judged = [
        replace(turn(0.0), scores={"observation": 1.0, "prediction": 0.5}, bonus=3.0),
        replace(turn(0.0), scores={"observation": 0.25}),
        turn(1.0),
    ]
    report = episode_report([episode(*judged)], "val/")
    assert report["val/observation_score"] == 0.625
    assert report["val/observation_right"] == 0.5
    assert report["val/prediction_score"] == 0.5
    assert report["val/prediction_right"] == 0.0
    assert report["val/return"] == 1.0  # rewards of claims are not part of the return


def test_nothing_is_claimed_where_nothing_was_played():
    assert episode_report([FAILED], "") == {"episodes": 1, "failed": 1}
    assert episode_report([], "") == {"episodes": 0, "failed": 0}


def test_staleness_is_the_mean_and_the_greatest_over_turns():
    played = [
        episode(replace(turn(0.0), policy_version=4), replace(turn(0.0), policy_version=6)),
        episode(replace(turn(0.0), policy_version=6)),
    ]
    # weights 7 learn: their turns are 3, 1 and 1 versions older
    report = staleness_report(played, 7)
    assert report == {"rollout/staleness": pytest.approx(5 / 3), "rollout/staleness_max": 3.0}
    assert staleness_report([], 7) == {"rollout/staleness": 0.0, "rollout/staleness_max": 0.0}
