"""Every check must find the mistake that it is for, and none in a sound environment."""

import os
import random
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.checkenv import toys, unruly
from vagentrl.checkenv.agreement import check_agreement
from vagentrl.checkenv.bench import Bench
from vagentrl.checkenv.contract import check_contract, check_misuse
from vagentrl.checkenv.effort import Effort
from vagentrl.checkenv.hostile import HOSTILE, answer_hostile
from vagentrl.checkenv.initial_states import check_initial_states
from vagentrl.checkenv.process import check_process
from vagentrl.checkenv.report import Checked, Finding
from vagentrl.checkenv.resources import check_close, check_memory
from vagentrl.checkenv.skill import check_skill
from vagentrl.checkenv.traces import check_group, check_independence
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, EnvError
from vagentrl_judges.exact_state import ExactState

EFFORT = Effort(episodes=24, states=48, plays=20, seconds=2, patience_s=5)

Check = Callable[[Bench], Checked]
CHECKS: list[Check] = [
    check_contract,
    check_misuse,
    check_independence,
    check_group,
    check_initial_states,
    check_agreement,
    check_skill,
    check_memory,
    check_close,
    check_process,
]


@pytest.fixture(autouse=True)
def _process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what environments change in this process."""
    monkeypatch.chdir(".")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    handler = signal.getsignal(signal.SIGINT)
    generators = random.getstate(), np.random.get_state()
    yield
    signal.signal(signal.SIGINT, handler)
    random.setstate(generators[0])
    np.random.set_state(generators[1])


def bench(kind: type[Environment]) -> Bench:
    return Bench(kind, EFFORT, ExactState())


def failures(kind: type[Environment], check: Check) -> dict[str, Finding]:
    found = check(bench(kind)).findings
    return {finding.check: finding for finding in found if finding.verdict == "fail"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_is_wrong_with_a_sound_environment(check: Check):
    assert failures(toys.Corridor, check) == {}


@pytest.mark.parametrize("check", [check_independence, check_group, check_skill])
def test_luck_on_the_way_is_no_mistake(check: Check):
    assert failures(toys.Slippery, check) == {}


@pytest.mark.parametrize(
    ("kind", "check", "name", "seen"),
    [
        (toys.ChangingPrompt, check_contract, "system prompt", "different ones under 5 seeds"),
        (toys.EndsTwice, check_contract, "ends of episodes", "both terminated and truncated"),
        (toys.HalfSuccess, check_contract, "ends of episodes", "metrics['success'] is 0.5"),
        (toys.SeparatorInAction, check_contract, "actions in replies", "search[red, green]"),
        (toys.AnswersBeforeReset, check_misuse, "step before reset", "an answer"),
        (toys.AnswersAfterTheEnd, check_misuse, "step after the end", "an answer"),
        (toys.KeepsItsPlace, check_misuse, "reset in the middle", "the same seed starts with"),
        (toys.OneGeneratorForAll, check_independence, "earlier episodes", "turn "),
        (toys.GlobalGenerator, check_independence, "neighbours", "turn "),
        (toys.StartsByLuck, check_group, "members of a group", "transition seeds 1 and 2: text"),
        (toys.OneStart, check_initial_states, "initial states", "1 / 1 / 1 different ones"),
        (toys.OneStart, check_initial_states, "splits", "training draws 1 of the held-out"),
        (toys.SharedStarts, check_initial_states, "splits", "of the held-out initial states"),
        (toys.NotJson, check_agreement, "state", "structured is"),
        (toys.StateNowAndThen, check_agreement, "state", "None in some turns"),
        (toys.FrozenState, check_agreement, "state and observation", "the state does not"),
        (toys.StateWithTags, check_agreement, "claims, natural", "cannot carry"),
        (toys.NamesAFieldTwice, check_agreement, "claims, structured", "named twice"),
        (toys.GreyPicture, check_agreement, "images", "its mode is L"),
        (toys.BlackPicture, check_agreement, "images", "a single colour"),
        (toys.OldFrame, check_agreement, "frame", "the same picture of"),
        (toys.WrongOracle, check_skill, "oracle", "the episode goes on after all 2 actions"),
        (toys.OracleTooLate, check_skill, "oracle", "a limit ended the episode after 40 turns"),
        (toys.AlwaysRight, check_skill, "constant reply", "<answer>Right</answer>"),
        (toys.SameWay, check_skill, "fixed plan", "100% (1.00)"),
        (unruly.RemembersEpisodes, check_memory, "memory", "KiB of Python objects"),
        (unruly.RemembersPictures, check_memory, "memory", "KiB of the process"),
        (unruly.LeavesAThread, check_close, "close", "6 threads"),
        (unruly.LeavesAProcess, check_close, "close", "9 children, 9 files"),
        (unruly.LeavesAFile, check_close, "close", "6 files"),
        (unruly.LeavesAFileAReset, check_close, "close", "6 files"),
        (unruly.LeavesAFolder, check_close, "close", "6 temporary files"),
        (toys.SamePicture, check_agreement, "images", "the same in"),
        (toys.OneCanvas, check_agreement, "images", "was painted over"),
        (toys.EndsTwiceInSuccess, check_contract, "ends of episodes", "both terminated and"),
        (toys.NamelessStates, check_initial_states, "initial states", "for one seed differ"),
        (unruly.SeedsNumpy, check_process, "rest of the process", "the generator of numpy.random"),
        (unruly.DrawsFromRandom, check_process, "rest of the process", "the generator of `random`"),
        (unruly.ChangesFolder, check_process, "rest of the process", "the current folder"),
        (unruly.ChangesVariables, check_process, "rest of the process", "variables of the"),
        (unruly.IgnoresInterrupts, check_process, "rest of the process", "handlers of signals"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_mistake_is_found(kind: type[Environment], check: Check, name: str, seen: str):
    found = failures(kind, check)
    assert name in found
    assert seen in found[name].seen
    assert found[name].wanted
    assert found[name].advice


@pytest.mark.parametrize(
    ("kind", "check", "message"),
    [
        (
            unruly.ListAsPlan,
            check_skill,
            r"ListAsPlan.oracle .*; return a tuple of strings",
        ),
        (unruly.TextAsActions, check_contract, "TextAsActions.random_actions returned 'Left'"),
        (unruly.DictAsState, check_agreement, r"DictAsState.state returned \{.*return State"),
        (unruly.ArrayAsFrame, check_agreement, "ArrayAsFrame.frame returned .*return a PIL image"),
        (unruly.NumberedMetrics, check_contract, "with a metric named 3"),
        (unruly.HugeReward, check_skill, r"the reward is 1e\+39"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_cannot_be_used_is_named(kind: type[Environment], check: Check, message: str):
    with pytest.raises(EnvError, match=message):
        check(bench(kind))


def test_a_metric_that_is_no_number_equals_itself():
    assert failures(unruly.MetricNan, check_independence) == {}


def test_a_broken_oracle_makes_no_other_play_as_good():
    assert set(failures(toys.OracleTooLate, check_skill)) == {"oracle"}


def test_a_bounded_cache_is_no_leak_whatever_is_in_it():
    assert failures(unruly.KeepsTheLatest, check_memory) == {}


def test_a_leak_grows_all_the_time_and_a_cache_does_not():
    many = Effort(episodes=600, states=8, plays=2, seconds=120, patience_s=20)
    (sound,) = check_memory(Bench(unruly.KeepsSomeLarge, many)).findings
    (leak,) = check_memory(Bench(unruly.RemembersSeeds, many)).findings
    assert "over 300 episodes after 300" in sound.seen and "over 300" in leak.seen
    assert (sound.verdict, leak.verdict) == ("pass", "fail")
    kilobytes = float(sound.seen.partition(" ")[0])
    assert kilobytes > 5  # more than the leak's


def test_an_episode_that_never_ends_is_an_error_of_the_environment():
    with pytest.raises(EnvError, match="not ended after 20000 turns"):
        check_contract(bench(toys.Endless))


def test_closing_twice_must_not_fail():
    with pytest.raises(OSError, match="Bad file descriptor"):
        check_close(bench(unruly.ClosesOnce))


def test_a_sound_environment_answers_every_hostile_reply():
    sound = bench(toys.Corridor)
    assert [answer_hostile(sound, name) for name in HOSTILE] == [None] * len(HOSTILE)


def test_an_environment_that_quotes_the_agent_lets_it_place_images():
    with pytest.raises(EnvError, match=r"an image placeholder as the whole reply: .*1 <image>"):
        answer_hostile(bench(toys.Echo), "an image placeholder")


def test_an_answer_must_not_repeat_a_reply_at_any_length():
    problem = answer_hostile(bench(toys.BoundedEcho), "a million letters")
    assert problem is not None
    assert "the answer has 1,048,586 characters" in problem


def test_what_play_earns_is_measured():
    skill = check_skill(bench(toys.Corridor)).skill
    assert skill is not None
    assert skill.oracle is not None
    assert skill.random is not None
    assert (skill.oracle.success, skill.oracle.mean_return) == (1.0, 1.0)
    assert skill.random.success is not None
    assert 0 < skill.random.success < 0.9
    assert skill.characters == len("You are at 10, the flag is at 20.")
    assert skill.pixels is None


def test_a_lucky_environments_oracle_is_asked_in_every_turn():
    finding = check_skill(bench(toys.Slippery)).findings[0]
    assert (finding.check, finding.verdict) == ("oracle", "pass")
    assert "asked in every turn" in finding.seen


@pytest.mark.parametrize("name", ["episodes", "seconds"])
def test_effort_must_be_positive(name: str):
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        Effort(**{name: 0})
