"""Environments are checked in processes of their own, which may crash, hang or exit."""

from pathlib import Path

import pytest
import yaml

from tests.checkenv import toys, unruly
from vagentrl.checkenv import TABLE_HEAD, Effort, Report, check_environment
from vagentrl.checkenv import checker as checker_module
from vagentrl.checkenv.bench import Bench
from vagentrl.checkenv.hostile import HOSTILE, answer_hostile
from vagentrl.checkenv.provenance import extra_and_licence
from vagentrl.cli.main import main
from vagentrl.environment import Environment
from vagentrl.errors import EnvError

BRIEF = Effort(episodes=4, states=12, plays=2, seconds=0.2, patience_s=20)


def verdicts(report: Report) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in report.findings}


def report_on(kind: type[Environment], effort: Effort = BRIEF) -> Report:
    return check_environment(kind, kind.__name__, effort)


def only(monkeypatch: pytest.MonkeyPatch, checks: set[str], hostile: set[str]) -> None:
    """Run some of the checks, and give some of the hostile replies."""
    chosen = {n: check for n, check in checker_module.CHECKS.items() if n in checks}
    monkeypatch.setattr(checker_module, "CHECKS", chosen)
    monkeypatch.setattr(checker_module, "HOSTILE", {n: HOSTILE[n] for n in hostile})


@pytest.mark.parametrize("kind", [toys.HashSeeded, toys.SeldomHashSeeded])
def test_an_environment_that_depends_on_the_hash_seed_is_found(
    kind: type[toys.Corridor], monkeypatch: pytest.MonkeyPatch
):
    only(monkeypatch, set(), {"empty"})
    report = report_on(kind)
    assert not report.sound
    assert verdicts(report)["the same in two processes"] == "fail"
    assert "text is" in report.findings[0].seen


def test_a_segfault_fails_its_check_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, {"contract", "initial states"}, {"empty"})
    report = report_on(unruly.Segfaults)
    assert verdicts(report)["contract"] == "fail"
    assert "SIGSEGV" in report.findings[0].seen
    assert verdicts(report)["splits"] == "pass"


def test_a_hang_fails_its_check(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, {"skill"}, {"empty"})
    report = report_on(unruly.Hangs, Effort(4, 12, 2, seconds=0.2, patience_s=1.0))
    assert verdicts(report)["skill"] == "fail"
    assert "no answer within 1.2 s" in report.findings[0].seen


def test_one_that_hangs_in_every_call_is_asked_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checker_module, "STARTUP_S", 20)
    asked = {"contract", "misuse", "skill", "memory"}
    only(monkeypatch, asked, set(HOSTILE))
    report = report_on(unruly.HangsAtOnce, Effort(4, 12, 2, seconds=0.2, patience_s=0.5))
    told = [(finding.check, finding.verdict) for finding in report.findings]
    assert told == [
        ("contract", "fail"), ("misuse", "fail"), ("skill", "not checked"),
        ("memory", "not checked"), ("the same in two processes", "not checked"),
        ("rest of the process", "not checked"), ("hostile replies", "not checked"),
    ]  # fmt: skip
    assert "it has hung too often" in report.findings[-1].seen


def test_one_mistake_is_told_once(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, {"contract", "misuse", "members of a group"}, set())
    first, *others = report_on(unruly.NoPicture).findings
    assert "1 <image> placeholders but 0 images" in first.seen and first.check == "contract"
    assert [finding.seen for finding in others[:2]] == ["the same error as under contract"] * 2


def test_the_reply_that_crashes_an_environment_is_named(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, set(), {"empty", "NUL", "null"})
    finding = report_on(toys.CrashesOnNul).findings[-1]
    assert (finding.check, finding.verdict) == ("hostile replies", "fail")
    assert finding.seen.startswith("1 of 3 texts: NUL: ")


def test_the_line_that_raises_on_a_reply_is_named():
    with pytest.raises(EnvError, match=r"(?s)NUL as the whole reply: ValueError.*unruly\.py:\d+"):
        answer_hostile(Bench(unruly.RaisesOnNul, BRIEF), "NUL")


@pytest.mark.parametrize(
    ("kind", "message"),
    [(unruly.CannotBeMade, "FileNotFoundError: levels.json"), (unruly.Exits, "exit code 3")],
)
def test_an_environment_that_cannot_start_is_a_finding(
    kind: type[Environment], message: str, monkeypatch: pytest.MonkeyPatch
):
    only(monkeypatch, {"contract"}, set())
    report = report_on(kind)
    assert not report.sound
    assert any(message in finding.seen for finding in report.findings)


def test_the_command_prints_verdicts_and_a_row(capsys: pytest.CaptureFixture[str]):
    main(["check-env", "FrozenLake", "--env.slip", "0.2", "--short", "--seconds", "0.3"])
    printed = capsys.readouterr().out
    assert printed.startswith("vagentrl_envs.frozen_lake.FrozenLake\n    ok  system prompt")
    assert "FAIL" not in printed
    assert TABLE_HEAD in printed
    row = printed.strip().splitlines()[-1]
    assert row.startswith("| `FrozenLake` | ")
    assert row.count("|") == TABLE_HEAD.partition("\n")[0].count("|")


def test_the_environments_of_a_recipe_are_checked_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    only(monkeypatch, {"members of a group"}, {"empty"})
    recipe = tmp_path / "mine.yaml"
    bandit = {"class_path": "vagentrl_envs.bandit.Bandit", "init_args": {"pairing": "mixed"}}
    val_envs = {"reversed": "vagentrl_envs.bandit.BanditRev"}
    recipe.write_text(yaml.safe_dump({"data": {"env": bandit, "val_envs": val_envs}}))
    main(["check-env", "--config", str(recipe), "--short"])
    printed = capsys.readouterr().out
    assert "\nmine\n" in f"\n{printed}"
    assert "\nreversed\n" in printed


def test_the_command_exits_with_1_on_a_failure(monkeypatch: pytest.MonkeyPatch):
    only(monkeypatch, {"initial states"}, {"empty"})
    with pytest.raises(SystemExit) as raised:
        main(["check-env", "tests.checkenv.toys.OneStart", "--short"])
    assert raised.value.code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no environment is named"),
        (["Bandit", "--all"], "give one of a class, --config and --all"),
        (["Bandit", "--short", "--episodes", "0"], "episodes is 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str):
    with pytest.raises(SystemExit, match=message):
        main(["check-env", *arguments])


def test_a_wrong_setting_is_refused_with_a_guess(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["check-env", "FrozenLake", "--env.siz", "3"])
    assert "there is no setting env.init_args.siz (did you mean size?)" in capsys.readouterr().err


def test_a_setting_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["check-env", "tests.checkenv.unruly.NeedsAPath"])
    said = "env is tests.checkenv.unruly.NeedsAPath, which needs settings without a default; give "
    assert f"{said}--env.path and --env.width\n" in capsys.readouterr().err


def test_the_extra_and_the_licences_come_from_the_installed_packages():
    pytest.importorskip("bm25s")
    pytest.importorskip("numba")
    modules = frozenset({"vagentrl_envs.bandit", "numpy"})
    assert extra_and_licence(modules) == ("", "Apache-2.0")
    # bm25s imports numba, which the extra `crafter` names too, beside a library that is not there
    extra, licence = extra_and_licence(modules | {"bm25s", "numba"})
    assert extra == "search"
    assert licence == "Apache-2.0, MIT"
