"""`Sandbox`: runs a candidate program in a confined process, within limits.

Everything is unprivileged: resource limits, Landlock and seccomp. The program cannot start another
process, so killing the one process ends everything that it does.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from vagentrl.errors import EnvError
from vagentrl.interactions.code.seccomp import seccomp_filter

Confinement = Literal["network", "processes", "files", "memory"]
CONFINEMENTS: tuple[Confinement, ...] = ("network", "processes", "files", "memory")
_SCRIPT = Path(__file__).with_name("confined.py")
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_MEBIBYTE = 2**20
_OPEN_FILES = 64
_REPORT_BYTES = 2**20


@dataclass(frozen=True)
class Limits:
    """What a candidate program may use.

    Attributes:
        wall_s: Seconds from its start.
        cpu_s: Seconds of CPU time.
        memory_mb: Address space in MiB, the interpreter's own (about 30) included.
        output_bytes: Bytes of standard output and error together.
        writable_mb: Largest file that it may write, in MiB; with 0 it writes none.
        threads: Whether it may start threads. Only memory then limits their number.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_mb: int = 1024
    output_bytes: int = 65536
    writable_mb: int = 0
    threads: bool = False


@dataclass(frozen=True)
class Run:
    """What became of a candidate program.

    Attributes:
        ended: ``finished``; ``failed`` by an error or a signal; ``time`` or ``output`` when it was
            killed at that limit.
        output: Its standard output, up to the limit.
        error: Last line of its standard error, or the signal that ended it; empty if it finished.
        failures: For each check that was executed, why it failed, or an empty text.
    """

    ended: Literal["finished", "failed", "time", "output"]
    output: str
    error: str
    failures: tuple[str, ...] = ()


class Sandbox:
    """Runs candidate programs, each in a process of its own.

    Many threads may call `run` at once.

    Args:
        limits: What a program may use.
        confined: What is confined; all that the machine can confine.
        python: Absolute path of the interpreter that runs the programs.
        readable: Further files and folders that programs may read.
    """

    def __init__(
        self,
        limits: Limits,
        confined: Sequence[Confinement] = CONFINEMENTS,
        python: str = sys.executable,
        readable: Sequence[str] = (),
    ) -> None:
        self.limits = limits
        self.confined = tuple(confined)
        self.python = python
        prefixes = [sys.prefix, sys.base_prefix]
        if python != sys.executable:  # its folder, and that of the one it is a link to
            prefixes = [str(path.parents[1]) for path in (Path(python), Path(python).resolve())]
        self.readable = [*_SYSTEM, *_DEVICES, *prefixes, *readable]
        self._filter = seccomp_filter(confined, limits.threads) if confined else b""

    def run(self, program: str, stdin: str = "", checks: Sequence[str] = ()) -> Run:
        """Run a program to its end, or to a limit.

        Args:
            program: Its source.
            stdin: Its standard input.
            checks: Statements to execute after it, in its namespace.

        Raises:
            EnvError: The machine did not start the process, or did not confine it.
        """
        with (
            tempfile.TemporaryDirectory(prefix="program-") as home,
            tempfile.TemporaryFile() as given,
        ):
            given.write(stdin.encode("utf-8", "replace"))
            given.seek(0)
            job = self._job(program, checks, home)
            with tempfile.TemporaryFile() as job_file:
                job_file.write(json.dumps(job).encode())
                job_file.seek(0)
                return self._attend(job_file, given, home, job["secret"])

    def _job(self, program: str, checks: Sequence[str], home: str) -> dict:
        limits = self.limits
        resources = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": limits.writable_mb * _MEBIBYTE,
            "RLIMIT_NOFILE": _OPEN_FILES,
        }
        if "memory" in self.confined:
            resources["RLIMIT_AS"] = limits.memory_mb * _MEBIBYTE
        return {
            "program": program,
            "checks": list(checks),
            "secret": secrets.token_hex(8),
            "cpu_s": limits.cpu_s,
            "limits": resources,
            "confined": self.confined,
            "readable": [*self.readable, home],
            "writable": ["/dev/null", *([home] if limits.writable_mb else [])],
            "filter": self._filter.hex(),
        }

    def _attend(self, job: IO[bytes], given: IO[bytes], home: str, secret: str) -> Run:
        """Start the process, read what it writes, and kill it at a limit."""
        told, tell = os.pipe()
        environment = {
            "HOME": home,
            "TMPDIR": home,
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONUTF8": "1",
            "PYTHONHASHSEED": "0",  # the verdict must not depend on the order of a set
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # Not `-I`: it would ignore PYTHONHASHSEED. The environment is empty but for the above.
        command = [self.python, "-sP", str(_SCRIPT), str(job.fileno()), str(tell), str(os.getpid())]
        deadline = time.monotonic() + self.limits.wall_s
        try:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(job.fileno(), tell),
                cwd=home,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            os.close(told)
            raise EnvError(f"{self.python} did not start: {error}") from error
        finally:
            os.close(tell)
        with process, open(told, "rb", buffering=0) as report:
            try:
                return self._read(process, report, deadline, secret)
            finally:
                kill_group(process)

    def _read(
        self, process: subprocess.Popen[bytes], report: IO[bytes], deadline: float, secret: str
    ) -> Run:
        assert process.stdout is not None and process.stderr is not None
        read: dict[IO[bytes], bytearray] = {
            stream: bytearray() for stream in (process.stdout, process.stderr, report)
        }
        limit = read_until(
            deadline, read, (process.stdout, process.stderr), self.limits.output_bytes
        )
        if limit is None:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # it has closed its output and goes on
                limit = "time"
        output = read[process.stdout][: self.limits.output_bytes].decode("utf-8", "replace")
        failures = read_report(bytes(read[report]), secret)
        if limit is None and process.returncode == -signal.SIGXCPU:
            limit = "time"
        if limit is not None:
            return Run(limit, output, "", failures)
        if process.returncode == 0:
            return Run("finished", output, "", failures)
        error = _last_error(process.returncode, bytes(read[process.stderr]))
        return Run("failed", output, error, failures)


def read_until(
    deadline: float,
    read: dict[IO[bytes], bytearray],
    output: Sequence[IO[bytes]],
    output_bytes: int,
) -> Literal["time", "output"] | None:
    """Read streams to their ends, and name the limit at which reading stopped, if any."""
    with selectors.DefaultSelector() as waiting:
        for stream in read:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = deadline - time.monotonic()
            ready = waiting.select(left) if left > 0 else []
            if not ready:
                return "time"
            for key, _ in ready:
                stream: IO[bytes] = key.fileobj  # pyright: ignore[reportAssignmentType]
                chunk = os.read(stream.fileno(), 65536)
                read[stream] += chunk
                if not chunk:
                    waiting.unregister(stream)
            if sum(len(read[stream]) for stream in output) > output_bytes:
                return "output"
            if any(len(read[stream]) > _REPORT_BYTES for stream in read if stream not in output):
                return "output"
    return None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its own session, and what else is in its group."""
    if process.returncode is None:  # while it is not reaped, nobody else can have its number
        os.killpg(process.pid, signal.SIGKILL)


def read_report(told: bytes, secret: str) -> tuple[str, ...]:
    """The failures of the checks, of lines that have the secret; others are the program's own.

    Raises:
        EnvError: The process was not confined, and has not run the program.
    """
    failures: list[str] = []
    for line in told.splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        match report:
            case {"secret": str(given), "unconfined": reason} if given == secret:
                raise EnvError(f"a candidate program was not run: {reason}")
            case {"secret": str(given), "failure": str(failure)} if given == secret:
                failures.append(failure)
    return tuple(failures)


def _last_error(code: int, written: bytes) -> str:
    lines = written.decode("utf-8", "replace").strip().splitlines()
    if code < 0:
        return f"the program was ended by {signal.Signals(-code).name}"
    return lines[-1].strip() if lines else f"the program ended with exit code {code}"
