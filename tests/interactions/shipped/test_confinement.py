"""Candidate programs that try to do harm. Each test is safe even if the confinement fails."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vagentrl.errors import EnvError
from vagentrl.interactions.code import probing, sandbox
from vagentrl.interactions.code.sandbox import Limits, Run, Sandbox, read_report
from vagentrl.interactions.code.seccomp import seccomp_filter, supported

pytestmark = pytest.mark.skipif(not supported(), reason="needs Linux on x86-64 or aarch64")

HOME = Path(sandbox.__file__).parent
ATTEMPTS = {
    "fork": "os.fork() or os._exit(0)",
    "fork in a thread's way": "os.posix_spawn('/bin/true', ['true'], {})",
    "another program": "os.execv('/bin/echo', ['echo', 'escaped'])",
    "a shell": "assert os.system('true') == 0",
    "a subprocess": "subprocess.run(['true'])",
    "a thread": "threading.Thread(target=print).start()",
    "double fork": "os.fork() or (os.setsid(), os.fork() or time.sleep(3), os._exit(0))",
    "a signal to the trainer": "os.kill(os.getppid(), 0)",
    "a signal to all": "os.kill(-1, 0)",
    "a signal by fcntl": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "limits of the trainer": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (600, 600))",
    "own limits": "resource.setrlimit(resource.RLIMIT_CPU, (600, 600))",
    "priority of the trainer": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 0)",
    "a socket": "socket.socket()",
    "a name server": "socket.getaddrinfo('localhost', 80, type=socket.SOCK_DGRAM)[0]"
    " and socket.create_connection(('127.0.0.1', 9))",
    "datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a file of the system": "open('/etc/passwd')",
    "a folder of the system": "os.listdir('/')",
    "the trainer's environment": "open(f'/proc/{os.getppid()}/environ')",
    "its own memory as a file": "open('/proc/self/mem', 'r+b')",
    "a secret": "open({secret!r})",
    "a secret, to write": "open({secret!r}, 'a')",
    "a secret's mode": "os.chmod({secret!r}, 0o777)",
    "a secret's times": "os.utime({secret!r})",
    "a secret's end": "os.truncate({secret!r}, 0)",
    "a secret, to delete": "os.unlink({secret!r})",
    "a link to a secret": "os.link({secret!r}, 'link')",
    "a file": "open('file', 'w')",
    "a folder": "os.mkdir('folder')",
    "its interpreter": "open(os.__file__, 'a')",
    "shared memory": "os.memfd_create('hidden')",
    "10 GB": "bytearray(10 * 10**9)",
}
REFUSED = (
    "not permitted",
    "denied",
    "name resolution",
    "maximum limit",
    "can't start",
    "MemoryError",
    "AssertionError",
)
PRELUDE = "import fcntl, os, resource, socket, subprocess, sys, threading, time\n"


@pytest.fixture(scope="module")
def confined() -> Sandbox:
    return Sandbox(Limits(wall_s=20.0, memory_mb=512))


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "secret"
    path.write_text("42")
    path.chmod(0o600)
    yield path
    assert path.read_text() == "42" and path.stat().st_mode & 0o777 == 0o600


def running(parent: int) -> list[int]:
    """Candidate programs whose parent is this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            state, its_parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if "confined.py" in command and state != "Z" and int(its_parent) == parent:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda name: name.replace(" ", "-"))
def test_a_candidate_cannot_reach(confined: Sandbox, secret: Path, attempt: str):
    statement = ATTEMPTS[attempt].replace("{secret!r}", repr(str(secret)))
    run = confined.run(f"{PRELUDE}{statement}\nprint('escaped')")
    assert run.ended == "failed" and "escaped" not in run.output, run
    assert any(word in run.error for word in REFUSED), run


def test_a_fork_bomb_makes_no_process(confined: Sandbox):
    bomb = "import os\nmade = 0\nfor _ in range(200):\n    try:\n"
    bomb += "        os.fork() or os._exit(0)\n        made += 1\n"
    bomb += "    except OSError: pass\nprint(made)"
    assert confined.run(bomb).output == "0\n"


def test_a_thread_bomb_ends_at_the_limit_of_memory():
    bomb = "import threading, time\nmade = 0\ntry:\n    while made < 2000:\n"
    bomb += "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    bomb += "        made += 1\nexcept RuntimeError: pass\nprint(made, flush=True)\n"
    bomb += "import os; os._exit(0)"
    # A thread takes 8 MiB of address space for its stack, so at most 64 fit into 512 MiB.
    assert 1 <= int(Sandbox(Limits(20.0, memory_mb=512, threads=True)).run(bomb).output) <= 64
    assert confined_threads() == "0\n"


def confined_threads() -> str:
    program = "import threading\ntry: threading.Thread(target=print).start()\n"
    return Sandbox(Limits(20.0)).run(f"{program}except RuntimeError: print(0)").output


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("while True: pass", "time"),
        ("import time; time.sleep(60)", "time"),
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
         "while True: signal.pause()", "time"),
        ("import os, time; os.close(1); os.close(2); time.sleep(60)", "time"),
        ("import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass\n"
         "import time; time.sleep(60)", "time"),
        ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
         "while True: pass", "time"),
        ("while True: print('x' * 1000)", "output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
        ("import os\nfor fd in range(64):\n    try:\n"
         "        while True: os.write(fd, b'x' * 9999)\n    except OSError: pass", "output"),
    ],
)  # fmt: skip
def test_a_program_is_killed_at_its_limit(program: str, ended: str):
    wall_s = 1.2 if ended == "time" else 60.0
    run = Sandbox(Limits(wall_s, cpu_s=1 if ended == "time" else 60, output_bytes=5000)).run(
        program
    )
    assert run.ended == ended and len(run.output) <= 5000
    assert running(os.getpid()) == []


def test_nothing_is_left_behind(confined: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writing = Sandbox(Limits(wall_s=20.0, writable_mb=1))
    run = writing.run(
        "for n in range(100): open(str(n), 'w').write('x')\n"
        "import os; os.unlink('7'); os.rename('8', '9'); print(len(os.listdir('.')))"
    )
    assert run.output == "98\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_limited_in_size():
    writing = Sandbox(Limits(wall_s=20.0, writable_mb=1))
    assert writing.run("open('f', 'wb').write(bytes(2**20)); print(1)").output == "1\n"
    assert (
        "File too large"
        in writing.run("with open('f', 'wb') as f: f.write(bytes(2**20 + 1))").error
    )
    assert "denied" in writing.run("import os; os.mkdir('folder')").error


def test_the_environment_and_the_home_are_empty(confined: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_KEY", "hidden")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    run = confined.run(
        "import os, sys\nprint(os.listdir('.'), os.environ.get('API_KEY'), '/nowhere' in sys.path,"
        " os.getcwd() == os.environ['HOME'], sys.argv, __name__)"
    )
    assert run.output == "[] None False True ['program.py'] __main__\n"


def test_descriptors_of_the_trainer_are_closed(confined: Sandbox, secret: Path):
    with open(secret) as held:
        os.set_inheritable(held.fileno(), True)
        program = "import os\nfor fd in range(3, 200):\n    try: print(os.pread(fd, 9, 0))\n"
        assert confined.run(f"{program}    except OSError: pass").output == ""


def test_ordinary_programs_run(confined: Sandbox):
    program = """
import asyncio, collections, dataclasses, decimal, itertools, json, math, pickle, random, re, sys
import numpy as np
@dataclasses.dataclass
class Point:
    x: int
async def one(): return 1
print(asyncio.run(one()), pickle.loads(pickle.dumps(Point(2))).x, np.arange(4).sum(), input())
"""
    assert confined.run(program, "four").output == "1 2 6 four\n"


def test_the_order_of_a_set_is_the_same_in_every_run(confined: Sandbox):
    program = "print({str(n) for n in range(50)})"
    assert confined.run(program).output == confined.run(program).output


def test_a_signal_is_named(confined: Sandbox):
    run = confined.run("import ctypes; ctypes.string_at(0)")
    assert run == Run("failed", "", "the program was ended by SIGSEGV")


def test_a_report_without_the_secret_is_not_believed():
    told = b'{"failure": ""}\n{"secret": "no", "failure": ""}\n[1]\n\xff\n' + b"[" * 10**5
    assert read_report(told, "yes") == ()
    assert read_report(b'{"secret": "yes", "failure": "x"}\n' + told, "yes") == ("x",)


def test_this_machine_is_found_to_confine_everything():
    assert probing.unconfinable(sys.executable) == {}


def test_a_machine_that_does_not_confine_is_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "seccomp_filter", lambda names, threads: b"")
    found = probing.unconfinable.__wrapped__(sys.executable)
    assert sorted(found) == ["network", "processes"]


def test_a_program_is_not_run_if_it_is_not_confined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "seccomp_filter", lambda names, threads: b"\xff" * 8)
    with pytest.raises(EnvError, match=r"was not run.*seccomp"):
        Sandbox(Limits()).run("print('escaped')")
    assert "seccomp" in probing.unconfinable.__wrapped__(sys.executable)["network"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filters_fit_the_kernel(machine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    steps = seccomp_filter(sandbox.CONFINEMENTS, threads=False)
    assert len(steps) % 8 == 0 and len(steps) // 8 < 4096
    jumps = [(steps[at + 2], steps[at + 3]) for at in range(0, len(steps), 8)]
    assert all(at + max(jump) < len(jumps) for at, jump in enumerate(jumps))


def test_a_program_ends_with_a_trainer_that_is_killed():
    trainer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from vagentrl.interactions.code.sandbox import Limits, Sandbox\n"
            "Sandbox(Limits(wall_s=100.0, cpu_s=100)).run('while True: pass')",
        ]
    )
    while not (found := running(trainer.pid)):  # the time limit of the test ends a wait in vain
        assert trainer.poll() is None
        time.sleep(0.05)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    while Path(f"/proc/{found[0]}").exists() and "Z" not in state(found[0]):
        time.sleep(0.05)


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(os.getuid() != 0, reason="this user is an ordinary one already")
def test_an_ordinary_user_is_confined_too():
    python = shutil.which("python3.11", path="/usr/bin") or shutil.which(
        "python3.12", path="/usr/bin"
    )
    if python is None:
        pytest.skip("no interpreter that every user can run")
    with tempfile.TemporaryDirectory() as folder:  # only what the standard library can import
        package = Path(folder, "vagentrl", "interactions", "code")
        package.mkdir(parents=True)
        for parent in (package, package.parent, package.parent.parent):
            (parent / "__init__.py").touch()
        shutil.copy(HOME.parent.parent / "errors.py", package.parent.parent)
        for name in ("sandbox", "seccomp", "confined", "probing"):
            shutil.copy(HOME / f"{name}.py", package)
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755)
        program = (
            "import sys\nfrom vagentrl.interactions.code.probing import unconfinable\n"
            "print(unconfinable(sys.executable))"
        )
        done = subprocess.run(
            [python, "-c", program],
            capture_output=True,
            text=True,
            cwd="/",
            env={"PYTHONPATH": folder},
            user=65534,
            group=65534,
            extra_groups=[],
        )
    assert done.stdout == "{}\n", done.stderr
