"""Writes docs/environments/table.md: what `vagentrl check-env --all` measures of every environment.

    OMP_NUM_THREADS=1 python scripts/environment_table.py            # minutes for each environment
    OMP_NUM_THREADS=1 python scripts/environment_table.py --short    # a rough one

Fails, and writes nothing, if a check fails.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

from vagentrl.checkenv import LONG, SHORT, TABLE_HEAD, check_environment
from vagentrl.cli.check_env import exact_judge, installed_environments

PAGE = Path(__file__).parents[1] / "docs" / "environments" / "table.md"

HEAD = """# Environments in numbers

`python scripts/environment_table.py{short}` writes this page from what `vagentrl check-env`
measures; do not edit it by hand. Every environment is played with its default settings and passes
all checks.

- **random**, **constant**, **oracle**: success in up to {plays} episodes, with the mean return in
  brackets, of random actions, of the best reply that is the same in every turn (both held-out), and
  of the environment's own oracle.
- **distinct states**: different initial states among the first {states:,} seeds of training,
  validation and test. No held-out state is one of training's.
- **steps/s**, **reset ms**: one thread, {machine}, beside other programs.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="seconds for each environment")
    short = parser.parse_args().short
    effort = SHORT if short else LONG
    reports = []
    for name, factory in installed_environments():
        reports.append(check_environment(factory, name, effort, exact_judge()))
        print(reports[-1].line(), flush=True)
    if not all(report.sound for report in reports):
        raise SystemExit("no table is written: a check failed")
    head = HEAD.format(
        short=" --short" if short else "",
        plays=effort.plays,
        states=effort.states,
        machine=_machine(),
    )
    PAGE.write_text("\n".join([head, TABLE_HEAD, *(report.row() for report in reports), ""]))


def _machine() -> str:
    """Name of the processor."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{named[0] if named else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
