"""Ctrl-C and SIGTERM end a run in order: one line, the right exit code, nothing left behind."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning import Callback, LightningModule, Trainer

from tests import runs
from tests.toy import Countdown
from vagentrl.cli.interrupts import orderly_exit
from vagentrl.cli.main import main
from vagentrl.types import Observation

ROOT = Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
LAST = Path("runs/toy/version_0/checkpoints/last.ckpt")


class Stuck(Countdown):
    """Hangs in every episode, and says so with a file."""

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        Path("stuck").touch()
        time.sleep(600)
        raise AssertionError("nobody waits that long")


class SlowToClose(Callback):
    """Hangs when the run is interrupted, and says so with a file."""

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        Path("closing").touch()
        time.sleep(600)


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Python in a process of its own, which is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, *command], env=ENV, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    while not what():
        if process is not None:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def end(process: subprocess.Popen[str], number: signal.Signals) -> list[str]:
    """Send a signal; returns what is then said."""
    process.send_signal(number)
    return process.communicate(timeout=120)[1].splitlines()


def fit(*settings: str) -> tuple[str, ...]:
    endless = ("--trainer.max_epochs=100000", "--trainer.limit_val_batches=0")
    return ("-m", "vagentrl", "fit", *runs.arguments(*endless, *settings))


def test_ctrl_c_says_how_to_resume_and_leaves_no_worker_behind(run_dir: Path):
    with started(*fit("--data.workers=process", "--data.max_workers=1")) as process:
        wait_for(LAST.exists, process)
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        workers = [Path(f"/proc/{number}") for number in listed.split()]
        said = end(process, signal.SIGINT)
        assert process.returncode == 130
    assert not [line for line in said if "Traceback" in line or "KeyboardInterrupt" in line]
    first, resume = said[-1].split(". Resume with: ")
    assert first.startswith("vagentrl: interrupted; ") and first.endswith(
        " iterations were complete"
    )
    assert workers
    wait_for(lambda: not any(worker.exists() for worker in workers))

    command, *arguments = shlex.split(resume)
    assert command == "vagentrl"
    done = torch.load(arguments[-1], weights_only=True)["iteration"]
    main([*arguments, f"--trainer.max_epochs={done + 1}", "--data.workers=thread"])
    again = torch.load("runs/toy/version_1/checkpoints/last.ckpt", weights_only=True)
    assert again["iteration"] == done + 1


def test_sigterm_ends_a_run_while_episodes_are_played_and_says_what_is_lost(run_dir: Path):
    with started(*fit("--data.env=tests.cli.test_interrupts.Stuck")) as process:
        wait_for(Path("stuck").exists, process)
        said = end(process, signal.SIGTERM)
        assert process.returncode == 143
    assert not [line for line in said if "Traceback" in line]
    assert said[-1] == (
        "vagentrl: interrupted; 0 iterations were complete, and no checkpoint was saved yet: the "
        "next run starts from the beginning"
    )


def test_a_second_ctrl_c_ends_a_run_at_once(run_dir: Path):
    slow = "--trainer.callbacks+=tests.cli.test_interrupts.SlowToClose"
    with started(*fit("--data.env=tests.cli.test_interrupts.Stuck", slow)) as process:
        wait_for(Path("stuck").exists, process)
        process.send_signal(signal.SIGINT)
        wait_for(Path("closing").exists, process)
        said = end(process, signal.SIGINT)
        assert process.returncode == -signal.SIGINT
    assert not [line for line in said if "Traceback" in line]


BLOCK = """
import sys, time
from pathlib import Path
from vagentrl.cli.interrupts import orderly_exit
with orderly_exit():
    try:
        Path("ready").touch()
        time.sleep(600)
    finally:
        Path("closed").touch()
        time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_every_command_closes_what_it_opened_and_ends_with_the_code_of_the_signal(
    number: signal.Signals, code: int, run_dir: Path
):
    with started("-c", BLOCK, "0") as process:
        wait_for(Path("ready").exists, process)
        assert end(process, number) == ["vagentrl: interrupted"]
        assert process.returncode == code
    assert Path("closed").exists()


def test_a_second_sigterm_ends_any_command_at_once(run_dir: Path):
    with started("-c", BLOCK, "600") as process:
        wait_for(Path("ready").exists, process)
        process.send_signal(signal.SIGTERM)
        wait_for(Path("closed").exists, process)
        assert end(process, signal.SIGTERM) == []
        assert process.returncode == -signal.SIGTERM


def test_where_ctrl_c_is_ignored_sigterm_is_not(run_dir: Path):
    background = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + BLOCK
    with started("-c", background, "0") as process:
        wait_for(Path("ready").exists, process)
        assert end(process, signal.SIGTERM) == ["vagentrl: interrupted"]
        assert process.returncode == 143


def test_an_exit_that_no_signal_caused_stays_as_it_is():
    with pytest.raises(SystemExit) as ended, orderly_exit():
        raise SystemExit("no")
    assert ended.value.code == "no"
