"""``vagentrl recipes``: the configurations that ship with vagentrl, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import vagentrl
from vagentrl.errors import ConfigError

HELP = """usage: vagentrl recipes [NAME]

List the recipes that ship with vagentrl, or print one of them.

  vagentrl recipes                               a line for each
  vagentrl recipes sokoban_vlm                   print one
  vagentrl recipes sokoban_vlm > mine.yaml       copy one, to change it
  vagentrl fit --config sokoban_vlm              run one as it is
  vagentrl warmstart --config warmstart/bandit_tiny

The last part of a name is enough where it says which: gigpo stands for recipes/gigpo.
"""


def run_recipes(arguments: Sequence[str]) -> None:
    """``vagentrl recipes``."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
    elif not arguments:
        print("\n".join(_listing()))
    elif len(arguments) > 1 or arguments[0].startswith("-"):
        raise ConfigError(
            f"vagentrl recipes takes one name at most, not {' '.join(arguments)}; see "
            "vagentrl recipes --help"
        )
    else:
        print(_find_recipe(arguments[0]).read_text(encoding="utf-8"), end="")


def find_config(name: str) -> Path:
    """The file that ``--config`` means: a path where there is a file, else a recipe by its name."""
    path = Path(name)
    if path.is_file():
        return path
    try:
        return _find_recipe(name)
    except ConfigError as error:
        if path.is_dir():
            inside = sorted(file.name for file in path.glob("*.yaml"))
            raise ConfigError(
                f"--config: {name} is a folder; name a file in it: {', '.join(inside) or 'none'}"
            ) from error
        raise ConfigError(f"--config: there is no file {name}, and {error}") from error


def recipes() -> dict[str, Path]:
    """The recipes, by name: the path of the YAML in `configs` without its suffix."""
    folder = _folder()
    names = {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")
    }
    return {name: names[name] for name in sorted(names, key=lambda name: (name.count("/"), name))}


def _folder() -> Path:
    """Beside the modules in an installed wheel, beside the package in a checkout."""
    package = Path(vagentrl.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def _find_recipe(name: str) -> Path:
    known = recipes()
    meant = [full for full in known if full == name or full.endswith(f"/{name}")]
    meant = [full for full in meant if full.count("/") == meant[0].count("/")]  # not its variants
    if len(meant) == 1:
        return known[meant[0]]
    if meant:
        raise ConfigError(f"{name} may mean several recipes: {', '.join(meant)}")
    stem = Path(name).with_suffix("").as_posix().removeprefix("configs/")
    names = {full.rpartition("/")[2]: full for full in known} | {full: full for full in known}
    close = dict.fromkeys(names[match] for match in difflib.get_close_matches(stem, names, n=2))
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(f"there is no recipe {name}; {guess}`vagentrl recipes` lists them")


def _listing() -> list[str]:
    known = recipes()
    width = max(map(len, known), default=0)
    return [f"{name:<{width}}  {_first_line(path)}" for name, path in known.items()]


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()
