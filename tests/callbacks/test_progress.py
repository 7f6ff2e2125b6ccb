import io
import re
import sys
from pathlib import Path

import pytest

from tests import runs

NUMBERS = r"held-out \S+  success \S+  return \S+  tokens/s \S+"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


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
    # iterations 1 and 4 come too soon for a line; the last one is always evaluated
    assert [line.split()[1] for line in lines] == ["0/5", "3/5", "5/5"]
    assert all(re.fullmatch(rf"iteration \d/5  {NUMBERS}", line) for line in lines[1:])
    assert "\r" not in printed


def test_a_log_may_have_a_line_for_every_iteration(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
):
    runs.fit(
        "--trainer.callbacks=vagentrl.callbacks.IterationProgress",
        "--trainer.callbacks.seconds_between_lines=0",
        "--trainer.limit_val_batches=0",
    )
    printed = capfd.readouterr().err
    assert re.findall(r"^iteration (\d)/2", printed, re.M) == ["1", "2"]


def test_a_terminal_shows_one_line_with_the_stage_and_the_numbers(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    runs.fit()
    drawn = [line.strip() for line in screen.getvalue().split("\r")]
    stages = " ".join(line.split("  ")[0] for line in drawn)
    for stage in ("loading", "evaluate 4/4", "collect 4/4", "update 4/4"):
        assert stage in stages
    last = [line for line in drawn if line][-1]
    assert re.search(r"2/2 \[.*\], held-out=\S+, success=\S+, return=\S+, tokens/s=\S+", last)
    assert not [line for line in drawn if line.startswith("iteration ")]


def test_an_error_is_not_followed_by_the_line(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(Exception, match="shows an image"):
        runs.fit("--data.env.init_args.images=true")
    assert screen.getvalue().endswith("\n")
