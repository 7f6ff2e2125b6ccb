"""A seccomp filter as bytes: the system calls that a candidate program is refused.

The filter is a classic BPF program (see Documentation/userspace-api/seccomp_filter.rst of Linux).
It needs no privilege, so it works for root and for an ordinary user, also inside a container.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

# Numbers of the system calls on x86-64 and on aarch64; None where there is no such call.
Numbers = tuple[int | None, int | None]

_NETWORK: dict[str, Numbers] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "io_uring_setup": (425, 425),  # it can open sockets without the call above
}
# They start other programs, reach other processes, or change how those run.
_PROCESSES: dict[str, Numbers] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "setns": (308, 268),
    "unshare": (272, 97),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "personality": (135, 92),
    "mount": (165, 40),
    "umount2": (166, 39),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
}
# Landlock does not cover them.
_FILES: dict[str, Numbers] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}
# Memory that RLIMIT_AS does not count, or that outlives its process.
_MEMORY: dict[str, Numbers] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
_CALLS = {"network": _NETWORK, "processes": _PROCESSES, "files": _FILES, "memory": _MEMORY}
_CLONE: Numbers = (56, 220)
_CLONE3: Numbers = (435, 435)
_SOCKETPAIR: Numbers = (53, 199)
_FCNTL: Numbers = (72, 25)
_IOCTL: Numbers = (16, 29)
_PRLIMIT64: Numbers = (302, 261)
_NEWEST_CALL = 450
"""Calls with higher numbers are newer than the lists above, and are refused as unknown."""

_CLONE_THREAD = 0x00010000
_EPERM, _ENOSYS = 1, 38
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _AND, _EQUAL, _GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16


@dataclass(frozen=True)
class _Check:
    """Refuses a call by half of an argument.

    Attributes:
        word: Argument times two; plus one for its upper half.
        mask: Bits of the half that count.
        values: What is compared.
        refused: Whether these values are refused; otherwise all others are.
    """

    word: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    refused: bool = False


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.system() == "Linux" and platform.machine() in _ARCHITECTURES


def seccomp_filter(confined: Iterable[str], threads: bool) -> bytes:
    """The filter that refuses what the named confinements refuse.

    Args:
        confined: Any of ``network``, ``processes``, ``files`` and ``memory``.
        threads: Whether the program may start threads.
    """
    confined = set(confined)
    column, architecture = _ARCHITECTURES[platform.machine()]
    program = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
        _step(_GREATER, _NEWEST_CALL, 0, 1),  # the x32 calls of x86-64 are among them
        _step(_RETURN, _ERRNO | _ENOSYS),
    ]
    for name in sorted(confined):
        for numbers in _CALLS[name].values():
            program += _refusal(numbers[column])
    for numbers, checks, error in _partly_refused(confined, threads):
        program += _refusal(numbers[column], checks, error)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _partly_refused(
    confined: set[str], threads: bool
) -> list[tuple[Numbers, tuple[_Check, ...], int]]:
    calls: list[tuple[Numbers, tuple[_Check, ...], int]] = []
    if "network" in confined:
        # Only connected streams, which asyncio needs: datagrams may be sent to any address.
        calls.append((_SOCKETPAIR, (_Check(2, (1,), mask=0xF),), _EPERM))
    if "processes" in confined:
        only_threads = (_Check(0, (_CLONE_THREAD,), mask=_CLONE_THREAD),) if threads else ()
        calls += [
            (_CLONE, only_threads, _EPERM),
            (_CLONE3, (), _ENOSYS),  # its flags are out of sight; the C library then uses clone
            # F_SETOWN, F_SETSIG and F_SETOWN_EX make the kernel send signals to any process.
            (_FCNTL, (_Check(2, (8, 10, 15), refused=True),), _EPERM),
            (_IOCTL, (_Check(2, (0x8901, 0x8902), refused=True),), _EPERM),
            # Limits may be read, but not set.
            (_PRLIMIT64, (_Check(4, (0,)), _Check(5, (0,))), _EPERM),
        ]
    return calls


def _refusal(
    number: int | None, checks: tuple[_Check, ...] = (), error: int = _EPERM
) -> list[bytes]:
    """Refuse a call, or only where a check says so. The number of the call is loaded already."""
    if number is None:
        return []
    steps: list[bytes] = []
    for check in checks:
        steps += [
            _step(_LOAD, _ARGUMENTS_AT + 4 * check.word),
            _step(_AND, check.mask),
        ]
        for value in check.values:
            steps.append(_step(_EQUAL, value, 0 if check.refused else 1, 1 if check.refused else 0))
            steps.append(_step(_RETURN, _ERRNO | error))
    steps.append(_step(_RETURN, _ALLOW if checks else _ERRNO | error))
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
