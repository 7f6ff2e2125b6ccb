"""The detector on series that are made up."""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from vagentrl.callbacks.echo_trap.detector import Detector, Verdict
from vagentrl.callbacks.echo_trap.vitals import Estimate, Vitals

NAN = math.nan
HEALTHY = {
    "entropy": 1.0,
    "similarity": 0.2,
    "opening_share": 0.1,
    "template_share": 0.1,
    "repeated_within": 0.0,
    "failed_alike": 0.1,
    "group_std": 0.4,
    "malformed_replies": 0.0,
    "gradient_norm": 1.0,
}


def follow(
    success: Sequence[float],
    detector: Detector | None = None,
    *,
    error: float = 0.02,
    reward: Sequence[float] | None = None,
    start: int = 1,
    groups: int = 64,
    held_out: Sequence[float] | None = None,
    bonus: Sequence[float] | None = None,
    **numbers: Sequence[float],
) -> list[Verdict]:
    """The verdicts on a run with this success, and with these numbers instead of healthy ones."""
    detector = detector or Detector()
    verdicts = []
    for place, rate in enumerate(success):
        now = HEALTHY | {name: values[place] for name, values in numbers.items()}
        earned = rate if reward is None else reward[place]
        evaluated = NAN if held_out is None else held_out[place]
        paid = NAN if bonus is None else bonus[place]
        means = (rate, earned, evaluated, paid)
        success, reward_, out, bonus_ = (Estimate(mean, error) for mean in means)
        vitals = Vitals(start + place, success, reward_, groups, now, out, bonus_)
        verdicts.append(detector.observe(vitals))
    return verdicts


def alarms(verdicts: Sequence[Verdict], start: int = 1) -> list[int]:
    return [number for number, verdict in enumerate(verdicts, start) if verdict.alarm]


def kinds(verdict: Verdict) -> set[str]:
    return {trouble.kind for trouble in verdict.troubles}


def line(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * place / (count - 1) for place in range(count)]


def test_a_healthy_run_pays_for_success_with_entropy_spread_and_variety():
    verdicts = follow(
        line(0.2, 0.95, 20),
        entropy=line(1.0, 0.05, 20),
        group_std=line(0.4, 0.05, 20),
        opening_share=line(0.1, 0.9, 20),
        similarity=line(0.2, 0.6, 20),
    )
    assert all(verdict.troubles == () for verdict in verdicts)


@pytest.mark.parametrize("seed", range(20))
def test_noise_on_a_plateau_raises_no_alarm(seed: int):
    """The success is known to 0.04, and the entropy goes on falling: one kind of trouble."""
    draw = Random(seed)
    success = [*line(0.3, 0.8, 10), *[0.8] * 40]
    noisy = [rate + draw.gauss(0, 0.04) for rate in success]
    assert alarms(follow(noisy, error=0.04, entropy=line(1.0, 0.1, 50))) == []


def test_a_collapse_is_told_in_the_second_iteration_in_which_it_shows():
    # Means over three: success 0.5, then 0.4, 0.3, 0.2; 0.1 is lost in iteration 7: more
    # than 0.05, and than four errors of 0.02 * sqrt(1 + 1 / 3) = 0.023 (the best is the first).
    # The entropy falls below 0.7 with (1 + 1 + 0.05) / 3 = 0.683: both show from iteration 7 on.
    verdicts = follow([0.5] * 6 + [0.2] * 4, entropy=[1.0] * 6 + [0.05] * 4)
    assert alarms(verdicts) == [8, 9, 10]
    assert [verdict.begins for verdict in verdicts].index(True) == 7
    assert {trouble.kind: trouble.since for trouble in verdicts[7].news} == {
        "progress": 7,
        "variety": 7,
    }
    (text,) = verdicts[7].news[0].reasons
    assert text == "success 0.5 → 0.3"


def test_a_slow_collapse_is_told_before_much_is_lost():
    success = [*line(0.4, 0.6, 8), *line(0.6, 0.1, 25)]
    opening = [*[0.1] * 8, *line(0.1, 0.9, 25)]
    first = alarms(follow(success, opening_share=opening))[0]
    assert success[first - 1] > 0.6 - 0.2
    assert first > 8


def test_replies_that_become_alike_count_before_the_success_has_changed():
    """The success stands still a little below its best; groups and replies tell."""
    verdicts = follow(
        [0.5] + [0.49] * 11,
        failed_alike=[0.1] * 6 + [0.5] * 6,
        similarity=[0.2] * 6 + [0.6] * 6,
    )
    assert alarms(verdicts)
    assert kinds(verdicts[-1]) == {"signal", "variety"}


def test_one_kind_of_trouble_is_no_alarm():
    verdicts = follow([0.5] + [0.49] * 11, entropy=[1.0] * 6 + [0.2] * 6)
    assert kinds(verdicts[-1]) == {"variety"}
    assert alarms(verdicts) == []


def test_strong_evidence_of_one_kind_is_no_alarm_even_if_it_would_be_enough():
    nervous = Detector(evidence=2)
    verdicts = follow([0.5] * 12, nervous, similarity=[0.2] * 6 + [0.9] * 6)
    assert verdicts[-1].troubles[0].weight == 2
    assert alarms(verdicts) == []


@pytest.mark.parametrize(("groups", "shown"), [(64, {"signal"}), (4, set())])
def test_a_share_of_few_groups_may_rise_by_chance(groups: int, shown: set[str]):
    # 0.1 to 0.4 over three iterations: errors 0.04 with 192 groups, 0.18 with 12; it takes three
    failed = [0.1] * 6 + [0.4] * 6
    assert kinds(follow([0.5] * 12, groups=groups, failed_alike=failed)[-1]) == shown


def test_spread_within_groups_may_vanish_while_the_agent_does_well():
    spread = [0.4] * 6 + [0.1] * 6
    assert kinds(follow([0.5] * 12, group_std=spread)[-1]) == set()
    # 0.04 is more than an error, and too little to be a trouble of its own
    assert kinds(follow([0.5] * 6 + [0.46] * 6, group_std=spread)[-1]) == {"signal"}


def test_a_single_noisy_iteration_is_no_alarm():
    rates, entropy = [0.5] * 12, [1.0] * 12
    rates[6], entropy[6] = 0.3, 0.4
    norms = [1.0] * 6 + [1000.0] + [1.0] * 5
    assert alarms(follow(rates, entropy=entropy, gradient_norm=norms)) == []


def test_two_spikes_of_the_gradient_are_trouble_and_one_is_not():
    norms = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 50.0, 1.0, 40.0, 1.0]
    verdicts = follow([0.5] * 10, gradient_norm=norms)
    shows = [any(t.kind == "stability" for t in verdict.troubles) for verdict in verdicts]
    # the second is in iteration 9
    assert shows == [False] * 8 + [True] * 2


def test_a_spike_is_told_by_the_iterations_before_it():
    detector = Detector()
    follow([0.5] * 6, detector, gradient_norm=[1.0, 1.0, math.e, 1 / math.e, math.e**4, math.e**3])
    # logs 0, 0, 1, -1, 4 before it, as below
    assert detector.spike() == pytest.approx(3 / 1.4826)
    assert math.isnan(detector.spike(back=1))  # only four before that one


def test_nothing_known_is_no_trouble():
    names: Any = {name: [NAN] * 8 for name in HEALTHY}
    verdicts = follow([NAN] * 8, error=NAN, **names)
    assert all(verdict.troubles == () for verdict in verdicts)


def test_an_iteration_without_an_update_delays_no_alarm_and_causes_none():
    """Nothing was kept in two iterations: there is no entropy and no gradient norm."""
    entropy = [1.0] * 4 + [NAN, NAN] + [1.0] * 4
    norms = entropy
    assert alarms(follow([0.5] * 10, entropy=entropy, gradient_norm=norms)) == []
    collapse = [1.0] * 6 + [0.05, NAN, NAN, 0.05]
    verdicts = follow([0.5] * 6 + [0.2] * 4, entropy=collapse)
    assert alarms(verdicts) == [8, 9, 10]


def test_an_alarm_ends_with_patience_and_is_told_again_when_it_comes_back():
    good, bad = [0.5] * 6, [0.1] * 4
    success = [*good, *bad, *good, *bad]
    entropy = [*[1.0] * 6, *[0.1] * 4, *[1.0] * 6, *[0.1] * 4]
    verdicts = follow(success, entropy=entropy)
    begins = [number for number, verdict in enumerate(verdicts, 1) if verdict.begins]
    assert len(begins) == 2
    told = [trouble.kind for verdict in verdicts for trouble in verdict.news]
    assert told.count("progress") == told.count("variety") == 2


def test_a_kind_that_joins_an_alarm_is_told_once():
    verdicts = follow(
        [0.5] * 6 + [0.2] * 8,
        entropy=[1.0] * 6 + [0.1] * 8,
        failed_alike=[0.1] * 10 + [0.9] * 4,
    )
    told = [trouble.kind for verdict in verdicts for trouble in verdict.news]
    assert sorted(told) == ["progress", "signal", "variety"]
    assert sum(verdict.begins for verdict in verdicts) == 1


def test_a_certain_but_small_loss_is_no_trouble():
    assert alarms(follow([0.5] * 6 + [0.46] * 6, error=0.001, entropy=[1.0] * 6 + [0.1] * 6)) == []


def test_an_uncertain_loss_is_no_trouble():
    falls = [0.5] * 6 + [0.35] * 6
    entropy = [1.0] * 6 + [0.1] * 6
    assert alarms(follow(falls, error=0.02, entropy=entropy))
    # 0.15 is less than two errors of 0.2 * sqrt(1 + 1 / 3)
    assert kinds(follow(falls, error=0.2, entropy=entropy)[-1]) == {"variety"}


def test_a_task_without_successes_is_judged_by_its_return():
    """Where all earn the same, they may have failed or be done: only a fall of the return tells."""
    failed, entropy = [0.1] * 6 + [1.0] * 6, [1.0] * 6 + [0.1] * 6
    steady = follow([0.0] * 12, reward=[3.0] * 12, failed_alike=failed, entropy=entropy)
    assert alarms(steady) == []
    fallen = [3.0] * 6 + [1.0] * 6
    verdicts = follow([0.0] * 12, reward=fallen, failed_alike=failed, entropy=entropy)
    assert alarms(verdicts)
    assert "return 3 → " in verdicts[-1].troubles[0].reasons[0]


def test_the_first_success_changes_what_is_compared():
    """A return that falls when the first successes come is no fall of the success."""
    verdicts = follow([0.0] * 4 + [0.1] * 6, reward=[3.0] * 4 + [1.0] * 6)
    assert all(verdict.troubles == () for verdict in verdicts)


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 9])
def test_a_detector_that_is_restored_goes_on_as_if_nothing_had_happened(cut: int):
    success, entropy = [0.5] * 6 + [0.2] * 6, [1.0] * 6 + [0.05] * 6
    norms = [1.0] * 5 + [90.0, 1.0, 80.0] + [1.0] * 4
    whole = follow(success, entropy=entropy, gradient_norm=norms)
    first, second = Detector(), Detector()
    follow(success[:cut], first, entropy=entropy[:cut], gradient_norm=norms[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = follow(
        success[cut:], second, start=cut + 1, entropy=entropy[cut:], gradient_norm=norms[cut:]
    )
    assert rest == whole[cut:]


def test_a_number_that_is_measured_now_and_then_is_compared_with_the_first_known():
    information = [NAN, NAN, 2.0, NAN, NAN, 0.5, NAN, NAN, 0.5, NAN]
    # after iteration 3 it is 2; 0.5 is known from 6 on: below 0.6 * 2 - 0.1
    verdicts = follow([0.5] * 10, mutual_information=information)
    assert [len(verdict.troubles) for verdict in verdicts] == [0] * 5 + [1] * 5


def test_updates_that_move_the_policy_far_are_unstable_if_the_agent_does_worse():
    # means of three: 0.04, 0.2; the limit is 3 * 0.02 + 0.03 = 0.09
    changes = [0.02] * 6 + [0.08, 0.5, 0.02]
    assert all(v.troubles == () for v in follow([0.5] * 9, approximate_kl=changes))
    # The mean falls by 0.013, 0.027, 0.04; the best was seen in one iteration, the mean is of
    # three: an error is 0.02 * sqrt(1 + 1 / 3) = 0.023.
    verdicts = follow([0.5] * 6 + [0.46] * 3, approximate_kl=changes)
    assert [len(verdict.troubles) for verdict in verdicts] == [0] * 7 + [1] * 2
    assert verdicts[7].troubles[0].weight == 2


def test_patience_and_evidence_are_settings():
    success, entropy = [0.5] * 6 + [0.2] * 6, [1.0] * 6 + [0.05] * 6
    first = {
        (patience, evidence): alarms(follow(success, Detector(patience, evidence), entropy=entropy))
        for patience in (1, 4)
        for evidence in (3, 5)
    }
    assert first[1, 3][0] == 7
    assert first[4, 3][0] == 10
    assert first[1, 5] == []


def test_held_out_success_may_fall_while_training_success_rises():
    # The best, 0.6, was seen in one iteration, the mean is of three: an error is 0.023, and 2, 3
    # and 4 are 0.046, 0.069 and 0.092; 0.05 and 0.1 are least. The means fall by 0.02, 0.06, 0.09,
    # 0.11, 0.12, 0.12.
    held_out = [0.6] * 6 + [0.54, 0.48, 0.51] + [0.48] * 3
    verdicts = follow(line(0.5, 0.6, 12), held_out=held_out)
    weights = [sum(trouble.weight for trouble in verdict.troubles) for verdict in verdicts]
    assert weights == [0] * 7 + [1, 1, 3, 3, 3]
    assert verdicts[-1].troubles[0].reasons == ("held-out success 0.6 → 0.48",)


def test_a_loss_far_beyond_chance_is_an_alarm_by_itself():
    # As above, but it takes 2, 4 and 6 errors: 0.046, 0.092 and 0.139. The means fall by 0.05, 0.1
    # and 0.15 in the iterations 7, 8 and 9.
    assert alarms(follow([0.6] * 6 + [0.51] * 6)) == []
    assert alarms(follow([0.6] * 6 + [0.45] * 6)) == [10, 11, 12]


def test_evaluations_now_and_then_are_compared_with_each_other():
    held_out = [NAN if place % 4 else 0.6 - 0.05 * place for place in range(13)]
    verdicts = follow([0.5] * 13, held_out=held_out)
    # 0.6 in 1, 0.4 in 5, 0.2 in 9; each counts for three iterations
    assert [bool(verdict.troubles) for verdict in verdicts[:9]] == [False] * 4 + [
        *(True, True, True),
        *(False, True),
    ]


def test_success_on_training_tasks_alone_does_not_renew_what_is_compared():
    rising = line(0.3, 0.9, 12)
    entropy = [1.0] * 6 + [0.6] * 6
    assert kinds(follow(rising, entropy=entropy)[-1]) == set()
    spoilt = follow(rising, entropy=entropy, held_out=[0.6] * 6 + [0.4] * 6)
    assert kinds(spoilt[-1]) == {"progress", "variety"}


@pytest.mark.parametrize(
    ("bonus", "success", "weight"),
    [
        ([0.2] * 6 + [0.3] * 6, [0.5] * 12, 1),  # half as much again
        ([0.2] * 6 + [0.3] * 6, [0.5] * 6 + [0.46] * 6, 2),  # and worse than at its best
        ([0.2] * 6 + [0.3] * 6, line(0.3, 0.8, 12), 0),  # with the success
        ([0.2] * 6 + [0.22] * 6, [0.5] * 12, 0),  # by a tenth: within three errors of 0.016
        ([0.3] * 6 + [0.36] * 6, [0.5] * 12, 0),  # beyond three errors, but by a fifth
        ([-0.3] * 6 + [-0.1] * 6, [0.5] * 12, 0),  # penalties that become rare
    ],
)
def test_bonuses_that_rise_without_the_success_are_trouble(
    bonus: list[float], success: list[float], weight: int
):
    (*_, last) = follow(success, bonus=bonus)
    assert {trouble.kind: trouble.weight for trouble in last.troubles}.get("reward", 0) == weight


def test_what_is_forgotten_counts_no_longer():
    detector = Detector()
    follow([0.5] * 6 + [0.2] * 6, detector, entropy=[1.0] * 6 + [0.3] * 6)
    detector.forget_recent()
    (verdict,) = follow([0.5], detector, start=13)
    assert (verdict.troubles, verdict.alarm) == ((), False)
    # The best is still known: 0.1 in one iteration, with an error of 0.02 and 0.0115 of the best
    verdicts = follow([0.1] * 4, detector, start=14)
    assert alarms(verdicts, start=14) == [15, 16, 17]


def test_a_certain_dip_near_the_ceiling_is_weak_evidence():
    # An error is 0.005 * sqrt(1 + 1 / 3) = 0.0058: the loss of 0.08 is one of 14 errors.
    verdicts = follow([0.98] * 6 + [0.9] * 6, held_out=[0.98] * 6 + [0.9] * 6, error=0.005)
    assert [trouble.weight for trouble in verdicts[-1].troubles] == [1]


def test_two_leaps_of_the_policy_are_told_before_anything_else_shows():
    # The usual step is 0.003, so that a leap is one beyond 0.024: in iterations 8 and 11. From 11
    # to 12 both are among the last five; the second of these iterations makes the alarm.
    steps = [0.003] * 7 + [0.025, 0.003, 0.003, 0.025] + [0.003] * 5
    verdicts = follow([0.9] * 16, approximate_kl=steps)
    assert alarms(verdicts) == [12]
    (trouble,) = verdicts[11].news
    assert (trouble.kind, trouble.since) == ("stability", 11)
    assert trouble.reasons == (
        "2 of the last 5 updates moved the policy more than 8 times as far as usual",
    )


@pytest.mark.parametrize(
    "steps",
    [
        [0.003] * 7 + [0.024] * 3 + [0.003] * 6,  # 8 times as far, and not more
        [0.001] * 7 + [0.019] * 3 + [0.001] * 6,  # a small step is none, however small others are
        [0.003] * 7 + [0.5] + [0.003] * 4 + [0.5] + [0.003] * 3,  # five iterations apart
        [0.003] * 4 + [0.5, 0.5] + [0.003] * 10,  # too early to say what is usual
        [0.1, 0.08, 0.05] * 2 + [0.02] * 10,  # a run begins with large steps
        [0.0005 * n**2 for n in range(16)],  # a rate that warms up
        [NAN] * 11 + [0.5] * 5,
    ],
)
def test_steps_that_are_no_leaps_are_no_trouble(steps: list[float]):
    verdicts = follow([0.9] * 16, approximate_kl=steps)
    assert all(verdict.troubles == () for verdict in verdicts)
