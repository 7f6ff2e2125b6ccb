"""What this machine can confine, found out by trying to break out."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping
from functools import cache

from vagentrl.errors import ConfigError, EnvError
from vagentrl.interactions.code.sandbox import CONFINEMENTS, Confinement, Limits, Sandbox
from vagentrl.interactions.code.seccomp import supported

_MEMORY_MB = 512
# Each prints "confined" if its attempt is refused.
_ATTEMPTS: Mapping[Confinement, str] = {
    "network": """
import socket
try:
    socket.socket()
except PermissionError:
    print("confined")
""",
    "processes": """
import os
try:
    if os.fork() == 0:
        os._exit(0)
except PermissionError:
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        print("confined")
""",
    "files": """
try:
    open({outside!r}).close()
except PermissionError:
    try:
        open({outside!r}, "a").close()
    except PermissionError:
        print("confined")
""",
    "memory": f"""
try:
    bytearray({2 * _MEMORY_MB} * 2**20)
except MemoryError:
    print("confined")
""",
}


@cache
def unconfinable(python: str) -> Mapping[Confinement, str]:
    """What this machine cannot confine when `python` runs the programs, each with the reason."""
    if platform.system() != "Linux":
        raise ConfigError(
            f"candidate programs cannot be limited on {platform.system()}; use a machine with Linux"
        )
    if not supported():
        reason = f"there is no seccomp filter for {platform.machine()}"
        return dict.fromkeys(CONFINEMENTS, reason)
    reasons: dict[Confinement, str] = {}
    limits = Limits(wall_s=30.0, memory_mb=_MEMORY_MB)
    with tempfile.NamedTemporaryFile() as outside:
        for name, attempt in _ATTEMPTS.items():
            program = attempt.replace("{outside!r}", repr(outside.name))
            try:
                run = Sandbox(limits, (name,), python).run(program)
            except EnvError as error:
                reasons[name] = str(error)
                continue
            if run.output.strip() != "confined":
                reasons[name] = f"a program got round it {run.error}".strip()
    return reasons


def confinements(allow_unconfined: list[Confinement], python: str) -> tuple[Confinement, ...]:
    """What to confine on this machine.

    Args:
        allow_unconfined: What need not be confined where it cannot be.
        python: The interpreter that runs the programs.

    Raises:
        ConfigError: Something cannot be confined, and is not in `allow_unconfined`.
    """
    open_to_programs = unconfinable(python)
    refused = {n: why for n, why in open_to_programs.items() if n not in allow_unconfined}
    if refused:
        reasons = "; ".join(f"{name} ({why})" for name, why in refused.items())
        raise ConfigError(
            f"this machine cannot confine candidate programs: {reasons}. CodeInteraction needs "
            "Linux 5.13 or newer with Landlock and seccomp, on x86-64 or aarch64. To run candidate "
            "programs without this, "
            f"set allow_unconfined: [{', '.join(refused)}]"
        )
    return tuple(name for name in CONFINEMENTS if name not in open_to_programs)
