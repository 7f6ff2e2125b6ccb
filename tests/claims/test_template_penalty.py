from typing import Any

import pytest

from tests.claims.claims import claim, judgement
from vagentrl.claims import TemplatePenalty
from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError


def penalties(rule: TemplatePenalty, *judgements: Judgement, remember: bool = True) -> list[float]:
    return [judged.penalty for judged in rule.penalise(judgements, remember=remember)]


def test_only_templates_that_are_frequent_and_bad_are_penalised():
    rule = TemplatePenalty(top=2, least_share=0.3, penalty=0.4)
    frequent_bad = [judgement("all is well", score) for score in (0.0, 0.9, 0.0)]  # mean 0.3
    frequent_good = [judgement("player here", score) for score in (1.0, 0.0, 1.0)]
    rare_bad = [judgement("box there", 0.0)]
    assert penalties(rule, *frequent_bad, *frequent_good, *rare_bad) == [0.4] * 3 + [0.0] * 4


def test_only_the_top_most_frequent_templates_are_examined():
    rule = TemplatePenalty(top=1, least_share=0.01, penalty=1.0)
    said = [judgement("often", 0.0)] * 3 + [judgement("seldom", 0.0)] * 2
    assert penalties(rule, *said) == [1.0] * 3 + [0.0] * 2


def test_templates_ignore_case_and_white_space_and_numbers_if_set():
    one, other = claim("The Box  is at\n(1, 2)"), claim("the box is at (3, 12)")
    assert TemplatePenalty().template(one) != TemplatePenalty().template(other)
    rule = TemplatePenalty(ignore_numbers=True)
    assert rule.template(one) == rule.template(other) == "the box is at (#, #)"


def test_the_window_slides_and_each_kind_has_its_own():
    rule = TemplatePenalty(window=4, least_share=0.5, penalty=1.0)
    assert penalties(rule, *[judgement("well", 0.0)] * 4) == [1.0] * 4
    assert penalties(rule, judgement("well", 1.0, kind="prediction")) == [0.0]
    # Three good entries replace three bad ones in the window: 0, 1, 1, 1.
    assert penalties(rule, *[judgement("well", 1.0)] * 3) == [0.0] * 3
    # Among other templates it is rare: one of four.
    assert penalties(rule, *[judgement(f"{n}", 0.0) for n in "abc"], judgement("well", 0.0)) == (
        [0.0] * 4
    )


def test_the_second_judges_scores_count_once_there_are_enough_of_them():
    rule = TemplatePenalty(penalty=1.0)
    fooled = [judgement("all is well", 1.0)] * 20
    doubted = [judgement("all is well", 1.0, second=0.0)]
    assert penalties(rule, *fooled, *doubted * 4) == [0.0] * 24  # (20 × 1 + 4 × 0) / 24
    assert penalties(rule, *doubted) == [1.0]  # five times 0


def test_a_claim_without_a_verdict_is_neither_counted_nor_penalised():
    rule = TemplatePenalty(penalty=1.0)
    assert penalties(rule, judgement("well", 0.0), judgement("well", None)) == [1.0, 0.0]


def test_a_batch_that_is_not_remembered_does_not_change_the_window():
    rule = TemplatePenalty(penalty=1.0, least_share=1.0)
    assert penalties(rule, judgement("well", 0.0), remember=False) == [1.0]
    assert penalties(rule, judgement("fine", 1.0)) == [0.0]
    assert penalties(rule, judgement("well", 0.0)) == [0.0]  # one of two


def test_the_window_is_part_of_the_state_dict():
    rule, resumed = TemplatePenalty(penalty=1.0), TemplatePenalty(penalty=1.0)
    penalties(rule, *[judgement("well", 0.0)] * 3)
    resumed.load_state_dict(rule.state_dict())
    assert penalties(resumed, judgement("well", 1.0)) == [1.0]  # mean 1/4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"top": 0}, "top is 0"),
        ({"below": 0.0}, "below is 0.0"),
        ({"least_share": 1.5}, "least_share is 1.5"),
        ({"penalty": 0.0}, "penalty is 0.0"),
    ],
)
def test_settings_without_any_effect_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        TemplatePenalty(**settings)
