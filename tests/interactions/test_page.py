"""The example of ``docs/interactions.md`` works as it stands there."""

import re
import sys
from pathlib import Path

import pytest

from vagentrl.checkenv import checker
from vagentrl.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "interactions.md"


def test_the_pages_example_can_be_played(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code, *_ = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text())
    interactions, run, *_ = re.findall(r"(?s)```yaml\n(.*?)```", PAGE.read_text())
    for name, text in (
        ("teacher.py", code),
        ("interactions.yaml", interactions),
        ("run.yaml", run),
    ):
        (run_dir / name).write_text(text)
    monkeypatch.syspath_prepend(run_dir)
    monkeypatch.setattr(
        checker, "CHECKS", {name: checker.CHECKS[name] for name in ("contract", "initial states")}
    )
    monkeypatch.setattr(checker, "HOSTILE", {"empty": ""})
    main(["check-env", "--config", "run.yaml", "--short"])
    said = capsys.readouterr().out
    assert "2 to 2 turns of random play, `success` reported" in said  # `tries` is 2
    assert "no initial state is in two splits" in said
    sys.modules.pop("teacher", None)
