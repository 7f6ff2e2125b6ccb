"""How often a judge agrees with the exact one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.claims_toy import ClaimsCountdown
from tests.judges.models import claim
from vagentrl.claims import JudgementLog
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.cli.main import main
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.evaluation.judge_agreement import Agreement, Row, compare
from vagentrl.evaluation.labelled_claims import (
    FORMS,
    LabelledClaim,
    play_claims,
    read_claims,
)
from vagentrl.types import State
from vagentrl_envs.frozen_lake import FrozenLake
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.exact_state import ExactState

ALL = ("natural", "structured", "symbolic")


class Says(Judge):
    """Gives the score that the claim says, or fails as it says."""

    def __init__(self) -> None:
        self.spent, self.most_at_once, self.closed, self._at_once = 0.0, 0, False, 0

    async def judge(self, claim: Claim) -> float:
        self.spent += 2.0
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        match claim.text:
            case "unread":
                raise JudgeError("cannot read this", caused_by_claim=True)
            case "broken":
                raise ValueError("oops")
            case "down":
                raise JudgeError("nobody there")
            case "slow":
                await asyncio.sleep(60)
        return float(claim.text)

    def metrics(self) -> dict[str, float]:
        return {"cost": self.spent}

    async def close(self) -> None:
        self.closed = True


def labelled(*pairs: tuple[str, float | None], form: str = "file") -> list[LabelledClaim]:
    return [
        LabelledClaim(claim(text), form, str(n), label) for n, (text, label) in enumerate(pairs)
    ]


def measured(*pairs: tuple[str, float | None], **settings: Any) -> Agreement:
    return compare(Says(), ExactState(), labelled(*pairs), **settings)


def share(agreement: Agreement, name: str) -> float:
    return getattr(agreement.rows[0], name).share


# ----------------------------------------------------------------------------------------- counting


def test_rates_are_shares_of_right_and_of_wrong_claims():
    # right claims: accepted, accepted, refused; wrong claims: accepted, refused
    found = measured(("1", 1), ("1", 1), ("0", 1), ("1", 0), ("0", 0))
    assert (found.rows[0].number, found.rows[0].right) == (5, 3)
    assert share(found, "accuracy") == pytest.approx(3 / 5)
    assert share(found, "false_accepts") == pytest.approx(1 / 2)
    assert share(found, "false_refusals") == pytest.approx(1 / 3)
    assert found.rows[0].error == pytest.approx(2 / 5)


def test_intervals_are_wilsons_for_independent_claims():
    # 1 of 2 with z = 1.96: (0.5 + 0.9604) / 2.9208 = 0.5, half 1.96 * sqrt(0.125 + 0.2401) / 2.9208
    rate = measured(("1", 0), ("0", 0)).rows[0].false_accepts
    assert rate is not None
    assert (rate.low, rate.high) == pytest.approx((0.0945, 0.9055), abs=1e-4)


def test_claims_of_one_episode_count_as_fewer():
    alone = labelled(*[("1", 1)] * 8)
    episode = [LabelledClaim(each.claim, "file", str(n // 4), 1) for n, each in enumerate(alone)]
    wide, narrow = (compare(Says(), ExactState(), each).rows[0] for each in (episode, alone))
    assert wide.accuracy is not None and narrow.accuracy is not None
    assert wide.accuracy.low < narrow.accuracy.low


def test_a_score_counts_as_right_from_accept_on():
    assert share(measured(("0.6", 1.0)), "accuracy") == 0.0
    assert share(measured(("0.6", 1.0), accept=0.5), "accuracy") == 1.0
    assert share(measured(("0.6", 0.5), accept=0.5), "accuracy") == 1.0
    assert measured(("0.6", 0.5)).rows[0].error == pytest.approx(0.1)


def test_a_claim_that_the_judge_cannot_read_counts_as_refused():
    found = measured(("unread", 1), ("broken", 0), ("1", 1)).rows[0]
    assert (found.number, found.unreadable, found.unanswered) == (3, 2, 0)
    assert found.false_refusals is not None and found.false_refusals.share == 1 / 2
    assert found.false_accepts is not None and found.false_accepts.share == 0


def test_a_claim_without_an_answer_does_not_count():
    found = measured(("1", 1), ("down", 1), ("slow", 1), timeout_s=0.2)
    assert (found.rows[0].number, found.rows[0].unanswered) == (1, 2)
    assert share(found, "false_refusals") == 0.0
    assert found.failure == "JudgeError: nobody there"
    assert "The first failure: JudgeError: nobody there" in str(found)


def test_a_judge_that_answers_none_of_the_first_claims_is_asked_no_more():
    judge = Says()
    with pytest.raises(JudgeError, match=r"none of the first 2 claims.*nobody there"):
        compare(judge, ExactState(), labelled(*[("down", 1)] * 9), at_once=2)
    assert judge.spent == 4.0 and judge.closed


def test_claims_without_a_label_get_the_exact_judges():
    judge = Says()
    truth, other = claim().text, "the player is at row 0, column 0"
    claims = [LabelledClaim(claim(text), "file", text) for text in (truth, other)]
    found = compare(ExactState(), ExactState(), claims).rows[0]
    assert (found.right, found.number, share_of(found)) == (1, 2, 1.0)
    assert judge.spent == 0


def share_of(row: Row) -> float:
    assert row.accuracy is not None
    return row.accuracy.share


def test_claims_that_nobody_can_label_are_left_out_and_told():
    broken = State("one", "not JSON", "x")
    unknown = LabelledClaim(claim("1", "structured", broken), "file", "x")
    found = compare(Says(), ExactState(), [*labelled(("1", 1), ("0", None)), unknown])
    assert (found.unlabelled, found.rows[0].number) == (1, 2)
    assert "1 claims have no label" in str(found)


def test_the_price_of_a_claim_is_the_judges_own_count():
    judge = Says()
    judge.spent = 100.0  # before
    found = compare(judge, ExactState(), labelled(("1", 1), ("0", 1)), at_once=1)
    assert found.metrics == {"cost": 2.0} and found.seconds > 0
    assert judge.most_at_once == 1 and judge.closed
    assert "2 cost" in str(found)


def test_without_right_claims_there_is_no_rate_of_false_refusals():
    found = measured(("0", 0))
    assert found.rows[0].false_refusals is None
    assert json.loads(json.dumps(found.record()))["rows"][0]["accuracy"]["share"] == 1.0


@pytest.mark.parametrize("accept", [0.0, 1.1])
def test_an_accepting_score_outside_its_range_is_refused(accept: float):
    with pytest.raises(ConfigError, match="give a score above 0"):
        measured(("1", 1), accept=accept)


# ------------------------------------------------------------------------------------ made claims


@pytest.mark.parametrize("play", ["random", "oracle"])
@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_the_exact_judge_takes_true_forms_for_right_and_all_others_for_wrong(
    kind: type[Environment], play: Any
):
    claims = play_claims(kind(), episodes=3, turns=2, representations=ALL, play=play)
    assert {each.form for each in claims} == set(FORMS)
    assert {each.claim.kind for each in claims} == {"observation", "prediction"}
    rows = {row.name: row for row in compare(ExactState(), ExactState(), claims).rows}
    for representation in ALL:
        for form in FORMS:
            row = rows[f"{representation}, {form}"]
            assert row.right == (row.number if form in ("true", "reworded") else 0), row.name


def test_one_change_is_a_small_one():
    claims = play_claims(
        FrozenLake(), episodes=3, turns=2, representations=["structured"], play="random"
    )
    changed = [each.claim for each in claims if each.form == "one change"]
    scores = [asyncio.run(ExactState()(each)).score for each in changed]
    assert scores and all(0.5 < score < 1 for score in scores)


def test_predictions_are_about_the_state_after_and_the_wrong_state_is_the_one_before():
    # The oracle moves in every turn, so the state changes.
    claims = play_claims(
        FrozenLake(slip=0.0), episodes=4, turns=2, representations=["natural"], play="oracle"
    )
    predictions = [each for each in claims if each.claim.kind == "prediction"]
    stay = [each.claim for each in predictions if each.form == "another state"]
    assert stay and all(c.before is not None and c.before != c.state for c in stay)
    assert all(c.before is not None and c.text == c.before.natural for c in stay)


def test_the_same_seed_makes_the_same_claims():
    def make(seed: int) -> list[LabelledClaim]:
        return play_claims(
            FrozenLake(), episodes=2, turns=1, representations=ALL, play="random", seed=seed
        )

    assert make(1) == make(1) != make(2)


def test_an_environment_without_states_cannot_be_judged():
    with pytest.raises(ConfigError, match=r"state\(\) of ClaimsCountdown is None"):
        hidden = ClaimsCountdown(hides_state=True)
        play_claims(hidden, episodes=1, turns=1, representations=ALL, play="random")


def test_pictures_go_with_the_claims_that_they_show():
    pictured = FrozenLake(observation="image")
    claims = play_claims(pictured, episodes=1, turns=1, representations=["natural"], play="random")
    assert all(len(each.claim.images) == 1 for each in claims)


# ------------------------------------------------------------------------------- claims of a file


def line(**fields: Any) -> str:
    given = {"claim": "1", "representation": "natural", "truth": "all is well"}
    return json.dumps({k: v for k, v in (given | fields).items() if v is not None})


def test_a_file_holds_labelled_claims(tmp_path: Path):
    state = {"natural": "a", "structured": "{}", "symbolic": "x"}
    file = tmp_path / "claims.jsonl"
    lines = [line(label=True, kind="prediction"), "", line(state=state, environment="e", seed=3)]
    file.write_text("\n".join(lines))
    first, second = read_claims(str(file))
    assert (first.label, first.claim.kind, first.group) == (1.0, "prediction", "line 1")
    assert first.claim.state == State("all is well", "", "")
    assert (second.label, second.claim.truth, second.group) == (None, "a", "e 3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 of"),
        ("[1]", "give a JSON object"),
        (line(claim=3), "claim is 3"),
        (line(kind="guess"), "kind is 'guess'"),
        (line(representation="words"), "representation is 'words'"),
        ('{"claim": "1"}', "representation is None"),
        (line(representation=[]), "representation is"),
        (line(label=2), "label is 2"),
        (line(label="right"), "label is 'right'"),
        (line(truth=7), "no true state"),
        (line(state={"symbolic": "x"}), "no true state"),
        (line(state={"natural": "x", "symbolic": 3}), "each representation as a string"),
        (line(rubric=4), "rubric is 4"),
        ("\n", "no claims"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str, tmp_path: Path):
    file = tmp_path / "claims.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_claims(str(file))


def test_a_file_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl cannot be read"):
        read_claims(str(tmp_path / "nowhere.jsonl"))


def test_a_runs_journal_can_be_judged_again(tmp_path: Path):
    judged = Judgement(claim("the box is gone", "natural", rubric="all counts"), Verdict(0.0))
    JudgementLog(share=1.0).write(tmp_path, {"environment": "e", "seed": 3}, [(judged, False)])
    [again] = read_claims(str(tmp_path / "judgements.jsonl"))
    assert again.claim == judged.claim and again.label is None


# ------------------------------------------------------------------------------------- the command

RELATIONS = ["judge-agreement", "--judge", "vagentrl_judges.relation_f1.RelationF1"]


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]):
    main([*RELATIONS, "--env", "vagentrl_envs.frozen_lake.FrozenLake", "--episodes", "1"])
    told = capsys.readouterr().out
    assert "| structured, one change |" in told and "s per claim" in told
    assert "its setting symbols" in told  # why RelationF1 has no answer to grids


def test_the_command_reads_a_file_and_prints_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "claims.jsonl"
    truth = '{"player":[1,2]}'
    file.write_text(
        line(claim=truth, representation="structured", truth=truth)
        + "\n"
        + line(claim="{}", representation="structured", truth=truth, label=1)
    )
    main([*RELATIONS, "--claims", str(file), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["judge"].startswith("RelationF1") and told["rows"][0]["number"] == 2
    assert told["rows"][0]["accuracy"]["share"] == 0.5  # the second label is a wrong one


def test_the_command_wants_one_source_of_claims():
    with pytest.raises(SystemExit, match="give one of --env, --config and --claims"):
        main(RELATIONS)
