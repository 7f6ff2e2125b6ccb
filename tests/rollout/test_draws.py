from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.curricula import BySuccess, GroupResult
from vagentrl.errors import ConfigError
from vagentrl.rollout.draws import Draws, World
from vagentrl.schedules import Schedule
from vagentrl.types import Observation, Prompt, Reply, Trajectory, Turn


def starts_of(drawn: list[tuple[str, int]], world: str) -> list[int]:
    return [seed // 2 for name, seed in drawn if name == world]


def episode(world: str, seed: int, group: int, success: float) -> Trajectory:
    turn = Turn(
        Observation(""), Prompt((1,)), (2,), (0.0,), Reply("a"), 0.0, "stop",
        metrics={"success": success},
    )  # fmt: skip
    return Trajectory(world, seed, group, (turn,), "terminated")


# ---------------------------------------------------------------------------------------- worlds


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_each_world_gets_its_share_of_the_groups_rounded(weights, count, seed):
    worlds = [World(str(number), weight) for number, weight in enumerate(weights)]
    drawn = Counter(name for name, _ in Draws(worlds, seed=seed).draw(3, 0, count))
    assert drawn.total() == count
    for number, weight in enumerate(weights):
        exact = Fraction(count * weight, sum(weights))
        assert abs(drawn[str(number)] - exact) < 1


def test_a_world_with_little_weight_is_drawn_in_proportion_over_the_iterations():
    draws = Draws([World("often", 9), World("rarely", 1)])
    drawn = Counter(name for batch in range(300) for name, _ in draws.draw(batch, 0, 3))
    # 900 groups, a tenth of them: 90, of which each iteration has 0 or 1 (sd 7.9)
    assert 60 < drawn["rarely"] < 120


def test_a_world_with_weight_0_is_never_drawn():
    draws = Draws([World("a", 0.0), World("b", 1.0), World("c", 0.0)])
    assert {name for batch in range(50) for name, _ in draws.draw(batch, 0, 3)} == {"b"}


def test_a_schedule_moves_the_weight_from_one_world_to_another():
    worlds = [World("a", Schedule(1.0, 0.0, 4)), World("b", Schedule(0.0, 1.0, 4))]
    draws = Draws(worlds)
    drawn = [starts_of(draws.draw(batch, 0, 8), "b") for batch in range(6)]
    assert [len(each) for each in drawn] == [0, 2, 4, 6, 8, 8]


def test_weights_that_are_all_0_in_an_iteration_are_refused_by_its_number():
    draws = Draws([World("a", Schedule(1.0, 0.0, 2)), World("b", 0.0)])
    draws.draw(1, 0, 4)
    with pytest.raises(ConfigError, match="in iteration 2 the weights of all worlds are 0"):
        draws.draw(2, 0, 4)


def test_several_rounds_of_a_batch_draw_different_groups():
    draws = Draws([World("a"), World("b")])
    rounds = draws.draw(0, 0, 8) + draws.draw(0, 8, 8)
    assert len({seed for _, seed in rounds}) == 16


# ---------------------------------------------------------------------------------------- epochs


def test_every_start_is_drawn_once_an_epoch_and_each_epoch_has_its_order():
    draws = Draws([World("rows", starts=10)])
    drawn = [start for batch in range(5) for start in starts_of(draws.draw(batch, 0, 4), "rows")]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert draws.epochs("rows") == 2.0


def test_the_seed_decides_the_order():
    orders = {
        tuple(starts_of(Draws([World("rows", starts=20)], seed=seed).draw(0, 0, 20), "rows"))
        for seed in (1, 1, 2)
    }
    assert len(orders) == 2


def test_worlds_go_through_epochs_of_their_own():
    draws = Draws([World("few", starts=2), World("many", starts=6), World("endless")])
    drawn = [each for batch in range(4) for each in draws.draw(batch, 0, 6)]
    assert Counter(starts_of(drawn, "few")) == {0: 4, 1: 4}
    assert len(set(starts_of(drawn, "endless"))) == 8


def test_a_resumed_run_goes_on_in_the_same_epoch():
    def new() -> Draws:
        return Draws([World("rows", starts=7), World("others")], BySuccess())

    one, other = new(), new()
    for batch in range(3):
        drawn = one.draw(batch, 0, 4)
        one.observe([episode(w, s, g, float(g % 2)) for g, (w, s) in enumerate(drawn)])
    other.load_state_dict(one.state_dict())
    assert [one.draw(b, 0, 4) for b in range(3, 9)] == [other.draw(b, 0, 4) for b in range(3, 9)]
    assert other.state_dict() == one.state_dict()


def test_a_run_with_a_new_world_starts_that_one_from_its_first_epoch():
    old = Draws([World("gone", starts=3), World("kept", starts=5)])
    old.draw(0, 0, 4)
    new = Draws([World("kept", starts=5), World("added", starts=4)])
    new.load_state_dict(old.state_dict())
    assert new.state_dict()["visited"] == {"kept": 2, "added": 0}


# ------------------------------------------------------------------------------------- curriculum


def test_a_world_is_drawn_less_the_nearer_its_success_is_to_0_or_1():
    curriculum = BySuccess(floor=0.1, memory=0.5)
    curriculum.observe([GroupResult("solved", None, 1.0), GroupResult("even", None, 0.5)])
    assert curriculum.weight("solved") == pytest.approx(0.1)
    assert curriculum.weight("even") == pytest.approx(1.0)
    assert curriculum.weight("new") == pytest.approx(1.0)
    curriculum.observe([GroupResult("solved", None, 0.0), GroupResult("solved", None, 1.0)])
    # 0.5 * 1.0 + 0.5 * 0.5 = 0.75; 0.1 + 0.9 * 4 * 0.75 * 0.25 = 0.775
    assert curriculum.weight("solved") == pytest.approx(0.775)


def test_the_curriculum_shifts_the_groups_of_the_next_iteration():
    draws = Draws([World("solved"), World("even")], BySuccess(floor=0.25, memory=0.0))
    draws.observe([episode("solved", 0, 0, 1.0), episode("even", 0, 1, 1.0)])
    draws.observe(
        [episode("solved", 0, 0, 1.0), episode("even", 0, 1, 1.0), episode("even", 0, 1, 0.0)]
    )
    assert draws.weights(1) == pytest.approx({"solved": 0.2, "even": 0.8})
    assert len(starts_of(draws.draw(1, 0, 10), "even")) == 8


def test_failed_episodes_do_not_count_as_unsolved():
    draws = Draws([World("a"), World("b")], BySuccess(memory=0.0))
    failed = Trajectory("a", 0, 0, (), "failed", error="EnvError: gone")
    draws.observe([episode("a", 0, 0, 1.0), episode("a", 0, 0, 0.0), failed])
    assert draws.weights(1)["a"] == pytest.approx(0.5)


def test_starts_that_are_settled_are_passed_over_until_they_are_not():
    draws = Draws([World("rows", starts=4)], BySuccess(skip=0.999))
    first = draws.draw(0, 0, 4)
    open_start = first[2][1] // 2
    results = [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    draws.observe(
        [
            episode("rows", seed, group, success)
            for group, (_, seed) in enumerate(first)
            for success in results[group]
        ]
    )
    later = [start for batch in range(1, 9) for start in starts_of(draws.draw(batch, 0, 1), "rows")]
    assert Counter(later)[open_start] >= 6
    again = [episode("rows", 2 * s, s, x) for s in range(4) for x in (0.0, 1.0)]
    draws.observe(again)
    afterwards = starts_of(draws.draw(9, 0, 8), "rows")
    assert set(afterwards) == {0, 1, 2, 3}


def test_an_epoch_in_which_all_is_settled_still_draws():
    draws = Draws([World("rows", starts=3)], BySuccess(skip=0.999))
    for batch in range(3):
        drawn = draws.draw(batch, 0, 3)
        draws.observe([episode("rows", seed, group, 1.0) for group, (_, seed) in enumerate(drawn)])
        assert len(drawn) == 3


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"floor": 0.0}, r"BySuccess\.floor is 0\.0; give a number above 0"),
        ({"floor": 1.1}, r"BySuccess\.floor is 1\.1; give a number from 0 to 1"),
        ({"memory": 1.0}, r"BySuccess\.memory is 1\.0; give a number below 1"),
        ({"skip": 1.0}, r"BySuccess\.skip is 1\.0; give a number below 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], match: str):
    with pytest.raises(ConfigError, match=match):
        BySuccess(**settings)
