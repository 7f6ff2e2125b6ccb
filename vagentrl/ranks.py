"""What the processes of a run tell each other; one process alone is rank 0 of 1."""

from __future__ import annotations

from pathlib import Path

from lightning import Trainer


def run_folder(trainer: Trainer) -> Path:
    """Where a run writes. All ranks must ask together: rank 0 tells the others."""
    return Path(trainer.log_dir or trainer.default_root_dir)
