"""Interactions under ``vagentrl fit`` and ``vagentrl check-env``."""

from pathlib import Path

import pytest

from tests import runs
from tests.interactions.user_code import user_module
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI
from vagentrl.interactions import InteractionEnvironment

__all__ = ["user_module"]

RUN = Path(__file__).parents[1] / "data" / "interactions_run.yaml"
YAML = "interaction: [{class_name: MODULE.SolverInteraction, config: {quiet: true}}]"


@pytest.fixture
def folder(run_dir: Path, user_module: str) -> Path:
    (run_dir / "interactions.yaml").write_text(YAML.replace("MODULE", user_module))
    return run_dir


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_run_on_an_interaction_learns_and_reports(folder: Path, workers: str):
    cli = VagentCLI(
        [
            "fit",
            "--config",
            str(RUN),
            "--model.policy",
            runs.checkpoint(),
            "--data.workers",
            workers,
        ]
    )
    summary = runs.summary(cli)
    assert (summary["iterations"], summary["episodes"], summary["failed_episodes"]) == (2, 8, 0)
    scalars = set(runs.events(cli).Tags()["scalars"])
    assert scalars >= {
        "rollout/interaction_score", "rollout/tries", "rollout/success_rate", "val/success_rate"
    }  # fmt: skip
    trajectories = cli.datamodule.trajectories
    for trajectory in trajectories:
        prompt = cli.datamodule.collector.renderer.tokenizer.decode(trajectory.turns[0].prompt.ids)
        assert "Add. Row" in prompt and "1 + 1?" in prompt
        assert trajectory.stop in ("terminated", "truncated", "cut")


def test_the_checker_finds_the_environment_by_its_short_name_and_sound(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = [
        *("InteractionEnvironment", "--env.interactions", "interactions.yaml"),
        *("--env.tasks", "tests.interactions.tables.Sums", "--env.tasks.rows", "400"),
        *("--short", "--seconds", "0.3"),
    ]
    main(["check-env", *arguments])
    said = capsys.readouterr().out
    assert "different ones under 5 seeds, as declared" in said
    assert InteractionEnvironment.__name__ in said


def test_the_checker_reads_it_from_a_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from vagentrl.checkenv import checker

    monkeypatch.setattr(checker, "CHECKS", {"contract": checker.CHECKS["contract"]})
    monkeypatch.setattr(checker, "HOSTILE", {"empty": ""})
    main(["check-env", "--config", str(RUN), "--short"])
    assert "`success` reported" in capsys.readouterr().out
