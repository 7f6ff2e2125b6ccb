import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.claims.claims import judgement
from vagentrl.claims import JudgementLog
from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError


def written(folder: Path) -> list[dict[str, Any]]:
    path = folder / "judgements.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_line_has_the_claim_the_truth_and_the_verdicts(tmp_path: Path):
    log = JudgementLog(share=1.0)
    judged = judgement("the box is\nleft “so”", 0.5, second=1.0)
    truth = "the box is 2 below the player"
    state = {"natural": truth, "structured": truth, "symbolic": truth}
    stated = {"truth": truth, "representation": "natural", "state": state, "rubric": ""}
    log.write(tmp_path / "run", {"turn": 3}, [(judged, True)])
    log.write(tmp_path / "run", {"turn": 4}, [(judgement("fine", 1.0), False)])
    assert written(tmp_path / "run") == [
        {
            "turn": 3, "kind": "observation", "claim": "the box is\nleft “so”",
            "score": 0.5, "reason": "", **stated,
            "second_score": 1.0, "second_reason": "", "differ": True,
        },
        {
            "turn": 4, "kind": "observation", "claim": "fine",
            "score": 1.0, "reason": "", **stated,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "differs"),
    [
        (Judgement(judgement("x", 0).claim, failure="JudgeError: no"), False),
        (replace(judgement("x", 0.0), filtered=True), False),
        (replace(judgement("x", 0.0), penalty=0.5), False),
        (judgement("x", 1.0, second=0.0), True),
    ],
    ids=["failure", "filtered", "penalised", "differing"],
)
def test_failed_filtered_penalised_and_disputed_claims_are_always_written(
    odd: Judgement, differs: bool, tmp_path: Path
):
    JudgementLog(share=0.0).write(tmp_path, {}, [(odd, differs), (judgement("x", 1.0), False)])
    [line] = written(tmp_path)
    assert line["claim"] == "x"


def test_a_failure_has_no_score(tmp_path: Path):
    failed = Judgement(judgement("x", 0).claim, failure="JudgeError: no answer")
    JudgementLog().write(tmp_path, {}, [(failed, False)])
    [line] = written(tmp_path)
    assert (line["score"], line["reason"]) == (None, "JudgeError: no answer")


def test_of_the_other_claims_the_given_share_is_written(tmp_path: Path):
    judged = [(judgement(f"claim {n}", 1.0), False) for n in range(1000)]
    JudgementLog(share=0.2).write(tmp_path, {}, judged)
    assert len(written(tmp_path)) / 1000 == pytest.approx(0.2, abs=0.05)  # four standard deviations
    with pytest.raises(ConfigError, match="share is 2"):
        JudgementLog(share=2)
