"""Run a candidate program under confinement. A process of its own runs this file as a script.

It uses the standard library alone, so that any interpreter can run it. The job arrives as JSON in
the file descriptor that the command line names. The parent process is `sandbox`.
"""

import ctypes
import json
import os
import resource
import struct
import sys
import types

# From Linux' prctl.h, seccomp.h, capability.h and landlock.h.
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
WRITE_FILE, REMOVE_FILE, MAKE_FILE, TRUNCATE = (1 << bit for bit in (1, 5, 8, 14))
RIGHTS_OF_FILES = READ_FILE | WRITE_FILE | TRUNCATE
SIGKILL = 9
LIBC = ctypes.CDLL(None, use_errno=True)


class Unconfined(Exception):
    """The kernel refused a confinement."""


def checked(result: int, what: str) -> int:
    if result < 0:
        raise Unconfined(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, value: int, what: str, pointer: object = 0) -> None:
    checked(LIBC.prctl(option, ctypes.c_ulong(value), pointer, 0, 0), what)


def die_with_parent(parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, SIGKILL, "PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it has ended before the call
        os._exit(1)


def set_limits(limits: dict[str, int], cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # SIGXCPU, then SIGKILL
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def drop_privileges() -> None:
    """Give up the capabilities of root for good; an ordinary user has none."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # an ordinary user may not, and need not
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    checked(LIBC.capset(header, bytes(24)), "capset")


def confine_files(readable: list[str], writable: list[str]) -> None:
    """Let the process open only these files and folders, by Landlock."""
    version = checked(LIBC.syscall(CREATE_RULESET, None, 0, VERSION_FLAG), "Landlock")
    handled = (1 << 13) - 1  # the rights of version 1; later versions add some
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        handled |= (1 << bit) if version >= since else 0
    network = 0b11 if version >= 4 else 0  # TCP: bind and connect
    scopes = 0b11 if version >= 6 else 0  # abstract UNIX sockets, and signals
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, network, scopes)
    ruleset = checked(LIBC.syscall(CREATE_RULESET, attributes, size, 0), "Landlock")
    reading = READ_FILE | READ_DIR
    writing = reading | WRITE_FILE | REMOVE_FILE | MAKE_FILE | TRUNCATE  # a flat folder
    for paths, rights in ((readable, reading), (writable, writing)):
        for path in paths:
            allow(ruleset, path, rights & handled)
    checked(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it does not exist here
    if not os.path.isdir(path):
        rights &= RIGHTS_OF_FILES
    rule = struct.pack("=Qi", rights, opened)
    checked(LIBC.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0), f"Landlock of {path}")
    os.close(opened)


def refuse_system_calls(program: bytes) -> None:
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(steps))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, "seccomp", header)


def confine(job: dict) -> None:
    set_limits(job["limits"], job["cpu_s"])
    drop_privileges()
    if "files" in job["confined"]:
        confine_files(job["readable"], job["writable"])
    if job["filter"]:
        refuse_system_calls(bytes.fromhex(job["filter"]))


def shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def run_check(check: str, namespace: dict) -> str:
    """Why a check fails; empty if it holds."""
    try:
        exec(compile(check, "check.py", "exec"), namespace)
    except BaseException as error:  # also SystemExit, by which no check may be passed
        return shown(error)[:2000]
    return ""


def main() -> None:
    job_at, report, parent = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent)
    with open(job_at, encoding="utf-8") as stream:
        job = json.load(stream)

    def tell(name: str, text: str, secret: str = job["secret"]) -> None:
        os.write(report, json.dumps({"secret": secret, name: text}).encode() + b"\n")

    try:
        confine(job)
    except (Unconfined, OSError, ValueError) as error:
        tell("unconfined", shown(error))
        os._exit(1)
    program, checks = job["program"], job["checks"]
    del job
    sys.argv = ["program.py"]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(program, "program.py", "exec"), module.__dict__)
    for check in checks:
        tell("failure", run_check(check, module.__dict__))


if __name__ == "__main__":
    main()
