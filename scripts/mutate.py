"""Mutation testing: how many small changes of the learning code make a test fail?

    python -m scripts.mutate [FILE ...] [--sample N]

Each mutant is a copy of a module with one change (see scripts/mutants.py, which needs mutmut). Of
the module's tests, those that execute the changed function run until the first failure, which kills
the mutant; a mutant that passes them all survives. The mutants run one after the other, in forks of
a process that has imported the third-party packages already, and on a copy of the project in a
temporary folder.

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
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from tqdm import tqdm

from scripts.mutant_runs import NOT_IN_PLACE, PASSED, Chosen, Server, in_fork
from scripts.mutant_tests import Executed, ProjectTests, Recorder, few_cases, files_of_tests
from scripts.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "scripts" / "mutants.toml"
COPIED = ("vagentrl", "envs", "judges", "tests", "scripts", "configs", "docs", "pyproject.toml")
WANTED = 0.9

TESTS: dict[str, tuple[str, ...]] = {
    "vagentrl/filters.py": (
        "tests/test_filters.py",
        "tests/exact/test_filters.py",
        "tests/test_part_mistakes.py::test_a_mistake_is_named_where_it_is_made",
    ),
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
        "tests/modules/test_loss.py",
        "tests/modules/test_invariants.py",
        "tests/modules/test_agent.py",
        "tests/modules/test_agent_setup.py",
        "tests/modules/test_agent_steps.py",
        "tests/test_python_mistakes.py::test_what_is_of_the_wrong_kind_is_refused_where_it_is_given",
        *(
            f"tests/{test}"
            for test in (
                "callbacks/test_critic_warmup.py::test_the_actor_is_bit_identical_until_the_warmup_"
                "is_over_and_then_learns",
                "end_to_end/test_fit.py::test_group_relative_credit_needs_neither_critic_nor_"
                "reference",
                "end_to_end/test_fit.py::test_with_an_adapter_nothing_else_learns_and_the_"
                "reference_is_the_start",
                "end_to_end/test_resume.py::test_a_checkpoint_holds_no_copy_of_the_reference",
                "end_to_end/test_resume.py::test_a_checkpoint_from_within_an_iteration_is_refused",
                "test_trainer.py::test_a_second_trainer_goes_on_where_the_first_ended",
                "test_trainer.py::test_a_reference_may_be_needed_only_after_an_evaluation",
                "test_trainer.py::test_a_run_that_went_on_is_resumed_with_its_own_end",
            )
        ),
    ),
    "vagentrl/advantages": (
        "tests/advantages",
        "tests/exact/test_estimators.py",
        "tests/test_part_mistakes.py::test_a_mistake_is_named_where_it_is_made",
    ),
    "vagentrl/losses": (
        "tests/losses",
        "tests/exact/test_losses.py",
        "tests/exact/test_kl.py",
        "tests/test_part_mistakes.py::test_a_mistake_is_named_where_it_is_made",
    ),
}
"""The tests of a file, or of every file of a folder."""


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

    def baseline(self, tests: Sequence[str]) -> ProjectTests:
        """Run the tests on the project as it is, and see what they execute.

        The modules of other packages that they import are then imported here, once for all forks.
        """
        found = self.folder / "executed.json"

        def run() -> int:
            self._begin()
            return _pytest(tests, Recorder(self.folder / "vagentrl", found))

        if in_fork(run, cpu_s=600) != 0:
            raise SystemExit(f"the tests fail without any mutant:\n{self.log.read_text()[-3000:]}")
        project = ProjectTests.read(found)
        for name in project.modules:
            if not _is_project_module(name):
                with suppress(ImportError):
                    importlib.import_module(name)
        gc.freeze()  # no fork looks through all of that for garbage
        return project

    def survivors(self, mutants: Sequence[Mutant], tests: ProjectTests) -> list[Mutant]:
        """The mutants of a file with which the fastest tests of the changed function pass.

        Test files are imported without the mutant, and of parametrised tests a few cases are run.
        """
        jobs: list[tuple[Mutant, list[str], float]] = []
        for mutant in mutants:
            chosen = few_cases(tests.of_line(mutant.file, _source(mutant), mutant.line))
            jobs.append((mutant, [one.test for one in chosen], _limit(chosen)))
        files = files_of_tests([name for _, names, _ in jobs for name in names])
        reading, writing = os.pipe()

        def serve() -> int:
            self._begin()
            return _pytest(files, Server(jobs, lambda code: _send(writing, code)))

        server = os.fork()
        if server == 0:
            try:
                serve()
            finally:
                os._exit(0)
        os.close(writing)
        survivors: list[Mutant] = []
        with os.fdopen(reading, "rb") as codes:
            for mutant, names, cpu_s in tqdm(jobs, desc=mutants[0].file, unit="mutant"):
                code = codes.read(1)
                if not code:
                    raise SystemExit(f"the tests cannot run:\n{self.log.read_text()[-3000:]}")
                if code[0] == NOT_IN_PLACE:
                    code = bytes([self._on_disk(mutant, names, cpu_s)])
                if code[0] == PASSED:
                    survivors.append(mutant)
        os.waitpid(server, 0)
        return survivors

    def survives(self, mutant: Mutant, tests: ProjectTests) -> bool:
        """Whether all tests of the changed function pass with the mutant in place of its module."""
        chosen = tests.all_of_line(mutant.file, _source(mutant), mutant.line)
        return self._on_disk(mutant, [one.test for one in chosen], _limit(chosen)) == PASSED

    def _on_disk(self, mutant: Mutant, tests: Sequence[str], cpu_s: float) -> int:
        """Run the tests with the mutant in place of its module; returns pytest's exit code."""

        def run() -> int:
            self._begin()
            return _pytest(files_of_tests(tests), Chosen(tests))

        module = self.folder / mutant.file
        original = module.read_text()
        for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
            compiled.unlink()  # Python tells sources apart by their size and second alone
        module.write_text(mutant.source)
        try:
            return in_fork(run, cpu_s)
        finally:
            module.write_text(original)

    def _begin(self) -> None:
        """Make this fork a process that has imported nothing of the project."""
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.folder)
        sys.path = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
        for name in [name for name in sys.modules if _is_project_module(name)]:
            del sys.modules[name]
        sys.dont_write_bytecode = True


def _pytest(tests: Sequence[str], plugin: object) -> int:
    options = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def _source(mutant: Mutant) -> str:
    return (ROOT / mutant.file).read_text()


def _limit(tests: Sequence[Executed]) -> float:
    """Processor time after which a mutant is in a loop without end."""
    return 5 + 3 * sum(one.cpu_s for one in tests)


def _send(pipe: int, code: int) -> None:
    os.write(pipe, bytes([code]))


def _is_project_module(module: str) -> bool:
    package = module.split(".")[0]
    return package.startswith("vagentrl") or package in ("tests", "scripts", "conftest")


def mutate(project: ProjectCopy, file: str, tests: ProjectTests, sample: int | None) -> Result:
    """Try the mutants of a file."""
    possible = mutants_of(ROOT, file)
    tried = possible
    if sample is not None and sample < len(possible):
        tried = sorted(random.Random(0).sample(possible, sample), key=lambda mutant: mutant.line)
    known = known_survivors()
    survivors = [
        mutant
        for mutant in project.survivors(tried, tests)
        if mutant.key in known or project.survives(mutant, tests)
    ]
    return Result(file, len(tried), len(possible), survivors)


def tests_of(file: str) -> tuple[str, ...]:
    """The tests of a file or of its folder."""
    return next(
        tests for path, tests in TESTS.items() if file == path or file.startswith(path + "/")
    )


def files_of(paths: Sequence[str]) -> list[str]:
    """The modules of these files and folders that have something to mutate."""
    found: list[str] = []
    for path in paths:
        under = ROOT / path
        modules = sorted(under.rglob("*.py")) if under.is_dir() else [under]
        found += [str(module.relative_to(ROOT)) for module in modules]
    return [file for file in found if mutants_of(ROOT, file)]


def known_survivors() -> set[tuple[str, str, str]]:
    """The keys of the mutants that are known to survive."""
    entries = tomllib.loads(KNOWN.read_text())["survivor"]
    return {(entry["file"], entry["was"], entry["now"]) for entry in entries}


def report(results: Sequence[Result]) -> bool:
    """Print kill rates and the survivors that are not explained; returns whether all is well."""
    known = known_survivors()
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
        results = [
            mutate(project, file, executed, settings.sample)
            for tests, together in groupby(files, key=tests_of)
            for executed in [project.baseline(tests)]
            for file in together
        ]
    gc.unfreeze()
    if not report(results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
