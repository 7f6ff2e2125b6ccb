"""Reads stored trajectories; what cannot be read is named and left out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vagentrl.errors import ConfigError, VagentError
from vagentrl.viewer.records import FORMAT_KEY, READABLE, Provenance, load_pyarrow, schema

FOLDER = "trajectories"
"""Name of the folder in a run's folder."""
BRANCHES = "branches"
"""Name of the folder beside it with what people tried out later; the run never touches it."""
IMAGES = "images"
UNFINISHED = ".unfinished"
"""Ending of the name of a file that is being written."""

KINDS = ("train", "val", "test", "episodes", "branches")
"""What a file holds, as its name says: the episodes of an iteration that trained, validated or
tested; episodes of an evaluation or of a person; or branches of any of them."""

_NAME = re.compile(rf"({'|'.join(KINDS)})-(\d{{6,}})\.parquet")
_NESTED = ("turns", "final_observation", "final_images")
_SHOWN = ("turns.list.element.images.list.element", "final_images.list.element")


class UnreadableFile(VagentError):
    """A file of trajectories is torn, of another origin or of another version."""


class TrajectoryFile:
    """A Parquet file of trajectories.

    Args:
        path: The file.

    Attributes:
        kind: What it holds, one of `KINDS`.
        number: Number of completed iterations when its episodes were played; for the last two kinds
            the number of the file.
        groups: Number of the parts that are read separately.

    Raises:
        UnreadableFile: When it is torn, of another origin or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pa = load_pyarrow()
        try:
            with self._pa.parquet.ParquetFile(path) as file:
                written, self.groups = file.schema_arrow, file.num_row_groups
                sizes = [file.metadata.row_group(part).num_rows for part in range(self.groups)]
        except (self._pa.ArrowException, OSError) as error:
            raise UnreadableFile(f"torn, or no Parquet file ({_first_line(error)})") from error
        name, version = _NAME.fullmatch(path.name), (written.metadata or {}).get(FORMAT_KEY)
        if version is None or name is None:
            raise UnreadableFile("not written by vagentrl's TrajectoryStore")
        if (found := version.decode("utf-8", "replace")) not in READABLE:
            raise UnreadableFile(
                f"has version {found!r} of the format, but this vagentrl reads "
                f"{' and '.join(READABLE)}; look at it with the vagentrl that wrote it"
            )
        if not written.equals(schema(found)):
            raise UnreadableFile("has other fields than its version says")
        self.kind, self.number = name[1], int(name[2])
        self._places = [(part, place) for part, size in enumerate(sizes) for place in range(size)]
        self._facts = [name for name in written.names if name not in _NESTED]

    def facts(self) -> list[dict[str, Any]]:
        """All rows without their turns.

        `length` is the number of turns, `part` the part of the file that the row is in, and `place`
        the row's place there.
        """
        lengths = [
            length
            for chunk in self._read(None, ["turns.list.element.reward"]).column(0).chunks
            for length in chunk.value_lengths().to_pylist()
        ]
        rows = self._read(None, self._facts).to_pylist()
        unknown: dict[str, Any] = dict.fromkeys(Provenance.__dataclass_fields__)
        return [
            unknown | row | {"length": length, "part": part, "place": place}
            for row, length, (part, place) in zip(rows, lengths, self._places, strict=True)
        ]

    def rows(self, part: int) -> list[dict[str, Any]]:
        """The whole rows of one part."""
        return self._read(part, None).to_pylist()

    def images(self) -> set[str]:
        """Names of the images that the rows show."""
        return {
            name
            for row in self._read(None, list(_SHOWN)).to_pylist()
            for names in (row["final_images"], *(turn["images"] for turn in row["turns"]))
            for name in names
        }

    def _read(self, part: int | None, columns: list[str] | None) -> Any:
        """One part, or all of them, as a table."""
        try:
            with self._pa.parquet.ParquetFile(self.path) as file:
                if part is None:
                    return file.read(columns, use_threads=False)
                return file.read_row_group(part, columns, use_threads=False)
        except (self._pa.ArrowException, OSError) as error:
            raise UnreadableFile(f"is damaged ({_first_line(error)})") from error


@dataclass(frozen=True)
class StoredRun:
    """What a run's folder holds.

    Attributes:
        name: What to call the run.
        folder: The run's folder.
        files: The readable files, in the order of `KINDS` and then of their numbers.
        problems: A sentence about each file that is left out.
    """

    name: str
    folder: Path
    files: list[TrajectoryFile]
    problems: list[str]

    @property
    def image_folders(self) -> list[Path]:
        """Where the images of its trajectories are."""
        return [self.folder / name / IMAGES for name in (FOLDER, BRANCHES)]


def read_run(run: str | Path) -> StoredRun:
    """Find the trajectories of a run.

    Args:
        run: The run's folder, or the folder of trajectories in it.

    Raises:
        ConfigError: When there is no such folder, or it has no trajectories.
    """
    folder = _find(Path(run).expanduser()).resolve().parent
    files: list[TrajectoryFile] = []
    problems: list[str] = []
    for below in (folder / FOLDER, folder / BRANCHES):
        for path in sorted(below.glob("*.parquet")):
            try:
                files.append(TrajectoryFile(path))
            except UnreadableFile as error:
                problems.append(f"{path.name} is left out: {error}")
        for path in sorted(below.rglob(f"*{UNFINISHED}")):
            problems.append(
                f"{path.name} is left out: it was being written when the run was killed"
            )
    files.sort(key=lambda file: (KINDS.index(file.kind), file.number))
    return StoredRun("/".join(folder.parts[-2:]).lstrip("/"), folder, files, problems)


def _find(run: Path) -> Path:
    if not run.is_dir():
        raise ConfigError(
            f"there is no folder {run}; give a run's folder, such as runs/x/version_0"
        )
    if (run / FOLDER).is_dir():
        return run / FOLDER
    if run.name == FOLDER:
        return run
    below = sorted(folder.parent for folder in run.glob(f"**/{FOLDER}") if folder.is_dir())
    if below:
        raise ConfigError(f"{run} holds several runs; give one of them: {_listed(below)}")
    raise ConfigError(
        f"{run} has no trajectories; add the callback vagentrl.callbacks.TrajectoryStore to "
        "trainer.callbacks and run again; an evaluation stores them unless --store is 0"
    )


def _listed(paths: Iterable[Path], most: int = 8) -> str:
    names = [str(path) for path in paths]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
