"""Every installed environment passes the checker.

`scripts/environment_table.py` checks at length.
"""

import pytest

from vagentrl.checkenv import Effort, check_environment
from vagentrl.cli.check_env import exact_judge, installed_environments
from vagentrl.environment import Environment

BRIEF = Effort(episodes=8, states=64, plays=6, seconds=0.5, patience_s=60)


@pytest.mark.parametrize(("name", "kind"), list(installed_environments()))
def test_an_installed_environment_passes_every_check(name: str, kind: type[Environment]):
    report = check_environment(kind, name, BRIEF, exact_judge())
    assert report.sound, str(report)
