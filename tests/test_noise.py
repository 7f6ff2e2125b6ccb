"""Warnings that come again and again are said seldom."""

import logging

import pytest
from lightning.pytorch.utilities import rank_zero_only

from vagentrl.noise import SeldomWarnings


@pytest.fixture
def log() -> logging.Logger:
    """A logger whose only handler is ours."""
    logger = logging.Logger("toy")
    logger.addHandler(SeldomWarnings())
    return logger


def test_a_warning_is_written_the_1st_10th_and_100th_time(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
):
    for number in range(1, 102):
        log.warning("iteration %d: no group", number)
    assert capsys.readouterr().err.splitlines() == [
        "iteration 1: no group",
        "iteration 10: no group (a warning like this one for the 10th time)",
        "iteration 100: no group (a warning like this one for the 100th time)",
    ]


def test_other_warnings_errors_and_news_are_not_confused(
    log: logging.Logger, capsys: pytest.CaptureFixture[str]
):
    for reason in ("no water", "no light", "no water"):
        log.warning("%d of 16 episodes failed: %s (took %.1e s)", len(reason), reason, 0.00012)
        log.error("an error")
        log.info("news")
    assert capsys.readouterr().err.splitlines() == [
        "8 of 16 episodes failed: no water (took 1.2e-04 s)", "an error",
        "8 of 16 episodes failed: no light (took 1.2e-04 s)", "an error", "an error",
    ]  # fmt: skip


def test_other_ranks_write_errors_only(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    log.warning("a warning")
    log.error("an error")
    assert capsys.readouterr().err == "an error\n"
