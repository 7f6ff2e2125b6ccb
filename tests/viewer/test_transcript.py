from dataclasses import replace

from tests import toy
from vagentrl.types import Claim, Observation, State
from vagentrl.viewer.transcript import MOST_CHARACTERS, MOST_TURNS, transcript


def test_a_transcript_says_what_was_seen_said_and_earned():
    # from 1 left: a wait costs 0.25, then the go ends the episode with 1
    played = toy.play([toy.WAIT, toy.GO], seed=4, group_id=2)
    assert transcript(played) == (
        "**environment toy, seed 4, group 2, policy version 7: terminated, success, "
        "return +0.75**\n"
        "\n**turn 1**: reward -0.25\n"
        "\n    1 left, luck 0\n"
        "\nreply\n\n    <answer>wait</answer>\n"
        "\n**turn 2**: reward +1.00\n"
        "\n    1 left, luck 0\n"
        "\nreply\n\n    <answer>go</answer>\n"
        "\n**terminated**\n\n    0 left, luck 0\n"
    )


def test_hints_flaws_claims_and_verdicts_are_told():
    [turn] = toy.play([toy.GO], seed=0).turns
    state = State("1 is left", "{}", "x")
    claims = (
        Claim("observation", "2 are left", "natural", state),
        Claim("prediction", "0 are left", "natural", state),
    )
    told = replace(
        turn,
        observation=replace(turn.observation, hint="Hint: Say go."),
        reply=replace(turn.reply, problem="no <answer>"),
        finish="length",
        bonus=0.5,
        claims=claims,
        scores={"observation": 0.25},
    )
    text = transcript(replace(toy.play([toy.GO], seed=0), turns=(told,)))
    assert "**turn 1**: reward +1.00, bonus +0.50\n" in text
    assert "\nhint\n\n    Hint: Say go.\n" in text
    assert "\nreply, cut off by the token limit\n\n    <answer>go</answer>\n" in text
    assert "\nmalformed\n\n    no <answer>\n" in text
    assert (
        "\nobservation claim: score 0.25\n\n    claims: 2 are left\n    truth:  1 is left\n" in text
    )
    assert "\nprediction claim: no verdict\n\n    claims: 0 are left\n" in text


def test_no_reply_can_leave_its_block_of_code():
    [turn] = toy.play([toy.GO], seed=0).turns
    hostile = "```\n# a heading\n\n<script>\r**bold**\u2028| a | b |"
    reply = replace(turn.reply, text=hostile)
    text = transcript(replace(toy.play([toy.GO], seed=0), turns=(replace(turn, reply=reply),)))
    lines = text.splitlines()
    for piece in ("```", "# a heading", "<script>", "**bold**", "| a | b |"):
        assert [line for line in lines if piece in line] == [f"    {piece}"]


def test_of_a_long_episode_the_middle_turns_are_left_out():
    played = replace(toy.play([toy.WAIT] * 30, turn_limit=30), earlier_turns=10)
    text = transcript(played)
    # turns 11 to 40, of which the first and the last 12 are shown
    assert text.count("**turn ") == MOST_TURNS == 24
    assert "*turns 23 to 28 are left out*" in text
    assert "**turn 22**" in text and "**turn 23**" not in text and "**turn 29**" in text


def test_of_a_long_text_the_middle_is_left_out():
    played = toy.play([toy.GO], seed=0)
    long = Observation("a" * MOST_CHARACTERS + "b" * 500)
    text = transcript(replace(played, final_observation=long))
    assert "[… 500 characters left out …]" in text
    assert f"    {'a' * 1000}\n" in text and f"    {'a' * 500}{'b' * 500}\n" in text


def test_a_failed_episode_without_turns_still_says_why():
    failed = replace(
        toy.play([], seed=0), stop="failed", error="EnvError: no water", final_observation=None
    )
    assert transcript(failed) == (
        "**environment toy, seed 0, group 0: failed, no success, return +0.00, "
        "EnvError: no water**\n"
    )
