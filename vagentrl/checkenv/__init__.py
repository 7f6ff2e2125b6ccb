"""Checks whether an environment can be trained on, and measures what play earns in it.

`check_environment` plays an environment in processes of its own and returns a `Report`: a verdict
of each check, and a row of the table in the documentation. Nothing here knows a particular
environment.
"""

from vagentrl.checkenv.checker import check_environment
from vagentrl.checkenv.effort import LONG, SHORT, Effort
from vagentrl.checkenv.report import TABLE_HEAD, Finding, Report

__all__ = ["LONG", "SHORT", "TABLE_HEAD", "Effort", "Finding", "Report", "check_environment"]
