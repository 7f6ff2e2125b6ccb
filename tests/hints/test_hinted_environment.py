from functools import partial
from random import Random

import pytest

from tests import toy
from tests.processes import printed_in_every_process
from vagentrl.environment import Split, seed_of
from vagentrl.errors import ChatError, ConfigError
from vagentrl.formats import NoThink
from vagentrl.hints import (
    Hint,
    HintedEnvironment,
    HintModel,
    ScriptedHintModel,
    Situation,
)
from vagentrl.schedules import Schedule
from vagentrl.types import Observation, Reply
from vagentrl_envs.frozen_lake import FrozenLake

corridor = partial(FrozenLake, map=["SFFG"], observation="text", format=NoThink())
right, left = Reply("R", actions=("Right",)), Reply("L", actions=("Left",))


class RecordingHintModel(HintModel):
    """Records its situations; every hint has 3 prompt tokens and 2 reply tokens."""

    def __init__(self) -> None:
        self.asked: list[Situation] = []

    def hint(self, situation: Situation) -> Hint:
        self.asked.append(situation)
        return Hint(f"{situation.kind} {len(self.asked)}", None, 3, 2, 0.25)


class FailingHintModel(HintModel):
    """Fails in turns with an even number."""

    def hint(self, situation: Situation) -> Hint:
        if situation.seeds[2] % 2 == 0:
            raise ChatError("429 from the endpoint")
        return Hint("Go Right.", "Right")


def test_every_observation_but_the_final_one_has_a_hint():
    hint_model = RecordingHintModel()
    environment = HintedEnvironment(corridor, hint_model, epsilon=0.0)
    seen = [environment.reset(0)]
    results = [environment.step(right) for _ in range(3)]
    seen += [result.observation for result in results]
    assert [o.text for o in seen] == ["P__G", "_P_G", "__PG", "___*"]
    assert [o.hint for o in seen] == [*(f"Hint: exploit {n}" for n in (1, 2, 3)), ""]
    assert results[2].terminated
    assert len(hint_model.asked) == 3


def test_the_model_gets_the_agents_observations_and_replies():
    hint_model = RecordingHintModel()
    environment = HintedEnvironment(corridor, hint_model, epsilon=1.0, memory=2)
    environment.reset(4, transition_seed=9)
    for reply in (left, left, right):
        environment.step(reply)
    last = hint_model.asked[-1]
    assert last.kind == "explore"
    assert last.seeds == (4, 9, 3)
    assert last.environment is environment.environment
    assert (last.observation.text, last.observation.hint) == ("_P_G", "")
    assert [exchange.reply for exchange in last.past] == [left, right]  # the last two
    assert [e.observation.hint for e in last.past] == ["Hint: explore 2", "Hint: explore 3"]
    environment.reset(4, transition_seed=9)
    assert hint_model.asked[-1].past == ()


def test_hints_add_metrics_and_do_not_change_the_reward():
    plain = corridor()
    plain.reset(0)
    environment = HintedEnvironment(corridor, RecordingHintModel(), epsilon=1.0)
    environment.reset(0)
    wanted, found = plain.step(right), environment.step(right)
    assert found.reward == wanted.reward
    told = {k: v for k, v in found.metrics.items() if k not in wanted.metrics}
    assert told.pop("hint_seconds") >= 0
    assert told == {
        "hints": 1.0, "hints_asked": 1.0, "hint_failures": 0.0, "hint_cost": 0.25,
        "hint_prompt_tokens": 3.0, "hint_reply_tokens": 2.0, "explore_hints": 1.0,
    }  # fmt: skip
    assert {k: found.metrics[k] for k in wanted.metrics} == wanted.metrics


def test_the_metric_hints_followed_compares_the_hint_with_the_first_action():
    environment = HintedEnvironment(corridor, ScriptedHintModel(right=1.0), epsilon=0.0)
    environment.reset(0)
    assert environment.step(right).metrics["hints_followed"] == 1.0
    assert environment.step(left).metrics["hints_followed"] == 0.0
    assert environment.step(Reply("", problem="no <answer>")).metrics["hints_followed"] == 0.0


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_of_exploration_is_epsilon(epsilon: float):
    environment = HintedEnvironment(corridor, RecordingHintModel(), epsilon=epsilon)
    kinds = [environment.reset(2 * n).hint.split()[1] for n in range(2000)]
    # five standard deviations: 5 sqrt(.5 * .5 / 2000) = 0.056
    assert kinds.count("explore") / 2000 == pytest.approx(epsilon, abs=0.056)
    if epsilon in (0.0, 1.0):
        assert kinds.count("explore") == 2000 * epsilon


def test_some_turns_have_no_hint_and_epsilon_does_not_change_which():
    def hinted(epsilon: float) -> list[bool]:
        environment = HintedEnvironment(
            corridor, RecordingHintModel(), epsilon=epsilon, hint_share=0.25
        )
        return [environment.reset(2 * n).hint != "" for n in range(2000)]

    assert sum(hinted(0.1)) / 2000 == pytest.approx(0.25, abs=0.05)  # five standard deviations
    assert hinted(0.1) == hinted(0.9)


def test_members_of_a_group_get_different_hints():
    environment = HintedEnvironment(corridor, ScriptedHintModel(right=0.5), epsilon=0.5)
    assert len({environment.reset(0, transition_seed=n).hint for n in range(40)}) > 3


def test_shares_follow_the_iteration():
    environment = HintedEnvironment(
        corridor,
        RecordingHintModel(),
        epsilon=Schedule(1.0, 0.0, 2),
        hint_share=Schedule(1.0, 0.0, 10),
    )
    assert environment.reset(0).hint == "Hint: explore 1"
    environment.at_iteration(2)
    assert {environment.reset(2 * n).hint[:13] for n in range(50)} == {"Hint: exploit", ""}
    environment.at_iteration(10)
    assert {environment.reset(2 * n).hint for n in range(50)} == {""}


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(("wanted", "shown"), [(False, ""), (True, "Hint: exploit 1")])
def test_held_out_episodes_have_hints_only_if_wanted(wanted: bool, shown: str, split: Split):
    environment = HintedEnvironment(
        corridor, RecordingHintModel(), epsilon=0.0, hint_held_out=wanted
    )
    assert environment.reset(seed_of(split, 0)).hint == shown
    assert environment.step(right).metrics["hints"] == float(wanted)
    assert environment.reset(2).hint != ""


def test_initial_state_requests_no_hint():
    hint_model, plain = RecordingHintModel(), corridor()
    environment = HintedEnvironment(corridor, hint_model, hint_held_out=True)
    assert environment.initial_state(1) == plain.initial_state(1)
    assert hint_model.asked == []


def test_a_model_that_fails_gives_no_hint_and_is_counted(caplog: pytest.LogCaptureFixture):
    environment = HintedEnvironment(corridor, FailingHintModel(), epsilon=0.0)
    assert environment.reset(0).hint == ""
    results = [environment.step(left) for _ in range(4)]
    assert [r.observation.hint for r in results] == ["Hint: Go Right.", "", "Hint: Go Right.", ""]
    assert [r.metrics["hint_failures"] for r in results] == [1.0, 0.0, 1.0, 0.0]
    assert [r.metrics["hints"] for r in results] == [0.0, 1.0, 0.0, 1.0]
    assert caplog.text.count("429 from the endpoint") == 1


def test_a_model_that_fails_can_fail_the_episode():
    environment = HintedEnvironment(corridor, FailingHintModel(), on_failure="fail_episode")
    with pytest.raises(ChatError, match="429"):
        environment.reset(0)


def test_other_methods_are_those_of_the_wrapped_environment():
    plain = corridor()
    environment = HintedEnvironment(corridor, RecordingHintModel(), note="Hints may be wrong.")
    plain.reset(0)
    environment.reset(0)
    assert environment.format is environment.environment.format
    assert environment.system_prompt() == f"{plain.system_prompt()}\nHints may be wrong."
    assert (
        HintedEnvironment(corridor, RecordingHintModel(), note="").system_prompt()
        == plain.system_prompt()
    )
    assert (environment.state(), environment.oracle()) == (plain.state(), plain.oracle())
    assert environment.random_actions(Random(3)) == plain.random_actions(Random(3)) is not None
    assert environment.rubric() == plain.rubric()
    assert environment.random_actions(Random(3)) == plain.random_actions(Random(3))
    assert environment.frame().tobytes() == plain.frame().tobytes()  # pyright: ignore


def test_closing_closes_the_environment():
    closed: list[str] = []

    class Closing(toy.Countdown):
        def rubric(self) -> str:
            return "count"

        def close(self) -> None:
            closed.append("yes")

    environment = HintedEnvironment(Closing, RecordingHintModel())
    assert environment.rubric() == "count"
    environment.close()
    assert closed == ["yes"]


def test_it_replays_if_environment_and_hint_model_do():
    class NotReplaying(RecordingHintModel):
        @property
        def replays(self) -> bool:
            return False

    assert HintedEnvironment(corridor, RecordingHintModel()).replays
    assert not HintedEnvironment(corridor, NotReplaying()).replays


PROGRAM = """
from functools import partial
from vagentrl.hints import ScriptedHintModel, HintedEnvironment
from vagentrl.formats import NoThink
from vagentrl.types import Reply
from vagentrl_envs.frozen_lake import FrozenLake

lake = partial(FrozenLake, size=5, random_start=True, observation="text", format=NoThink())
environment = HintedEnvironment(lake, ScriptedHintModel(), epsilon=0.5, hint_share=0.8)
told = []
for seed in range(0, 20, 2):
    told.append(environment.reset(seed, 3 * seed).hint)
    for action in ("Up", "Left", "Down"):
        result = environment.step(Reply("", actions=(action,)))
        told.append(result.observation.hint)
        if result.terminated:
            break
print(told)
"""


def test_the_same_seeds_give_the_same_hints_in_every_process():
    told = printed_in_every_process(PROGRAM)
    assert {"Go", "Try"} < set(told.replace("'", " ").split())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.1}, "epsilon is 1.1; give a number"),
        ({"hint_share": -0.5}, "hint_share is -0.5"),
        ({"shown_as": "Hint:"}, "write {hint} where"),
        ({"memory": -1}, "memory is -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        HintedEnvironment(corridor, RecordingHintModel(), **settings)


def test_a_hint_may_contain_an_image_placeholder():
    class PlaceholderHintModel(HintModel):
        def hint(self, situation: Situation) -> Hint:
            return Hint("Look at <image>.")

    observation = HintedEnvironment(corridor, PlaceholderHintModel()).reset(0)
    assert observation.hint == "Hint: Look at <image>."
    assert observation == Observation("P__G", hint="Hint: Look at <image>.")
