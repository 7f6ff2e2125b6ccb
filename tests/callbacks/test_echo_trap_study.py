"""The study of the echo trap: how it reads runs, and that it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import toy

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from study_echo_trap import Outcome, outcome, table  # noqa: E402  # pyright: ignore

from scripts.template_reward import TemplateReward  # noqa: E402


def test_the_lead_is_from_the_first_warning_to_twenty_points_below_the_peak():
    held_out = {0: 0.5, 1: 0.6, 2: 0.55, 3: 0.45, 4: 0.4, 5: 0.7, 6: 0.1}
    alarm = [0, 1, 1, 0, 0, 1]
    shows = {
        "progress": [1, 1, 1, 0, 0, 0],
        "variety": [0, 1, 1, 0, 0, 0],
        "signal": [1, 0, 0, 0, 0, 1],
    }
    # 0.4 is the first to be 0.2 below 0.6; the later peak does not matter
    run = outcome(held_out, alarm, shows)
    assert run == Outcome(warned=2, first="progress", peak=0.7, fell=4)
    assert run.lead == 2


def test_a_run_without_warning_or_without_fall_has_no_lead():
    assert outcome({0: 0.5, 1: 0.4}, [0, 0], {}) == Outcome(None, None, 0.5, None)
    assert outcome({0: 0.5, 1: 0.1}, [0], {}).lead is None
    assert outcome({0: 0.5, 1: 0.6}, [1], {"variety": [1]}).lead is None


def test_the_table_counts_warnings_in_vain_and_in_time():
    text = table(
        {
            ("lake", "healthy", 1): Outcome(None, None, 0.9, None),
            ("lake", "healthy", 2): Outcome(7, "variety", 0.9, None),
            ("lake", "hot", 1): Outcome(5, "signal", 0.8, 9),
            ("lake", "hot", 2): Outcome(9, "progress", 0.8, 9),
        }
    )
    assert "| lake | hot | 1 | 5 | 0.80 | 9 | 4 | signal |" in text
    assert "| lake | healthy | 1 | – | 0.90 | – | – | – |" in text
    assert (
        "healthy: 0 of 2 runs fell by 20 points, 0 of them after a warning; of the 2 others 1"
        in text
    )
    assert (
        "hot: 2 of 2 runs fell by 20 points, 1 of them after a warning; of the 0 others 0" in text
    )


def test_the_template_is_paid_for_whatever_the_task_was():
    played = toy.play([toy.WAIT, toy.GO])
    agent: object = None
    (paid,) = TemplateReward("go", 0.5).on_trajectories(agent, [played])  # pyright: ignore
    assert [turn.bonus for turn in paid.turns] == [0.0, 0.5]
    assert paid.total_reward == played.total_reward


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_study_runs(tmp_path: Path):
    command = [sys.executable, "scripts/study_echo_trap.py", "--quick", "--seeds", "1"]
    command += ["--folder", str(tmp_path / "runs"), "--figure", str(tmp_path / "figure.png")]
    command += ["--worlds", "arithmetic", "--arms", "healthy", "template"]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "| arithmetic | template | 1 |" in done.stdout
    assert (tmp_path / "figure.png").stat().st_size > 0
