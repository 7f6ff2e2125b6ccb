import io
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import runs
from vagentrl.callbacks import progress
from vagentrl.callbacks.progress import progress_line
from vagentrl.filters import GroupFilter

NUMBERS = (
    r"success \S+  return \S+  entropy \S+  grad \S+  episodes 4  tokens \d+  \S+ s"
    r"( \(\w+ \d+%(, \w+ \d+%)*\))?"
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class FirstOnly(GroupFilter):
    """Keeps all groups of the first iteration, and none of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def keep(self, spreads: Sequence[float]) -> list[bool]:
        self.asked += 1
        return [self.asked == 1] * len(spreads)


def test_a_log_gets_a_line_after_evaluations_and_else_now_and_then(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
):
    runs.fit(
        "--trainer.callbacks=vagentrl.callbacks.IterationProgress",
        "--trainer.callbacks.seconds_between_lines=1000",
        "--trainer.max_epochs=5",
        "--trainer.check_val_every_n_epoch=3",
    )
    printed = capfd.readouterr().err
    lines = [line for line in printed.splitlines() if line.startswith("iteration ")]
    # iterations 1, 2, 4 and 5 come too soon for a line; the last evaluation follows iteration 5
    assert [line.split()[1] for line in lines] == ["0/5", "3/5", "5/5"]
    assert re.fullmatch(rf"iteration 3/5  held-out \S+  {NUMBERS}", lines[1])
    for line in (lines[0], lines[2]):  # evaluations alone
        assert re.fullmatch(r"iteration \d/5  held-out \S+  \S+ s \(evaluate 100%\)", line)
    assert "\r" not in printed


def test_every_iteration_has_a_line(run_dir: Path, capfd: pytest.CaptureFixture[str]):
    runs.fit("--trainer.limit_val_batches=0")
    printed = capfd.readouterr().err
    assert re.findall(r"^iteration (\d)/2", printed, re.M) == ["1", "2"]


def test_a_line_says_what_matters_and_where_the_time_went():
    metrics = {
        "val/success_rate": 0.28125, "rollout/success_rate": 0.3125, "rollout/return": -0.454,
        "train/entropy": 0.4149, "rollout/kl": 0.002345, "optim/actor_grad_norm": 0.8251,
        "rollout/episodes": 128.0, "rollout/sampled_tokens": 12_460.0, "rollout/turns": 4.0,
        "time/update": 18.0, "time/generate": 6.0, "time/sync": 0.9, "time/evaluate": 0.0,
    }  # fmt: skip
    # of 30 s: 60 % and 20 %; the 3 % of sync are not named; 5.1 s are nobody's
    assert progress_line(7, 40, metrics, 30.0) == (
        "iteration  7/40  held-out 0.281  success 0.312  return -0.454  entropy 0.415  "
        "KL 0.00234  grad 0.825  episodes 128  tokens 12.5k  30 s "
        "(update 60%, generate 20%, other 17%)"
    )


def test_a_line_leaves_out_what_was_not_logged():
    # nothing was learned, and the stages overlapped
    metrics = {"rollout/success_rate": 0.5, "time/generate": 3.0, "time/wait": 2.0}
    assert progress_line(1, 1, metrics, 4.0) == (
        "iteration 1/1  success 0.5  4 s (generate 75%, wait 50%)"
    )
    assert progress_line(1, 1, {"optim/grad_norm": math.nan}, 0.0) == "iteration 1/1  grad nan  0 s"


def test_long_numbers_are_shortened():
    shown = [
        progress_line(1, 1, {"rollout/sampled_tokens": tokens}, 0.0).split()[3]
        for tokens in (999, 9999, 10_000, 123_456, 1_234_567, 1e9)
    ]
    assert shown == ["999", "9999", "10k", "123k", "1.23M", "1000M"]


def test_numbers_of_earlier_iterations_are_not_shown_again(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
):
    runs.fit(
        "--trainer.max_epochs=3", "--data.filter=tests.callbacks.test_progress.FirstOnly",
        "--trainer.check_val_every_n_epoch=5", "--trainer.callbacks=[]",
    )  # fmt: skip
    printed = capfd.readouterr().err
    first, second, third = re.findall(r"^iteration [123]/3  (success .*)$", printed, re.M)
    assert "entropy" in first and "entropy" not in second + third
    assert "held-out" not in first + second + third


def test_a_terminal_shows_the_stage_below_the_lines(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "REDRAWN_AFTER_S", 0.0)
    runs.fit()
    drawn = [line.strip() for line in screen.getvalue().split("\r")]
    stages = " ".join(line.split("  ")[0] for line in drawn)
    for stage in ("loading", "evaluate 4/4", "collect 4/4", "update 4/4"):
        assert stage in stages
    lines = re.findall(r"iteration (\d)/2", screen.getvalue())
    assert lines == ["0", "1", "2"]
    assert screen.getvalue().rpartition("\r")[2].strip() == ""  # no bar is left behind


def test_an_error_is_not_followed_by_the_line(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(Exception, match="shows an image"):
        runs.fit("--data.env.init_args.images=true")
    assert screen.getvalue().rpartition("\r")[2].strip() == ""
