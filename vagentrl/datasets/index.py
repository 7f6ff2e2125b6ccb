"""Where the rows of each split are: made in one pass over the files, and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, get_args

import numpy as np
from tqdm import tqdm

from vagentrl.datasets.cache import write_whole
from vagentrl.datasets.row import Row
from vagentrl.datasets.row_file import RowFile, Scanned
from vagentrl.environment import Split
from vagentrl.errors import RowError

log = logging.getLogger(__name__)

SPLITS: tuple[Split, ...] = get_args(Split)
_ENTRY = np.dtype([("file", "<u4"), ("number", "<i8"), ("position", "<i8"), ("content", "<u8")])
_SHOWN = 5
"""Problems that are told in words; the others are counted."""


def split_by_content(question: str, validation: float, test: float) -> Split:
    """The split that a question belongs to.

    With a tenth each this is `vagentrl.environment.split_of_state`. A larger share keeps what a
    smaller one has.

    Args:
        question: The content, as text.
        validation: Share of the questions that is for validation, at most a half.
        test: Share of the questions that is for test, at most a half.
    """
    number = int.from_bytes(hashlib.blake2b(question.encode(), digest_size=4).digest(), "little")
    thousandth = number % 10 * 100 + number // 10 % 100  # its first digit decides between tenths
    if thousandth < round(1000 * validation):
        return "validation"
    return "test" if 0 <= thousandth - 500 < round(1000 * test) else "train"


@dataclass(frozen=True)
class Index:
    """Where the rows of each split are.

    Attributes:
        entries: For each row its file, number, position and the hash of its content: those of
            training first, then those for validation, then those for test. They may be on disk.
        counts: Number of rows of each split, in this order.
        broken: Rows that cannot be used.
        problems: Where the first of these are, and what is wrong with them.
        repeated: Rows that repeat another one word for word.
        held_out: Rows whose question is also one for test, or for validation if they are of
            training.
    """

    entries: np.ndarray
    counts: tuple[int, ...]
    broken: int = 0
    problems: tuple[str, ...] = ()
    repeated: int = 0
    held_out: int = 0

    def count(self, split: Split) -> int:
        """Number of rows of a split."""
        return self.counts[SPLITS.index(split)]

    def find(self, split: Split, number: int) -> tuple[int, int, int, bytes]:
        """File, number and position of a row of a split, and the hash of its content."""
        first = sum(self.counts[: SPLITS.index(split)])
        file, row, position, content = self.entries[first + number].tolist()
        return file, row, position, content.to_bytes(8, "little")

    def save(self, path: Path) -> None:
        """Write the index to a file.

        Raises:
            OSError: When it cannot be written.
        """
        header = {name: value for name, value in vars(self).items() if name != "entries"}
        header["checksum"] = _checksum(self.entries)

        def write(stream: IO[bytes]) -> None:
            stream.write(json.dumps(header).encode() + b"\n")
            stream.write(self.entries.view(np.uint8).data)

        write_whole(path, write)

    @staticmethod
    def load(path: Path) -> Index | None:
        """The index in a file, whose entries stay on disk; None if there is none, or no whole
        one."""
        try:
            with path.open("rb") as stream:
                header = json.loads(stream.readline(2**20))
                start = stream.tell()
            checksum = header.pop("checksum")
            counts, problems = tuple(header.pop("counts")), tuple(header.pop("problems"))
            rows = sum(counts)
            entries = np.empty(0, _ENTRY)
            if rows:
                entries = np.memmap(path, _ENTRY, mode="r", offset=start, shape=(rows,))
            index = Index(entries, counts, problems=problems, **header)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return index if _checksum(entries) == checksum else None


@dataclass
class _Columns:
    """What is known of the rows so far, in the order in which they were seen."""

    file: array = field(default_factory=lambda: array("I"))
    number: array = field(default_factory=lambda: array("q"))
    position: array = field(default_factory=lambda: array("q"))
    content: array = field(default_factory=lambda: array("Q"))
    question: array = field(default_factory=lambda: array("Q"))
    split: array = field(default_factory=lambda: array("B"))


def build_index(
    files: Sequence[RowFile],
    read: Callable[[int, Scanned], Row],
    split_of: Callable[[int, Row, str], Split],
) -> Index:
    """Make the index in one pass over the files, with a progress bar if it takes long.

    Args:
        files: The files, ready to be scanned.
        read: Reads a row of the file of this number.
        split_of: The split of a row of the file of this number, by its question if by nothing else.
    """
    columns = _Columns()
    broken = 0
    problems: list[str] = []
    for number, scanned in _scanned(files):
        try:
            row = read(number, scanned)
            question = row.question()
            split = SPLITS.index(split_of(number, row, question))
            content = row.content()
        except RowError as error:
            broken += 1
            if len(problems) < _SHOWN:
                problems.append(f"{files[number].place(scanned.number)}: {str(error)[:300]}")
            continue
        columns.file.append(number)
        columns.number.append(scanned.number)
        columns.position.append(scanned.position)
        columns.content.append(int.from_bytes(content, "little"))
        columns.question.append(_number(question))
        columns.split.append(split)
    return _dealt(columns, broken, tuple(problems))


def _scanned(files: Sequence[RowFile]) -> Iterator[tuple[int, Scanned]]:
    total = sum(file.fingerprint[0] for file in files)
    # disable=None: not in a log; delay: nobody needs a bar for a second
    with tqdm(
        total=total, desc="indexing rows", unit="B", unit_scale=True, delay=2, disable=None
    ) as bar:
        for number, file in enumerate(files):
            for scanned in file.scan():
                yield number, scanned
                bar.update(scanned.size)


def _dealt(columns: _Columns, broken: int, problems: tuple[str, ...]) -> Index:
    """The rows by split, without repetitions, and without questions that a later split asks."""
    question, content, split = (
        np.frombuffer(column, f"u{column.itemsize}")
        for column in (columns.question, columns.content, columns.split)
    )
    chosen: list[np.ndarray] = []
    kept = held_out = 0
    for number in range(len(SPLITS)):
        rows = np.flatnonzero(split == number)
        fresh = rows[~np.isin(question[rows], question[split > number])]
        _, first = np.unique(content[fresh], return_index=True)
        held_out += len(rows) - len(fresh)
        kept += len(first)
        chosen.append(fresh[np.sort(first)])
    order = np.concatenate(chosen)
    entries = np.empty(len(order), _ENTRY)
    for name in _ENTRY.names or ():
        column = getattr(columns, name)
        kind = "i" if column.typecode == "q" else "u"
        entries[name] = np.frombuffer(column, f"{kind}{column.itemsize}")[order]
    repeated = len(split) - held_out - kept
    return Index(entries, tuple(map(len, chosen)), broken, problems, repeated, held_out)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _checksum(entries: np.ndarray) -> str:
    return hashlib.blake2b(entries.view(np.uint8).data, digest_size=16).hexdigest()
