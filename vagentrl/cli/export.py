"""``vagentrl export``: a trained policy as a Hugging Face model."""

from __future__ import annotations

from collections.abc import Sequence

from vagentrl.cli.parser import run_function


def run_export(arguments: Sequence[str]) -> None:
    """``vagentrl export``."""
    from vagentrl.policy import export_policy

    run_function(export_policy, "export", arguments, as_positional=True)
