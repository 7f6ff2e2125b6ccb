import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagentrl.errors import ConfigError
from vagentrl.formats import (
    FreeThink,
    Grounding,
    NoThink,
    ReplyFormat,
    TransitionModeling,
    WorldModeling,
)
from vagentrl.types import State

STATE = State(natural="the box is above", structured='{"box":[1,2]}', symbolic="#_#")
LATER = State(natural="the box is below", structured='{"box":[3,2]}', symbolic="__#")
FORMATS = [NoThink, FreeThink, Grounding, TransitionModeling, WorldModeling]

SEEN, NEXT = "<observation>a</observation>", "<prediction>b</prediction>"
ANSWER = "<answer>Up</answer>"


@pytest.mark.parametrize(
    ("format", "text", "problem"),
    [
        (NoThink(), "", "no <answer>"),
        (NoThink(), "Up", "no <answer>"),
        (NoThink(), "<answer>Up", "<answer> is not closed"),
        (NoThink(), "Up</answer>", "no <answer>"),
        (NoThink(), "<answer></answer>", "<answer> is empty"),
        (NoThink(), "<answer> , </answer>", "<answer> is empty"),
        (NoThink(), f"<think>a</think>{ANSWER}", "text before <answer>"),
        (NoThink(), f"{ANSWER} done", "text after </answer>"),
        (NoThink(), f"{ANSWER}{ANSWER}", "more than one <answer>"),
        (NoThink(), f"{ANSWER}</answer>", "more than one <answer>"),
        (NoThink(), "</answer>Up<answer>", "</answer> is out of place"),
        (FreeThink(), ANSWER, "no <think>"),
        (FreeThink(), "<think>so it goes on and on", "<think> is not closed"),
        (FreeThink(), f"<think>a{ANSWER}", "<think> is not closed"),
        (FreeThink(), "<think>a</think>", "no <answer>"),
        (FreeThink(), f"{ANSWER}<think>a</think>", "<answer> is out of place"),
        (FreeThink(), f"<think>a{ANSWER}</think>", "<answer> is out of place"),
        (FreeThink(), f"well <think>a</think>{ANSWER}", "text before <think>"),
        (FreeThink(), f"<think>a</think> so {ANSWER}", "text between </think> and <answer>"),
        (FreeThink(), f"<think>a</think>{ANSWER}.", "text after </answer>"),
        (Grounding(), f"<think>a</think>{ANSWER}", "no <observation>"),
        (Grounding(), f"<think><observation>a</think>{ANSWER}", "<observation> is not closed"),
        (Grounding(), f"<think>{SEEN}{SEEN}</think>{ANSWER}", "more than one <observation>"),
        (Grounding(), f"{SEEN}<think>a</think>{ANSWER}", "<observation> is out of place"),
        (
            Grounding(),
            f"<think><observation> </observation></think>{ANSWER}",
            "<observation> is empty",
        ),
        (TransitionModeling(), f"<think>{SEEN}</think>{ANSWER}", "no <prediction>"),
        (WorldModeling(), f"<think>{SEEN}</think>{ANSWER}", "no <prediction>"),
        (WorldModeling(), f"<think>{NEXT}{SEEN}</think>{ANSWER}", "<prediction> is out of place"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_executed(
    format: ReplyFormat, text: str, problem: str
):
    reply = format.parse(text)
    assert reply.problem == problem
    assert reply.actions == ()
    assert reply.text == text


def test_whitespace_around_tags_does_not_matter():
    reply = WorldModeling().parse(
        f"\n <think>\n {SEEN} \n so\n{NEXT}\n</think>\n\n<answer> Up , Left </answer>\n"
    )
    assert reply.problem is None
    assert reply.actions == ("Up", "Left")
    assert (reply.observation_claim, reply.thought, reply.prediction_claim) == ("a", "so", "b")


def test_the_thought_is_what_is_left_without_the_claims():
    reply = WorldModeling().parse(f"<think>x {SEEN} y {NEXT} z</think>{ANSWER}")
    assert reply.thought == "x y z"


def test_an_empty_thought_is_well_formed():
    assert FreeThink().parse(f"<think></think>{ANSWER}").thought == ""


def test_a_format_without_thinking_has_no_thought():
    assert NoThink().parse(ANSWER).thought is None


def test_claims_of_another_format_are_part_of_the_thought():
    reply = FreeThink().parse(f"<think>{SEEN}</think>{ANSWER}")
    assert (reply.thought, reply.observation_claim) == (SEEN, None)


def test_without_a_separator_the_answer_is_one_action():
    assert NoThink(action_separator=None).parse("<answer>a, b</answer>").actions == ("a, b",)


@pytest.mark.parametrize("format", FORMATS)
def test_the_template_in_the_instructions_is_well_formed(format: type[ReplyFormat]):
    lines = format().instructions(actions_per_turn=2, state_schema="...").splitlines()
    assert format().parse(lines[1]).problem is None
    assert format().parse(lines[1]).actions == ("action", "action")


def test_instructions_name_the_schema_only_where_states_are_written():
    assert "SCHEMA" in Grounding("structured").instructions(1, "SCHEMA")
    assert "SCHEMA" not in FreeThink().instructions(1, "SCHEMA")


plain = st.text(st.characters(exclude_characters="<>,", exclude_categories=("Cs",)), max_size=20)
word = plain.map(str.strip).filter(bool)
states = st.builds(State, word, word, word)


@pytest.mark.parametrize("format", FORMATS)
@given(
    actions=st.lists(word, min_size=1, max_size=4),
    thought=plain,
    seen=states,
    later=states,
    state=st.sampled_from(["natural", "structured", "symbolic"]),
)
def test_what_is_written_is_read_back(format, actions, thought, seen, later, state):
    claims = "observation" in format.claims or "prediction" in format.claims
    format = format(state=state) if claims else format()
    reply = format.parse(format.write(actions, observation=seen, prediction=later, thought=thought))
    assert reply.problem is None
    assert reply.actions == tuple(actions)
    assert reply.thought == (thought.strip() if format.thinks else None)
    wanted_seen = getattr(seen, state) if "observation" in format.claims else None
    wanted_later = getattr(later, state) if "prediction" in format.claims else None
    assert (reply.observation_claim, reply.prediction_claim) == (wanted_seen, wanted_later)


tags = [f"<{slash}{name}>" for slash in ("", "/") for name in
        ("think", "answer", "observation", "prediction")]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@given(pieces=st.lists(st.sampled_from([*tags, "Up", ",", " ", "\n"]), max_size=14))
def test_every_text_is_either_well_formed_or_has_a_named_problem(format, pieces):
    reply = format().parse("".join(pieces))
    assert (reply.problem is None) == bool(reply.actions)


def test_parsing_takes_time_in_proportion_to_the_length():
    hostile = "<think>" * 50_000 + "<observation><" * 50_000
    started = time.perf_counter()
    assert WorldModeling().parse(hostile).problem == "<think> is not closed"
    assert time.perf_counter() - started < 2  # quadratic would take minutes


@pytest.mark.parametrize("action", ["", "Up,Down", "</answer>", "<think>"])
def test_writing_what_could_not_be_read_back_is_refused(action: str):
    with pytest.raises(ConfigError, match="cannot carry"):
        FreeThink().write([action])


def test_writing_a_claim_takes_a_state():
    with pytest.raises(ConfigError, match="prediction=State"):
        WorldModeling().write(["Up"], observation=STATE)
    text = WorldModeling("symbolic").write(["Up"], observation=STATE, prediction=LATER)
    assert "<observation>#_#</observation>" in text
    assert "<prediction>__#</prediction>" in text


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="state is 'poem'"):
        Grounding("poem")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="action_separator is empty"):
        NoThink(action_separator="")
