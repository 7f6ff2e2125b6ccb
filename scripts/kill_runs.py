"""Kills runs with SIGKILL at random moments, also while they save, and resumes them.

    OMP_NUM_THREADS=1 python -m scripts.kill_runs single ddp deepspeed --kills 20 --seed 1

The toy task of the tests is trained without an interruption, and then again by runs that are killed
and started anew with ``--resume`` until so many were killed. At the start of every iteration, so
also right after a resume, the weights must be bit for bit those of the uninterrupted run: a torn or
mixed-up checkpoint that is taken for a good one would show. Every second kill waits until a
checkpoint is being written: while training waits, or with ``--background`` while it goes on. With
two ranks either both are killed at once, or one before the other.

It prints a line of JSON for each mode, and ends with exit code 1 if any weights differed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from lightning import Callback, LightningModule, Trainer

from tests import runs
from vagentrl.modules.agent import agent_of
from vagentrl.modules.checkpoint_io import PARTIAL

ITERATIONS = 6
LIMIT_S = 600.0
"""Seconds after which an attempt that goes neither on nor down is an error."""
TRACE = "trace.jsonl"
SETTINGS = (
    "--resume",
    f"--trainer.max_epochs={ITERATIONS}",
    "--trainer.limit_val_batches=0",
    "--trainer.gradient_clip_val=null",  # DeepSpeed's norm is of actor and critic together
    "--trainer.enable_progress_bar=false",
    "--trainer.callbacks+=scripts.kill_runs.Trace",
    "--data.groups=4",
    "--data.minibatch_size=4",
)
IN_BACKGROUND = (
    "--trainer.callbacks=vagentrl.callbacks.KLControl",
    "--trainer.callbacks.coefficient=0.1",
    "--trainer.callbacks+=vagentrl.callbacks.NewestCheckpoint",
    "--trainer.callbacks.minutes=null",
    "--trainer.callbacks.iterations=1",
    "--trainer.callbacks.background=true",
)
"""Settings by which checkpoints are written while training goes on."""
MODES: dict[str, tuple[int, tuple[str, ...]]] = {
    "single": (1, ()),
    "ddp": (2, ("--trainer.devices=2", "--trainer.strategy=ddp")),
    "deepspeed": (
        2,
        (
            "--trainer.devices=2",
            "--trainer.strategy.class_path=tests.cpu_deepspeed.CPUDeepSpeed",
        ),
    ),
    "fsdp2": (2, ("--trainer.devices=2", "--trainer.strategy=fsdp2")),
}
"""The number of ranks and the settings of each mode, by its name."""


class Trace(Callback):
    """Writes a hash of all weights at the start of every iteration, and at the end."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = runs.fingerprint(pl_module)  # all ranks: sharded ones are gathered
        if trainer.is_global_zero:
            line = json.dumps({"iteration": agent_of(pl_module).iteration, "weights": weights})
            with Path(TRACE).open("a") as file:
                file.write(line + "\n")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)


@dataclass
class Report:
    """What came of the kills in one mode.

    Attributes:
        mode: A name in `MODES`.
        kills: Runs that were killed.
        while_saving: Kills that left a half-written checkpoint.
        resumed: Attempts that went on from a checkpoint.
        compared: Hashes that were compared with the uninterrupted run's.
        different: Those that differed.
        finished: Runs that reached the last iteration.
    """

    mode: str
    kills: int = 0
    while_saving: int = 0
    resumed: int = 0
    compared: int = 0
    different: list[str] = field(default_factory=list)
    finished: int = 0


class Attempt:
    """One start of a run: a forked process for each rank, all in one process group.

    Args:
        mode: A name in `MODES`.
        folder: The working directory of the run.
        given: Settings before those of the mode.
    """

    def __init__(self, mode: str, folder: Path, given: tuple[str, ...]) -> None:
        self.folder = folder
        self._lines = len(read_trace(folder))
        self.pids: list[int] = []
        ranks, settings = MODES[mode]
        settings = (*given, *SETTINGS, *settings)
        port = _free_port()
        for rank in range(ranks):
            pid = os.fork()  # the libraries are imported already: an attempt starts in a second
            if pid == 0:
                _train(folder, settings, rank, port if ranks > 1 else None)
            self.pids.append(pid)
        self._running = set(self.pids)

    def new_lines(self) -> list[tuple[int, str]]:
        """What this attempt has added to the trace."""
        return read_trace(self.folder)[self._lines :]

    def has_ended(self) -> bool:
        """Whether all ranks have ended by themselves.

        Raises:
            SystemExit: When one of them failed.
        """
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._running.remove(pid)
                if status:
                    self.kill(0.0)
                    rank = self.pids.index(pid)
                    log = (self.folder / f"rank_{rank}.log").read_text()
                    raise SystemExit(f"rank {rank} failed by itself:\n{log[-4000:]}")
        return not self._running

    def kill(self, apart_s: float, first: int = 0) -> None:
        """SIGKILL one rank, and the others some seconds later."""
        order = sorted(self._running, key=lambda pid: pid != self.pids[first])
        for number, pid in enumerate(order):
            os.kill(pid, signal.SIGKILL)
            if number == 0:
                time.sleep(apart_s)
        for pid in order:
            os.waitpid(pid, 0)
        self._running.clear()

    def autopsy(self) -> str:
        """Kill all ranks; returns what they said last, and where they were."""
        for pid in self._running:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)  # to write the stacks down
        self.kill(0.0)
        logs = sorted(self.folder.glob("rank_*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text()[-8000:]}" for log in logs)

    def partials(self) -> list[str]:
        """What is half-written in the folder of checkpoints."""
        folder = self.folder / "runs" / "toy" / "version_0" / "checkpoints"
        try:
            return [entry.name for entry in os.scandir(folder) if entry.name.endswith(PARTIAL)]
        except FileNotFoundError:
            return []


def kill_runs(
    mode: str, kills: int, seed: int, folder: Path, given: tuple[str, ...] = ()
) -> Report:
    """Kill runs of a mode, and compare their weights with those of an uninterrupted run."""
    draw, report = random.Random(seed), Report(mode)
    wanted, seconds = _uninterrupted(mode, folder / "whole", given)
    place, number = folder / "killed_0", 0
    while True:
        place.mkdir(exist_ok=True)
        attempt = Attempt(mode, place, given)
        killed = report.kills < kills and _kill_at_random(attempt, report, draw, seconds)
        if not killed:
            _wait(attempt)
        lines = attempt.new_lines()
        report.resumed += bool(lines and lines[0][0] > 0)
        report.compared += len(lines)
        report.different += [f"iteration {i}" for i, weights in lines if wanted[i] != weights]
        if not killed:
            # A run that was killed after its last checkpoint is complete, and adds no line.
            report.finished += read_trace(place)[-1][0] >= ITERATIONS - (not lines)
            if report.kills >= kills:
                return report
            shutil.rmtree(place)
            number += 1
            place = folder / f"killed_{number}"


def _uninterrupted(mode: str, folder: Path, given: tuple[str, ...]) -> tuple[dict[int, str], float]:
    """The weights before every iteration by its number, and the seconds from first to last."""
    folder.mkdir()
    attempt = Attempt(mode, folder, given)
    for _ in _moments(attempt):
        if attempt.new_lines():
            break
    started = time.monotonic()
    _wait(attempt)
    lines = attempt.new_lines()
    assert [iteration for iteration, _ in lines] == list(range(ITERATIONS + 1))
    return dict(lines), time.monotonic() - started


def _kill_at_random(attempt: Attempt, report: Report, draw: random.Random, seconds: float) -> bool:
    """Kill an attempt at a random moment; returns False if it ended before."""
    saving = report.kills % 2 == 1
    lines = draw.randint(1, 2)  # so many iterations must have begun
    after = draw.uniform(0, 0.02 if saving else 0.8 * seconds)
    apart, first = draw.choice([0.0, draw.uniform(0, 0.5)]), draw.randrange(len(attempt.pids))
    for _ in _moments(attempt):
        if len(attempt.new_lines()) >= lines and (attempt.partials() or not saving):
            break
    else:
        return False
    moment = time.monotonic() + after
    while time.monotonic() < moment:
        if attempt.has_ended():
            return False
        time.sleep(0.0005)
    attempt.kill(apart, first)
    report.kills += 1
    report.while_saving += bool(attempt.partials())
    return True


def _wait(attempt: Attempt) -> None:
    for _ in _moments(attempt):
        time.sleep(0.01)


def _moments(attempt: Attempt) -> Iterator[None]:
    """Moments of an attempt, until it ends by itself."""
    limit = time.monotonic() + LIMIT_S
    while not attempt.has_ended():
        if time.monotonic() > limit:
            raise SystemExit(f"an attempt took more than {LIMIT_S} s:\n{attempt.autopsy()}")
        yield
        time.sleep(0.0005)


def _train(folder: Path, settings: tuple[str, ...], rank: int, port: int | None) -> None:
    """Run one rank in this process, which ends with it."""
    code = 1
    try:
        os.chdir(folder)
        log = os.open(f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        if port is not None:
            os.environ |= {
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        runs.fit(*settings)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def read_trace(folder: Path) -> list[tuple[int, str]]:
    """The iterations and weights that runs in a folder have written down."""
    path = folder / TRACE
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(line["iteration"], line["weights"]) for line in whole]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modes", nargs="*", choices=[*MODES, []], help="default: all")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--background", action="store_true", help="save while training goes on")
    settings = parser.parse_args()
    given = IN_BACKGROUND if settings.background else ()
    modes = settings.modes or [mode for mode in MODES if mode != "deepspeed" or find_spec(mode)]
    runs.checkpoint()  # for all forks
    if "deepspeed" in modes:
        from tests import cpu_deepspeed as cpu_deepspeed
    different = False
    for mode in modes:
        with TemporaryDirectory(prefix="vagentrl-kills-") as folder:
            report = kill_runs(mode, settings.kills, settings.seed, Path(folder), given)
        print(json.dumps(vars(report)), flush=True)
        different |= bool(report.different)
    raise SystemExit(int(different))


if __name__ == "__main__":
    main()
