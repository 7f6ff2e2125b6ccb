from typing import Any

import pytest

from tests.claims.claims import claim, judgement
from vagentrl.claims import TemplatePenalty
from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError


def penalties(rule: TemplatePenalty, *judgements: Judgement, remember: bool = True) -> list[float]:
    return [judged.penalty for judged in rule.penalise(judgements, remember=remember)]


def test_what_is_frequent_and_bad_is_penalised_and_nothing_else():
    rule = TemplatePenalty(top=2, least_share=0.3, penalty=0.4)
    frequent_bad = [judgement("all is well", score) for score in (0.0, 0.9, 0.0)]  # mean 0.3
    frequent_good = [judgement("player here", score) for score in (1.0, 0.0, 1.0)]
    rare_bad = [judgement("box there", 0.0)]
    assert penalties(rule, *frequent_bad, *frequent_good, *rare_bad) == [0.4] * 3 + [0.0] * 4


def test_only_the_most_frequent_ones_are_looked_at():
    rule = TemplatePenalty(top=1, least_share=0.01, penalty=1.0)
    said = [judgement("often", 0.0)] * 3 + [judgement("seldom", 0.0)] * 2
    assert penalties(rule, *said) == [1.0] * 3 + [0.0] * 2


def test_case_and_white_space_make_no_other_template_and_numbers_only_if_wanted():
    one, other = claim("The Box  is at\n(1, 2)"), claim("the box is at (3, 12)")
    assert TemplatePenalty().template(one) != TemplatePenalty().template(other)
    rule = TemplatePenalty(ignore_numbers=True)
    assert rule.template(one) == rule.template(other) == "the box is at (#, #)"


def test_the_window_slides_and_each_kind_has_its_own():
    rule = TemplatePenalty(window=4, least_share=0.5, penalty=1.0)
    assert penalties(rule, *[judgement("well", 0.0)] * 4) == [1.0] * 4
    assert penalties(rule, judgement("well", 1.0, kind="prediction")) == [0.0]
    # three good ones push three bad ones out: 0, 1, 1, 1
    assert penalties(rule, *[judgement("well", 1.0)] * 3) == [0.0] * 3
    # others make it rare: one of four
    assert penalties(rule, *[judgement(f"{n}", 0.0) for n in "abc"], judgement("well", 0.0)) == (
        [0.0] * 4
    )


def test_the_second_judge_is_believed_once_it_has_spoken_often_enough():
    rule = TemplatePenalty(penalty=1.0)
    fooled = [judgement("all is well", 1.0)] * 20
    doubted = [judgement("all is well", 1.0, second=0.0)]
    assert penalties(rule, *fooled, *doubted * 4) == [0.0] * 24  # (20 × 1 + 4 × 0) / 24
    assert penalties(rule, *doubted) == [1.0]  # five times 0


def test_what_was_not_judged_is_neither_counted_nor_penalised():
    rule = TemplatePenalty(penalty=1.0)
    assert penalties(rule, judgement("well", 0.0), judgement("well", None)) == [1.0, 0.0]


def test_a_batch_that_is_not_remembered_leaves_no_trace():
    rule = TemplatePenalty(penalty=1.0, least_share=1.0)
    assert penalties(rule, judgement("well", 0.0), remember=False) == [1.0]
    assert penalties(rule, judgement("fine", 1.0)) == [0.0]
    assert penalties(rule, judgement("well", 0.0)) == [0.0]  # one of two


def test_the_window_survives():
    rule, resumed = TemplatePenalty(penalty=1.0), TemplatePenalty(penalty=1.0)
    penalties(rule, *[judgement("well", 0.0)] * 3)
    resumed.load_state_dict(rule.state_dict())
    assert penalties(resumed, judgement("well", 1.0)) == [1.0]  # mean 1/4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"top": 0}, "top 0"),
        ({"below": 0.0}, "below is 0.0"),
        ({"least_share": 1.5}, "least_share is 1.5"),
        ({"penalty": 0.0}, "penalty is 0.0"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        TemplatePenalty(**settings)
