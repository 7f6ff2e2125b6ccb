import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from tests.claims.claims import claim, judgement
from vagentrl.claims import TemplatePenalty
from vagentrl.claims.judge import Verdict
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


def test_templates_ignore_case_layout_order_repetition_and_hidden_characters():
    rule = TemplatePenalty()
    one = rule.bag(claim("the box is at (1, 2); it is big"))
    for same in (
        "The Box  is at\n(1, 2); it is big",
        "it is big; the box is at (1, 2)",
        "the b\u200box is at (1, 2); it is bi\u0000g",
        "thе bох is at (1, 2); it is big",  # noqa: RUF001 (Cyrillic letters)
        "the box is at (\uff11, \uff12); it is big, it is big",
    ):
        assert len(one ^ rule.bag(claim(same))) <= 4  # words beside the moved number
    assert one == rule.bag(claim("THE BOX IS AT (1, 2); IT IS BIG"))
    assert one != rule.bag(claim("the box is at (1, 3); it is big"))
    loose = TemplatePenalty(ignore_numbers=True)
    assert loose.bag(claim("at (1, 2)")) == loose.bag(claim("at (3, 12)")) == {"at", "#"}


STATES = [
    f"the player is at row {n % 6}, column {n // 6 % 6}; the box is {n % 5}" for n in range(99)
]


def about(text: str, truth: str, score: float = 1.0, second: float | None = None) -> Judgement:
    second_verdict = None if second is None else Verdict(second)
    return Judgement(claim(text, truth), Verdict(score), second=second_verdict)


def noise(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=4))


DISGUISES: dict[str, Callable[[random.Random], str]] = {
    "none": lambda rng: VAGUE,
    "random letters": lambda rng: f"{VAGUE} {noise(rng)}",
    "random number": lambda rng: f"{VAGUE}; note {rng.randrange(10**6)}",
    "hidden characters": lambda rng: VAGUE.replace("e", "e" + "\u200b" * rng.randrange(3)),
    "shuffled clauses": lambda rng: "; ".join(rng.sample(VAGUE.split("; "), 3)),
    "look-alikes": lambda rng: "".join(
        {"e": "\u0435", "o": "\u043e"}.get(c, c) if rng.random() < 0.3 else c for c in VAGUE
    ),
}
VAGUE = "the player is near the box; the box is near the target; all of them are in the room"


@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES.keys())
def test_a_constant_is_a_template_in_any_disguise_even_if_the_judge_believes_it(disguise: Any):
    rng, rule = random.Random(0), TemplatePenalty()
    said = [about(disguise(rng), truth) for truth in STATES]
    assert penalties(rule, *said) == [1.0] * 99


@pytest.mark.parametrize(("right", "share"), [(0.6, 0.0), (0.4, 0.05)])
def test_who_looks_at_the_state_has_hardly_a_template_however_often_it_errs(
    right: float, share: float
):
    few = STATES[:12] * 20  # a small lake: every description is frequent
    lost = []
    for seed in range(6):
        rng = random.Random(seed)
        said = []
        for truth in few:
            sees = rng.random() < right
            said.append(about(truth if sees else rng.choice(STATES[:12]), truth, float(sees)))
        lost += penalties(TemplatePenalty(), *said)
    assert sum(lost) <= share * len(lost)


def test_a_second_judge_vouches_for_a_template_in_later_batches():
    # honest, but the state holds more than the agent is asked to tell, such as a clock
    rule = TemplatePenalty()
    said = [about("the goal is at the bottom right", truth, second=1.0) for truth in STATES]
    assert penalties(rule, *said) == [1.0] * 99  # no audit of this batch decides about it
    assert penalties(rule, *said) == [0.0] * 99


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


def test_the_second_judges_scores_of_earlier_batches_count_once_there_are_enough_of_them():
    rule = TemplatePenalty(penalty=1.0)
    fooled = [judgement("all is well", 1.0)] * 20
    doubted = [judgement("all is well", 1.0, second=0.0)]
    assert penalties(rule, *fooled, *doubted * 4) == [0.0] * 24
    assert penalties(rule, *doubted) == [0.0]  # four audits in the past
    assert penalties(rule, *fooled) == [1.0] * 20  # five


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
