"""``--quiet`` leaves warnings and errors, and every file of the run."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import runs

SPEAKERS = ("lightning.pytorch", "lightning.fabric")


@pytest.fixture
def levels() -> Iterator[None]:
    """Gives Lightning's loggers their levels back."""
    before = {name: logging.getLogger(name).level for name in SPEAKERS}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
def test_a_quiet_run_says_nothing_and_writes_all(run_dir: Path, capfd: pytest.CaptureFixture[str]):
    runs.checkpoint()
    capfd.readouterr()
    given = "--trainer.callbacks=IterationProgress"  # also where the configuration brings its own
    run = runs.fit("--quiet", given, "--trainer.max_epochs=1")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert {path.name for path in runs.folder(run).iterdir()} >= {
        "log.jsonl", "summary.json", "learning_curve.png", "config.yaml"
    }  # fmt: skip
    assert not logging.getLogger("lightning.pytorch.utilities.rank_zero").isEnabledFor(logging.INFO)
    assert logging.getLogger("vagentrl").isEnabledFor(logging.WARNING)
