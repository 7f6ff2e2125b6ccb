import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.judges.models import ScriptedChat, claim, sokoban
from vagentrl.claims.judge import Claim, Verdict
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.types import State
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.model_parser import ModelParser
from vagentrl_judges.relation_f1 import RelationF1
from vagentrl_judges.relations import (
    ANY,
    LESS,
    Cell,
    Relation,
    Truth,
    at,
    closes_cycle,
    mean_f1,
    read_grid,
    read_state,
    score,
)

SYMBOLS = {
    "P": ["player"], "X": ["boxes"], "O": ["targets"], "*": ["boxes", "targets"],
    "S": ["player", "targets"],
}  # fmt: skip


def judged(one: Claim, **settings: Any) -> Verdict:
    return asyncio.run(RelationF1(**settings).judge(one))


def f1(relations: list[Relation], truth: Truth, thing: str, vague: float = 0.5) -> float:
    return score(relations, truth, vague)[thing].f1


def total(relations: list[Relation], truth: Truth, **weights: float) -> float:
    return mean_f1(score(relations, truth, 0.5), weights)


# ------------------------------------------------------------------- values worked out by hand

# the player at (2, 3), boxes at (2, 2) and (1, 1), a target at (3, 2)
ROOM: Truth = {"player": [(2, 3)], "boxes": [(2, 2), (1, 1)], "targets": [(3, 2)], "keys": []}


def test_f1_counts_found_missed_and_invented_objects():
    said = [at("boxes", 2, 2), at("boxes", 4, 4)]
    # one of two found, one wrong: 2 * 1 / (1 + 1 + 2)
    assert f1(said, ROOM, "boxes") == pytest.approx(0.5)
    assert f1([at("boxes", 2, 2)], ROOM, "boxes") == pytest.approx(2 / 3)  # 2 * 1 / (1 + 0 + 2)
    # a third box, where there are two, costs a right one: 2 * (2 - 1) / (2 + 1 + 2)
    assert f1([*said, at("boxes", 1, 1)], ROOM, "boxes") == pytest.approx(0.4)
    assert f1([], ROOM, "boxes") == 0
    assert f1([at("boxes", 4, 4)], ROOM, "boxes") == 0


def test_a_vague_relation_earns_partial_credit():
    left_of = Relation("boxes", ANY, LESS, "player")  # true of both boxes
    # one box is found with credit 0.5: 2 * 0.5 / (1 + 0 + 2)
    assert f1([left_of], ROOM, "boxes") == pytest.approx(1 / 3)
    # both: 2 * (0.5 + 0.5) / (2 + 0 + 2)
    assert f1([left_of, left_of], ROOM, "boxes") == pytest.approx(0.5)
    # the exact relation matches (2, 2), the vague one matches the other box: 2 * 1.5 / (2 + 0 + 2)
    assert f1([left_of, at("boxes", 2, 2)], ROOM, "boxes") == pytest.approx(0.75)
    assert f1([left_of], ROOM, "boxes", vague=0) == 0
    assert f1([left_of, at("boxes", 2, 2)], ROOM, "boxes", vague=0) == pytest.approx(2 / 3)


def test_objects_are_matched_for_the_most_credit():
    above = Relation("boxes", LESS, ANY, "player")  # true of (1, 1) only
    left_of = Relation("boxes", ANY, LESS, "player")  # true of both
    for said in ([left_of, above], [above, left_of]):  # greedy matching would miss one
        assert f1(said, ROOM, "boxes") == pytest.approx(0.5)


def test_a_relation_is_measured_from_the_true_position_of_its_origin():
    said = [at("player", 9, 9), at("targets", 1, -1, of="player")]  # (2, 3) + (1, -1) = (3, 2)
    assert f1(said, ROOM, "player") == 0
    assert f1(said, ROOM, "targets") == 1


def test_an_origin_with_several_objects_is_vague_and_one_without_objects_is_wrong():
    below_a_box = at("targets", 1, 0, of="boxes")  # of (2, 2), not of (1, 1)
    assert f1([below_a_box], ROOM, "targets") == pytest.approx(0.5)  # 2 * 0.5 / (1 + 0 + 1)
    below_a_key = at("targets", 1, 0, of="keys")
    assert f1([below_a_key], ROOM, "targets") == 0


def test_repeating_a_true_relation_costs_nothing():
    said = [at("player", 2, 3), at("player", 2, 3), at("player", -1, 1, of="targets")]
    assert f1(said, ROOM, "player") == 1


def test_a_relation_that_closes_a_cycle_of_references_is_wrong():
    target_of_player = at("targets", 1, -1, of="player")
    player_of_target = at("player", -1, 1, of="targets")
    assert closes_cycle([target_of_player, player_of_target]) == [False, True]
    assert closes_cycle([player_of_target, target_of_player]) == [False, True]
    assert closes_cycle([at("player", 0, 0, of="player")]) == [True]
    chain = [at("a", 0, 1, of="b"), at("b", 0, 1, of="c"), at("c", 0, 1, of="a")]
    assert closes_cycle(chain) == [False, False, True]
    said = [target_of_player, player_of_target]
    # the target is found; the player is not: 0 / (0 + 1 + 1)
    assert f1(said, ROOM, "targets") == 1
    assert f1(said, ROOM, "player") == 0


def test_the_score_is_the_weighted_mean_over_classes():
    said = [at("player", 2, 3), at("boxes", 2, 2)]
    # player 1, boxes 2/3, targets 0; keys do not count: there are none and none are claimed
    assert total(said, ROOM) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert total(said, ROOM, boxes=3) == pytest.approx((1 + 3 * 2 / 3 + 0) / 5)
    assert total(said, ROOM, boxes=0, targets=0) == 1


def test_a_class_without_objects_counts_only_if_it_is_claimed():
    said = [at("player", 2, 3), at("boxes", 2, 2), at("boxes", 1, 1), at("targets", 3, 2)]
    assert total(said, ROOM) == 1
    assert total([*said, at("keys", 1, 1)], ROOM) == pytest.approx(3 / 4)


# --------------------------------------------------------------------------------- properties

CELL = st.tuples(st.integers(0, 5), st.integers(0, 5))


@st.composite
def rooms(draw: st.DrawFn) -> dict[str, list[Cell]]:
    """One player, one to three boxes, as many targets, and at most one key, in different cells."""
    counts = [1, *[draw(st.integers(1, 3))] * 2, draw(st.integers(0, 1))]
    cells = draw(st.permutations([(row, column) for row in range(5) for column in range(4)]))
    names = ("player", "boxes", "targets", "keys")
    return {n: [cells.pop() for _ in range(c)] for n, c in zip(names, counts, strict=True)}


@st.composite
def sayings(draw: st.DrawFn) -> list[Relation]:
    """Arbitrary relations: exact or vague, with or without an origin, possibly cyclic."""
    name = st.sampled_from(("player", "boxes", "targets", "keys"))
    number = st.integers(-5, 5)
    span = st.one_of(number.map(lambda n: (n, n)), st.sampled_from([ANY, LESS, (1, float("inf"))]))
    one = st.builds(Relation, name, span, span, st.one_of(st.none(), name))
    return draw(st.lists(one, max_size=8))


def true_relations(room: Truth) -> list[Relation]:
    return [at(name, *cell) for name, cells in room.items() for cell in cells]


@given(rooms(), sayings())
def test_a_score_is_between_0_and_1(room: Truth, said: list[Relation]):
    for one in score(said, room, 0.5).values():
        assert 0 <= one.f1 <= 1
    assert 0 <= total(said, room) <= 1


@given(rooms(), st.data())
def test_the_truth_scores_1_in_any_order(room: Truth, data: st.DataObject):
    said = data.draw(st.permutations(true_relations(room)))
    assert total(said, room) == 1
    assert total(said * 2, room) == 1


@given(rooms(), sayings(), st.data())
def test_objects_of_a_class_are_interchangeable(
    room: Truth, said: list[Relation], data: st.DataObject
):
    shuffled = {name: data.draw(st.permutations(cells)) for name, cells in room.items()}
    assert total(said, shuffled) == pytest.approx(total(said, room))


@given(rooms(), sayings(), sayings(), st.data())
def test_adding_a_false_relation_never_raises_the_score(
    room: Truth, said: list[Relation], more: list[Relation], data: st.DataObject
):
    weights = {name: data.draw(st.sampled_from([0.1, 1.0, 5.0])) for name in room}
    for relation in more:
        alone = score([relation], room, 0.5).get(relation.thing)
        if alone is None or alone.wrong == 0:
            continue  # the relation is true of some object, or excludes no cell
        place = data.draw(st.integers(0, len(said)))
        longer = [*said[:place], relation, *said[place:]]
        assert total(longer, room, **weights) <= total(said, room, **weights) + 1e-12


@given(rooms())
def test_a_missing_relation_lowers_the_score(room: Truth):
    everything = true_relations(room)
    for place in range(len(everything)):
        assert total(everything[:place] + everything[place + 1 :], room) < 1


# ----------------------------------------------------------------------------------- the judge


@pytest.mark.parametrize("representation", ["natural", "structured", "symbolic"])
@pytest.mark.parametrize("vocabulary", ["standard", "new"])
@pytest.mark.parametrize("boxes", [1, 2])
def test_the_descriptions_of_sokoban_score_1(representation: Any, vocabulary: Any, boxes: int):
    environment = Sokoban(size=6, boxes=boxes, vocabulary=vocabulary, max_solution=8)
    symbols = dict(zip("GBCA@" if vocabulary == "new" else "OX*PS", [
        ["targets"], ["boxes"], ["boxes", "targets"], ["player"], ["player", "targets"]
    ], strict=True))  # fmt: skip
    states = []
    for seed in range(8):
        environment.reset(seed)
        states.append(environment.state())
    for state in states:
        right = claim(representation=representation, state=state)
        assert judged(right, symbols=symbols).score == 1
    texts = [getattr(state, representation) for state in states]
    other = claim(texts[0], representation, next(s for s in states if s != states[0]))
    assert judged(other, symbols=symbols).score < 1


@pytest.mark.parametrize("representation", ["natural", "structured", "symbolic"])
@pytest.mark.parametrize("vocabulary", ["standard", "new"])
def test_the_descriptions_of_frozen_lake_score_1(representation: Any, vocabulary: Any):
    environment = FrozenLake(size=4, vocabulary=vocabulary)
    symbols = dict(zip("VFA!@" if vocabulary == "new" else "OGPX*", [
        ["holes"], ["goal"], ["player"], ["player", "holes"], ["player", "goal"]
    ], strict=True))  # fmt: skip
    for seed in range(8):
        environment.reset(seed)
        right = claim(representation=representation, state=environment.state())
        assert judged(right, symbols=symbols).score == 1


def test_the_reason_has_the_counts_of_every_class():
    half = judged(claim("the player is at row 2, column 3; the box is at (1, 1)"))
    assert half.score == pytest.approx(1 / 3)  # player 1, boxes 0, targets 0
    assert half.reason == (
        "player 1.00 (1 of 1 found, 0 wrong), boxes 0.00 (0 of 1 found, 1 wrong), "
        "targets 0.00 (0 of 1 found, 0 wrong)"
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", '{"player": 3}', '{"player": [1, true]}', '{"player": [[1, 2], 3]}',
     "[" * 100_000, '{"dragon": [1, 1]}'],
)  # fmt: skip
def test_a_claim_that_cannot_be_parsed_scores_0(text: str):
    assert judged(claim(text, "structured")).score == 0


@pytest.mark.parametrize("structured", ["", "not JSON", '{"player": "here"}'])
def test_a_state_that_cannot_be_parsed_is_a_failure(structured: str):
    state = State("words", structured, "grid")
    with pytest.raises(JudgeError, match="needs a state whose JSON"):
        judged(claim("the player is at (1, 1)", state=state))


def test_a_symbolic_claim_without_the_setting_symbols_is_a_failure():
    with pytest.raises(JudgeError, match="its setting symbols"):
        judged(claim(representation="symbolic"))


def test_weights_of_unknown_classes_and_all_zero_weights_are_failures():
    with pytest.raises(JudgeError, match=r"weights names \['plyer'\]"):
        judged(claim(), weights={"plyer": 2.0})
    with pytest.raises(JudgeError, match="there is nothing to judge"):
        judged(claim(), weights={"player": 0.0, "boxes": 0.0, "targets": 0.0})


@pytest.mark.parametrize(
    "settings", [{"weights": {"player": -1.0}}, {"vague_credit": 2.0}, {"symbols": {"PX": []}}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RelationF1(**settings)


def test_every_setting_changes_the_identity():
    judges = [
        RelationF1(), RelationF1(weights={"player": 2}), RelationF1(vague_credit=0.2),
        RelationF1(symbols=SYMBOLS), RelationF1(ModelParser(ScriptedChat(str), max_tokens=9)),
    ]  # fmt: skip
    assert len({judge.identity() for judge in judges}) == len(judges)
    assert RelationF1().identity() == RelationF1().identity()


def test_states_and_grids_are_read():
    assert read_state('{"player":[2,3],"boxes":[[2,2],[1,1]],"keys":[]}') == {
        "player": [(2, 3)], "boxes": [(2, 2), (1, 1)], "keys": []
    }  # fmt: skip
    assert read_grid(sokoban().state().symbolic, SYMBOLS) == {
        "player": [(2, 3)], "boxes": [(2, 2)], "targets": [(3, 2)]
    }  # fmt: skip
    assert read_grid("*\n S", SYMBOLS) == {
        "boxes": [(0, 0)], "targets": [(0, 0), (1, 1)], "player": [(1, 1)]
    }  # fmt: skip
