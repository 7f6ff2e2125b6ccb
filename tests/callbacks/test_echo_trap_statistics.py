"""The statistics of replies and groups, by hand."""

import math
from dataclasses import replace

import pytest
import torch

from tests import toy
from vagentrl.callbacks.echo_trap.groups import group_report, mean_by_groups
from vagentrl.callbacks.echo_trap.information import first_turns, mutual_information
from vagentrl.callbacks.echo_trap.replies import (
    MOST_WORDS,
    Said,
    distinct_share,
    mean_similarity,
    most_frequent_share,
    repeated_across,
    repeated_within,
    reply_report,
    sample_replies,
    template,
    thought_report,
)
from vagentrl.types import Prompt, Reply, Trajectory

AB, ABC = ("a", "b"), ("a", "b", "c")


def said(text: str, group: int) -> Said:
    return Said.of(Reply(text, problem="made up"), group)


def test_a_reply_is_read_by_its_thought_else_by_its_actions_else_whole():
    thinking = Reply("<think>go on</think><answer>Up</answer>", ("Up",), thought="go on")
    silent = Reply("<think></think><answer>Up,Down</answer>", ("Up", "Down"), thought="")
    broken = Reply("<answer>Up", problem="not closed")
    texts = [Said.of(reply, 0).text for reply in (thinking, silent, broken)]
    assert texts == ["go on", "Up, Down", "<answer>Up"]
    assert Said.of(silent, 0).words == ("Up", ",", "Down")


def test_an_endless_reply_is_read_up_to_a_limit():
    endless = "go " * 100_000
    assert said(endless, 0).words == ("go",) * MOST_WORDS


@pytest.mark.parametrize(
    ("n", "share"),
    [
        (1, 3 / 5),  # a b a b c: a, b, c
        (2, 2 / 3),  # ab ab bc: ab, bc
        (3, 1.0),  # abc
    ],
)
def test_distinct_n_is_the_share_of_different_n_grams(n: int, share: float):
    assert distinct_share([AB, ABC], n) == pytest.approx(share)


def test_without_n_grams_there_is_no_share():
    assert math.isnan(distinct_share([AB], 3))
    assert math.isnan(distinct_share([], 1))
    assert math.isnan(most_frequent_share([]))


def test_the_most_frequent_of_four_openings_has_half():
    assert most_frequent_share(["a", "b", "a", "c"]) == 0.5


def test_a_template_ignores_numbers_case_and_space():
    assert template("Go to (3,  12)") == template("go to (40, 1.5)") == "go to (#, #)"
    assert template("go to (3, 12)") != template("run to (3, 12)")


def test_repetition_within_a_reply():
    # a b c a b c: abc bca cab abc, one of four was there before; a b c: none; too short: left out
    replies = [(*ABC, *ABC), ABC, AB]
    assert repeated_within(replies, 3) == pytest.approx((1 / 4 + 0) / 2)
    assert math.isnan(repeated_within([AB], 3))


def test_repetition_across_prompts_counts_n_grams_that_answer_several():
    # ab and bc of group 1, ab of group 2, xy of group 2: ab twice of four
    replies = [said("a b c", 1), said("a b", 2), said("x y", 2)]
    assert repeated_across(replies, 2) == pytest.approx(2 / 4)


def test_repetition_within_a_group_is_not_repetition_across_prompts():
    same = [said("a b c", 1), said("a b c", 1)]
    assert repeated_across([*same, said("x y z", 2)], 2) == 0
    assert math.isnan(repeated_across(same, 2))


def test_similarity_is_the_jaccard_index_over_replies_to_different_prompts():
    # {a, b, ab} and {b, c, bc}: b of five
    assert mean_similarity([said("a b", 1), said("b c", 2)], 64, seed=0) == pytest.approx(1 / 5)
    # the two of group 1 are equal, but answer the same prompt: only pairs with group 2 count
    three = [said("a b", 1), said("a b", 1), said("b c", 2)]
    assert mean_similarity(three, 64, seed=0) == pytest.approx(1 / 5)
    assert mean_similarity([said("", 1), said("", 2)], 64, seed=0) == 1
    assert math.isnan(mean_similarity([said("a", 1), said("b", 1)], 64, seed=0))


def test_what_is_not_defined_is_not_reported():
    assert reply_report([], 8, seed=0) == {}
    assert "distinct_2" not in reply_report([said("one", 1), said("two", 2)], 8, seed=0)


def test_the_same_seed_draws_the_same_replies():
    episodes = [toy.play([toy.WAIT, toy.GO], group_id=group) for group in range(9)]
    first, again, other = (sample_replies(episodes, 5, seed) for seed in (1, 1, 2))
    assert len(first) == 5
    assert first == again != other
    assert len(sample_replies(episodes, 99, 1)) == 18


def test_thoughts_are_measured_in_well_formed_replies():
    replies = [
        Reply("", ("a",), thought="one two three"),
        Reply("", ("a",), thought=" "),
        Reply("", problem="malformed"),
    ]
    # three words and none; one of two is empty
    assert thought_report(replies) == {"thought_words": 1.5, "without_thought": 0.5}


def test_a_format_without_thoughts_has_no_metrics_of_thoughts():
    assert thought_report([Reply("", ("a",)), Reply("", problem="malformed")]) == {}
    assert thought_report([]) == {}


def episode(group: int, reward: float, success: bool) -> Trajectory:
    played = toy.play([toy.GO], seed=4, group_id=group)  # the counter starts at 1
    turn = replace(played.turns[0], reward=reward, metrics={"success": float(success)})
    return replace(played, turns=(turn,))


def test_groups_that_fare_alike_are_told_from_those_that_fail_alike():
    episodes = [
        *(episode(1, 1.0, True), episode(1, 1.0, True)),
        *(episode(2, 0.0, False), episode(2, 0.0, False)),
        *(episode(3, 1.0, True), episode(3, 0.0, False)),
        *(episode(4, 0.2, False), episode(4, 0.1, False)),
        episode(5, 0.0, False),  # alone: nothing to compare with
    ]
    assert group_report(episodes) == {"no_signal": 2 / 4, "failed_alike": 1 / 4}
    assert group_report(episodes[-1:]) == {}


def test_the_error_of_a_mean_takes_groups_as_the_sample():
    # means of the groups 1 and 0: deviation 0.7071, divided by the root of 2
    episodes = [episode(1, 1.0, True), episode(1, 1.0, True), episode(2, 0.0, False)]
    mean, error = mean_by_groups(episodes, lambda each: each.total_reward)
    assert (mean, error) == (pytest.approx(2 / 3), pytest.approx(0.5))
    assert math.isnan(mean_by_groups(episodes[:2], lambda each: each.total_reward)[1])


def test_mutual_information_by_hand():
    # own prompt: log 0.8 and log 0.6; mixtures: (0.8 + 0.2) / 2 and (0.4 + 0.6) / 2
    scores = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).log()
    expected = (math.log(0.8 / 0.5) + math.log(0.6 / 0.5)) / 2
    assert mutual_information(scores) == pytest.approx(expected)


def test_replies_that_ignore_their_prompts_carry_no_information():
    assert mutual_information(torch.full((3, 3), -7.0)) == pytest.approx(0, abs=1e-6)


def test_replies_that_only_their_own_prompt_explains_carry_the_most():
    scores = torch.full((4, 4), -900.0).double() + 800 * torch.eye(4)
    assert mutual_information(scores) == pytest.approx(math.log(4))


def test_turns_of_different_groups_that_fit_are_drawn():
    episodes = [toy.play([toy.GO], seed=seed, group_id=seed // 2) for seed in range(8)]
    turns = first_turns(episodes, 3, context_length=512, seed=1)
    assert len(turns) == 3
    assert len(first_turns(episodes, 99, context_length=512, seed=1)) == 4
    room = len(turns[0].prompt.ids) + len(turns[0].reply_ids)
    assert first_turns(episodes, 99, context_length=room - 1, seed=1) == []


def test_a_turn_that_continues_a_context_is_not_drawn():
    played = toy.play([toy.GO], seed=4)
    turn = replace(played.turns[0], prompt=Prompt((1, 2), whole=False))
    assert first_turns([replace(played, turns=(turn,))], 3, context_length=512, seed=1) == []
