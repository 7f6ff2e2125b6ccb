"""`TaskFiles`: tasks that are rows of files."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from vagentrl.datasets.cache import cache_folder, digest
from vagentrl.datasets.index import SPLITS, Index, build_index, split_by_content
from vagentrl.datasets.row import Fields, Form, Row, read_row
from vagentrl.datasets.row_file import RowFile, Scanned
from vagentrl.datasets.row_images import RowImages
from vagentrl.datasets.sources import Paths, find_files, find_splits
from vagentrl.environment import Split
from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions.tasks import Task, Tasks

log = logging.getLogger(__name__)

_FORMAT = 1
"""Of the indexes in the cache; one of another format is made again."""


class TaskFiles(Tasks):
    """Tasks that are rows of JSON Lines, Parquet or Arrow files.

    Rows stay on disk. The files are read once from beginning to end, when the first task or count
    is asked for, to learn where each row is and which split it belongs to; a cache keeps this.

    Args:
        path: A file, a folder, a pattern such as ``data/*.jsonl``, or a list of these.
        validation_path: Files for validation; null takes a share of ``path``.
        test_path: Files for test; null takes a share of ``path``.
        validation_share: Share of the rows of ``path`` that is for validation if it has no files of
            its own. Their content decides, not their order: what asks the same is in one split.
        test_share: The same for test.
        form: ``verl`` accepts prompts that are messages, ``plain`` those that are a text, ``auto``
            both.
        fields: Names of the fields of a row.
        interaction: Name of the interaction of rows that name none.
        images: How images are found and opened.
        limit: Use only so many rows of each split, the first ones; null for all.
        cache: Folder for indexes and unpacked copies; null for ``~/.cache/vagentrl/datasets``.
    """

    def __init__(
        self,
        path: str | list[str],
        validation_path: str | list[str] | None = None,
        test_path: str | list[str] | None = None,
        validation_share: float = 0.1,
        test_share: float = 0.1,
        form: Form = "auto",
        fields: Fields = Fields(),  # noqa: B008 (frozen)
        interaction: str | None = None,
        images: RowImages | None = None,
        limit: int | None = None,
        cache: str | None = None,
    ) -> None:
        given = {"path": path, "validation_path": validation_path, "test_path": test_path}
        self.paths: Paths = {
            split: _listed(name, value)
            for split, (name, value) in zip(SPLITS, given.items(), strict=True)
            if value is not None
        }
        for name, share in (("validation_share", validation_share), ("test_share", test_share)):
            if not 0 <= share <= 0.5:
                raise ConfigError(f"{name} is {share}; give a number from 0 to 0.5")
        if form not in get_args(Form):
            raise ConfigError(f"form is {seen(form)}; give one of {', '.join(get_args(Form))}")
        if limit is not None and limit < 1:
            raise ConfigError(f"limit is {limit}; give a number of rows, or null for all")
        self.validation_share = validation_share
        self.test_share = test_share
        self.form: Form = form
        self.fields = fields
        self.interaction = interaction
        self.images = images or RowImages()
        self.limit = limit
        self.cache = cache
        self._fingerprints: list[tuple[int, int]] | None = None
        self._rows: _Rows | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}  # each process opens the files for itself

    @property
    def index(self) -> Index:
        """Where the rows are, and how many were left out and why."""
        return self._opened().index

    def count(self, split: Split) -> int:
        """Number of tasks of a split.

        Raises:
            ConfigError: When the files cannot be read, or no row of any split can be used.
        """
        count = self.index.count(split)
        return count if self.limit is None else min(count, self.limit)

    def task(self, split: Split, index: int) -> Task:
        count = self.count(split)
        if not 0 <= index < count:
            there = ", ".join(f"{self.count(name)} for {name}" for name in SPLITS)
            raise ConfigError(
                f"there is no task {index} for {split} in {self.paths['train'][0]} (it has "
                f"{there}); give {split}_path, or a larger share"
            )
        rows = self._opened()
        number, row_number, position, content = rows.index.find(split, index)
        file = rows.files[number]
        file.check_unchanged()
        try:
            row = self._read(file.read(position))
            if row.content() != content:
                raise RowError("the row is not the one that was indexed; did the file change?")
            opened = tuple(self.images.open(image, file.path.parent) for image in row.images)
        except RowError as error:
            raise RowError(f"{file.place(row_number)}: {error}") from error
        return Task(row.messages, opened, row.interaction, row_number)

    def _read(self, row: Any) -> Row:
        return read_row(row, self.fields, self.form, self.interaction)

    # -------------------------------------------------------------------------------- the files

    def _opened(self) -> _Rows:
        if self._rows is None:
            with _OPENING:  # the environments of a process share files and index
                self._rows = self._open()
        return self._rows

    def _open(self) -> _Rows:
        files: list[RowFile] = []
        splits: list[Split] = []  # the split that each file is given for
        for split, paths in find_splits(self.paths).items():
            found = find_files(paths)
            files += found
            splits.extend(split for _ in found)
        _check_distinct(files, splits)
        fingerprints = [file.fingerprint for file in files]
        if self._fingerprints not in (None, fingerprints):
            raise RowError(
                f"the files of {self.paths['train'][0]} have changed since this run first read "
                "them, so its rows are others; put the old files back, or start a new run"
            )
        self._fingerprints = fingerprints
        settings = (self.validation_share, self.test_share, self.form, self.interaction)
        places = [(str(file.path), *file.fingerprint) for file in files]
        key = digest(_FORMAT, list(vars(self.fields).values()), settings, splits, places)
        if key not in _SHARED:
            rows = self._indexed(files, splits, cache_folder(self.cache), key)
            _SHARED[key] = rows
        return _SHARED[key]

    def _indexed(self, files: list[RowFile], splits: list[Split], folder: Path, key: str) -> _Rows:
        for file in files:
            file.prepare(folder)
        path = folder / f"{key}.index"
        index = Index.load(path)
        if index is None:
            shares = (
                0.0 if "validation" in splits else self.validation_share,
                0.0 if "test" in splits else self.test_share,
            )

            def read(file: int, scanned: Scanned) -> Row:
                if scanned.row is None:
                    raise RowError(scanned.problem)
                return self._read(scanned.row)

            def split_of(file: int, row: Row, question: str) -> Split:
                if splits[file] != "train":
                    return splits[file]
                return row.split or split_by_content(question, *shares)

            index = build_index(files, read, split_of)
            for file in files:
                file.check_unchanged()
            try:
                index.save(path)
            except OSError as error:
                log.info("the index of the rows cannot be kept in %s: %s", folder, error)
            else:
                index = Index.load(path) or index  # its entries then stay on disk
        _tell(index, files)
        return _Rows(files, index)


@dataclass(frozen=True)
class _Rows:
    """The files with the index of their rows."""

    files: list[RowFile]
    index: Index


_OPENING = threading.Lock()
_SHARED: dict[str, _Rows] = {}


def _listed(name: str, value: Any) -> tuple[str, ...]:
    paths = (value,) if isinstance(value, str) else tuple(value)
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(f"{name} is {seen(value)}; give a path, or a list of paths")
    return paths


def _check_distinct(files: list[RowFile], splits: list[Split]) -> None:
    """Check that no file belongs to two splits."""
    first: dict[Path, Split] = {}
    for file, split in zip(files, splits, strict=True):
        other = first.setdefault(file.path.resolve(), split)
        if other != split:
            raise ConfigError(f"{file.path} is given for {other} and for {split}; give it once")


def _tell(index: Index, files: list[RowFile]) -> None:
    """Log what was found, in the main process only.

    Raises:
        ConfigError: When no row can be used.
    """
    more = f"; and {index.broken - len(index.problems)} more"
    problems = "; ".join(index.problems) + (more if index.broken > len(index.problems) else "")
    if not any(index.counts):
        raise ConfigError(
            f"{files[0].path} has no row that can be used: "
            + (f"{index.broken} are broken: {problems}" if index.broken else "it is empty")
        )
    if multiprocessing.parent_process() is not None:
        return
    counts = zip(index.counts, SPLITS, strict=True)
    log.info("rows: %s", ", ".join(f"{count} for {split}" for count, split in counts))
    if index.broken:
        log.warning("%d rows are broken and are not used: %s", index.broken, problems)
    if index.held_out:
        log.warning(
            "%d rows are not used, because their question is also asked in validation or test",
            index.held_out,
        )
    if index.repeated:
        log.warning("%d rows repeat others word for word; each is used once", index.repeated)
