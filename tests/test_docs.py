"""What is written about the project."""

import re
import tomllib
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from vagentrl.losses import TruncatedImportance

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if heading:
            assert heading in map(anchor, re.findall(r"(?m)^#+ (.+)$", file.read_text())), target


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in(page: Path):
    assert not re.search(r"@@|\bTODO\b|\bTBD\b|\bXXX\b", page.read_text())


def test_the_layers_in_contributing_are_those_that_import_linter_checks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = [
        c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers"
    ]
    checked = [set(line.strip("()").split(" | ")) for line in contract["layers"]]
    checked.remove({"__main__"})
    page = (ROOT / "docs" / "CONTRIBUTING.md").read_text()
    section = page.partition("## Where things go")[2].partition("\n## ")[0]
    listed = [
        set(re.findall(r"`(\w+)`", line.partition(":")[0]))
        for line in re.findall(r"(?m)^\d+\. (.+)$", section)
    ]
    assert listed == checked


def test_the_published_off_policy_corrections_can_be_built():
    page = (ROOT / "docs/algorithms.md").read_text()
    published = re.findall(r"(?m)^\| [\w ,]+ \| `(\{.+\})` \|", page)
    assert len(published) == 6
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--importance", type=TruncatedImportance)
    for settings in published:
        parsed = parser.parse_args(["--importance", settings])
        assert isinstance(parser.instantiate(parsed).importance, TruncatedImportance)
