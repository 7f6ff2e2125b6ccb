"""Mutation testing: how many small changes of the learning code make a test fail?

    python -m scripts.mutate [FILE ...] [--sample N]

Each mutant is a copy of a module with one change (see scripts/mutants.py, which needs mutmut). The
tests of the module run until the first failure, which kills the mutant; a mutant that passes them
all survives. The mutants run one after the other, in forks of a process that has imported the
third-party packages already, and on a copy of the project in a temporary folder.

scripts/mutants.toml says of each known survivor why it does no harm. The script fails when another
mutant survives, or when fewer than 90 % of the mutants of a file are killed.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from scripts.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "scripts" / "mutants.toml"
COPIED = ("vagentrl", "envs", "judges", "tests", "scripts", "configs", "docs", "pyproject.toml")
WANTED = 0.9

TESTS: dict[str, tuple[str, ...]] = {
    "vagentrl/filters.py": ("tests/test_filters.py", "tests/exact/test_filters.py"),
    "vagentrl/rollout/collate.py": (
        "tests/rollout/test_collate.py",
        "tests/exact/test_world.py",
        "tests/exact/test_rows.py",
    ),
    "vagentrl/rollout/loader.py": (
        "tests/rollout/test_loader.py",
        "tests/exact/test_rows.py",
        "tests/exact/test_losses.py::test_the_loss_is_the_sum_over_micro_batches_and_ranks",
    ),
    "vagentrl/modules/agent.py": (
        "tests/exact/test_losses.py",
        "tests/exact/test_kl.py",
        "tests/exact/test_fit.py",
        "tests/modules/test_invariants.py",
        "tests/modules/test_agent.py",
        "tests/callbacks/test_critic_warmup.py",
    ),
    "vagentrl/advantages": ("tests/advantages", "tests/exact/test_estimators.py"),
    "vagentrl/losses": ("tests/losses", "tests/exact/test_losses.py", "tests/exact/test_kl.py"),
}
"""The tests of a file, or of every file of a folder, the fastest first."""


class Run(NamedTuple):
    """How a run of the tests ended: pytest's exit code, -1 when it was stopped, and its time."""

    code: int
    cpu_s: float


@dataclass(frozen=True)
class Result:
    """What the tests made of a file's mutants."""

    file: str
    tried: int
    possible: int
    survivors: list[Mutant]

    @property
    def rate(self) -> float:
        return 1 - len(self.survivors) / self.tried


class ProjectCopy:
    """A copy of the project in which one module at a time is replaced by a mutant.

    Args:
        folder: Where the copy goes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "pytest.log"
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(ROOT / name, folder / name)
        compileall.compile_dir(folder / "vagentrl", quiet=2)

    def baseline(self, tests: Sequence[str]) -> float:
        """Run the tests on the project as it is; returns the processor time that they take.

        The modules of other packages that they import are then imported here, once for all forks.
        """
        modules = self.folder / "modules.json"
        first = self.run(tests, cpu_s=600, list_modules=modules)
        if first.code != 0:
            raise SystemExit(f"the tests fail without any mutant:\n{self.log.read_text()[-3000:]}")
        for name in json.loads(modules.read_text()):
            with suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()  # no fork looks through all of that for garbage
        return self.run(tests, cpu_s=600).cpu_s

    def survives(self, mutant: Mutant, tests: Sequence[str], cpu_s: float) -> bool:
        """Whether all tests pass with the mutant in place of its module."""
        module = self.folder / mutant.file
        original = module.read_text()
        for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
            compiled.unlink()  # Python tells sources apart by their size and second alone
        module.write_text(mutant.source)
        try:
            return self.run(tests, cpu_s=cpu_s).code == 0
        finally:
            module.write_text(original)

    def run(self, tests: Sequence[str], *, cpu_s: float, list_modules: Path | None = None) -> Run:
        """Run tests in a fork, with a limit on its processor time.

        Args:
            tests: Files and folders of tests.
            cpu_s: The limit.
            list_modules: File for the names of the other packages' modules that were imported.
        """
        child = os.fork()
        if child == 0:
            code = -1
            try:
                code = self._run_here(tests, cpu_s, list_modules)
            finally:
                os._exit(code)
        deadline = time.monotonic() + 20 * cpu_s  # other processes may have the cores
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                used = usage.ru_utime + usage.ru_stime
                return Run(os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1, used)
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                deadline += 20 * cpu_s
            time.sleep(0.02)

    def _run_here(self, tests: Sequence[str], cpu_s: float, list_modules: Path | None) -> int:
        os.setsid()
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.folder)
        sys.path = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
        for name in [name for name in sys.modules if _is_project_module(name)]:
            del sys.modules[name]
        sys.dont_write_bytecode = list_modules is None
        limit = int(cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
        if list_modules is not None:
            others = [name for name in sys.modules if not _is_project_module(name)]
            list_modules.write_text(json.dumps(others))
        return int(code)


def _is_project_module(module: str) -> bool:
    package = module.split(".")[0]
    return package.startswith("vagentrl") or package in ("tests", "scripts", "conftest")


def mutate(project: ProjectCopy, file: str, sample: int | None) -> Result:
    """Try the mutants of a file."""
    tests = next(
        tests for path, tests in TESTS.items() if file == path or file.startswith(path + "/")
    )
    possible = mutants_of(ROOT, file)
    tried = possible
    if sample is not None and sample < len(possible):
        tried = sorted(random.Random(0).sample(possible, sample), key=lambda mutant: mutant.line)
    limit = 10 + 3 * project.baseline(tests)
    survivors = [
        mutant
        for mutant in tqdm(tried, desc=file, unit="mutant")
        if project.survives(mutant, tests, limit)
    ]
    return Result(file, len(tried), len(possible), survivors)


def files_of(paths: Sequence[str]) -> list[str]:
    """The modules of these files and folders that have something to mutate."""
    found: list[str] = []
    for path in paths:
        under = ROOT / path
        modules = sorted(under.rglob("*.py")) if under.is_dir() else [under]
        found += [str(module.relative_to(ROOT)) for module in modules]
    return [file for file in found if mutants_of(ROOT, file)]


def report(results: Sequence[Result]) -> bool:
    """Print kill rates and the survivors that are not explained; returns whether all is well."""
    known = {
        (entry["file"], entry["was"], entry["now"])
        for entry in tomllib.loads(KNOWN.read_text())["survivor"]
    }
    unknown = [
        mutant for result in results for mutant in result.survivors if mutant.key not in known
    ]
    print("| file | mutants | tried | killed | rate |\n|---|--:|--:|--:|--:|")
    for result in results:
        killed = result.tried - len(result.survivors)
        print(
            f"| {result.file} | {result.possible} | {result.tried} | {killed} | {result.rate:.1%} |"
        )
    for mutant in unknown:
        print(f"\n# line {mutant.line}\n[[survivor]]")
        for name in ("file", "was", "now"):
            print(f"{name} = {json.dumps(getattr(mutant, name))}")
        print('why = ""')
    everything = {mutant.key for result in results for mutant in result.survivors}
    whole = {result.file for result in results if result.tried == result.possible}
    for file, was, now in sorted(known - everything):
        if file in whole:
            print(f"\nno longer survives: {file}: {was} -> {now}")
    return not unknown and all(result.rate >= WANTED for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description="Try mutants of the learning code.")
    parser.add_argument("paths", nargs="*", help="modules or folders; default: all that have tests")
    parser.add_argument("--sample", type=int, help="mutants of each file, drawn with a fixed seed")
    settings = parser.parse_args()
    os.nice(10)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        project = ProjectCopy(Path(folder).resolve())
        files = files_of(settings.paths or list(TESTS))
        results = [mutate(project, file, settings.sample) for file in files]
    gc.unfreeze()
    if not report(results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
