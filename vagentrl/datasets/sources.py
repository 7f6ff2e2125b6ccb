"""Which files a path means."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from pathlib import Path

from vagentrl.datasets.arrow import ArrowFile, ParquetFile
from vagentrl.datasets.json_lines import JsonLinesFile
from vagentrl.datasets.row_file import RowFile
from vagentrl.environment import Split
from vagentrl.errors import ConfigError

_KINDS: dict[str, type[RowFile]] = {
    ".jsonl": JsonLinesFile,
    ".jsonl.gz": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".ndjson.gz": JsonLinesFile,
    ".json": JsonLinesFile,
    ".json.gz": JsonLinesFile,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
}
_HELD_OUT = ("val", "dev", "test", "eval")
Paths = dict[Split, tuple[str, ...]]


def find_splits(paths: Paths) -> Paths:
    """The paths of each split, with those inside of a Hugging Face ``DatasetDict``.

    Its ``validation`` and ``test`` are used for the splits that have no path of their own.
    """
    if len(paths["train"]) != 1:
        return paths
    folder = Path(paths["train"][0]).expanduser()
    if not (folder / "dataset_dict.json").is_file():
        return paths
    if not (folder / "train").is_dir():
        there = ", ".join(sorted(each.name for each in folder.iterdir() if each.is_dir()))
        raise ConfigError(f"{folder} has no split 'train' (it has {there}); give path one of them")
    inside: Paths = {
        split: (str(folder / split),)
        for split in ("train", "validation", "test")
        if (folder / split).is_dir()
    }
    return {**inside, **{split: given for split, given in paths.items() if split != "train"}}


def find_files(paths: Sequence[str]) -> list[RowFile]:
    """The files of one split, each once.

    Args:
        paths: Files, folders, and patterns such as ``data/*.jsonl``.

    Raises:
        ConfigError: When there is none, or one is of an unknown kind.
    """
    found = {file.resolve(): file.absolute() for path in paths for file in _files(path)}
    return [_kind(file)(file) for file in found.values()]  # a link's name tells the kind


def _files(path: str) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_dir():
        return _in_folder(place)
    if place.exists():
        return [place]
    matches = [Path(match) for match in sorted(glob.glob(str(place), recursive=True))]
    files = [match for match in matches if match.is_file()]
    if not files:
        raise ConfigError(
            f"there is no file {path} (looked in {Path.cwd()}); give a file, a folder or a pattern"
        )
    return files


def _in_folder(folder: Path) -> list[Path]:
    """The files of a folder, in the order of their names."""
    state = folder / "state.json"
    if state.is_file():  # a data set of Hugging Face's `datasets`
        return _saved_files(state)
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and _suffix(file)]
    if not files:
        raise ConfigError(f"the folder {folder} has no file that ends in {', '.join(_KINDS)}")
    held_out = [file.name for file in files if file.name.lower().startswith(_HELD_OUT)]
    if held_out and len(held_out) < len(files):
        raise ConfigError(
            f"the folder {folder} has files to train on, and also {', '.join(held_out)}; give "
            "path, validation_path and test_path a file each"
        )
    return files


def _saved_files(state: Path) -> list[Path]:
    try:
        listed = json.loads(state.read_text())["_data_files"]
        return [state.parent / each["filename"] for each in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{state} lists no data files ({type(error).__name__}: {error}); save the data set "
            "again with save_to_disk"
        ) from error


def _suffix(file: Path) -> str | None:
    return next((suffix for suffix in _KINDS if file.name.lower().endswith(suffix)), None)


def _kind(file: Path) -> type[RowFile]:
    suffix = _suffix(file)
    if suffix is None:
        raise ConfigError(f"{file} is of no known kind; give one that ends in {', '.join(_KINDS)}")
    return _KINDS[suffix]
