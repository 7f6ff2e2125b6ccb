"""The page on Python runs from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


def blocks(page: Path) -> list[tuple[int, str]]:
    """Python blocks of a page, each with the number of its first line."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in found]


def test_every_block_runs_after_the_one_before(run_dir: Path, capsys: pytest.CaptureFixture[str]):
    names: dict[str, Any] = {"__name__": "a_notebook"}
    for line, code in blocks(PAGE):
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)  # errors name the page's line
    assert names["agent"].iteration == 3
    assert names["episode"].turns and "of the held-out episodes" in capsys.readouterr().out
    assert Image.open("episode.png").width > 200
    assert names["reply"].problem is None and len(names["reply"].actions) == 1
    assert [t.turns for t in names["trajectories"]]
    assert names["model"].num_parameters() == names["policy"].model.num_parameters()
    assert next(run_dir.glob("runs/*/version_0/summary.json")).is_file()


def test_the_first_run_has_thirty_lines():
    _, code = blocks(PAGE)[0]
    assert len(code.splitlines()) <= 30
