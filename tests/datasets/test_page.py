"""The example of the page about data sets."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/datasets.md"


def test_the_three_lines_are_what_the_page_says(run_dir: Path):
    page = PAGE.read_text()
    (lines,) = re.findall(r"```json\n(.+?)```", page, re.DOTALL)
    (program,) = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    Path("sums.jsonl").write_text(lines)
    names: dict[str, Any] = {}
    exec(program, names)
    shown = re.findall(r"(?m)^(.+?) +# (.+)$", program)
    assert len(shown) == 3
    for expression, value in shown:
        if not expression.startswith("task ="):
            assert str(eval(expression, names)) == value
