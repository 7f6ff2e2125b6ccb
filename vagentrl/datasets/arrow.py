"""Arrow files, as Hugging Face's `datasets` writes them, and Parquet files.

The rows of a Parquet file can only be read in groups, of a million rows in many files. So it is
copied once, as an Arrow file, into the cache, where any row can be read by itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from vagentrl.datasets.cache import unpacked
from vagentrl.datasets.row_file import RowFile, Scanned
from vagentrl.errors import ConfigError, RowError

_AT_ONCE = 64
"""Rows that are turned into Python objects at once, or decoded from Parquet: some have images."""


class ArrowFile(RowFile):
    """An Arrow file or stream, mapped into memory. Positions are numbers of rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pyarrow = _pyarrow(path)
        self._plain = path
        self._opening = threading.Lock()
        self._batches: list[Any] | None = None
        self._starts: list[int] = []

    def scan(self) -> Iterator[Scanned]:
        batches = self._open()
        total = sum(batch.num_rows for batch in batches)
        size = self.fingerprint[0] // max(total, 1)
        number = 0
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                for row in self._rows(batch.slice(start, _AT_ONCE)):
                    if isinstance(row, str):
                        yield Scanned(number, number, None, row, size)
                    else:
                        yield Scanned(number, number, row, "", size)
                    number += 1

    def read(self, position: int) -> Mapping[str, Any]:
        batches = self._open()
        if position >= self._starts[-1]:
            raise RowError(f"there is no row {position}")
        number = bisect_right(self._starts, position) - 1
        (row,) = self._rows(batches[number].slice(position - self._starts[number], 1))
        if isinstance(row, str):
            raise RowError(row)
        return row

    def _open(self) -> list[Any]:
        """The file's record batches, whose data stay on disk until they are used."""
        with self._opening:
            if self._batches is None:
                try:
                    self._batches = self._record_batches()
                except (self._pyarrow.ArrowException, OSError) as error:
                    raise ConfigError(f"{self.path} is damaged: {error}; copy it again") from error
                self._starts = [0, *accumulate(batch.num_rows for batch in self._batches)]
            return self._batches

    def _record_batches(self) -> list[Any]:
        if not self._plain.stat().st_size:
            return []
        ipc = self._pyarrow.ipc
        mapped = self._pyarrow.memory_map(str(self._plain))
        if mapped.read_at(6, 0) == b"ARROW1":
            reader = ipc.open_file(mapped)
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return list(ipc.open_stream(mapped))

    def _rows(self, batch: Any) -> Iterator[Mapping[str, Any] | str]:
        """The rows of a batch as Python values; what is wrong with those that cannot be read."""
        try:
            yield from batch.to_pylist(maps_as_pydicts="lossy")
            return
        except (ValueError, TypeError, OverflowError, self._pyarrow.ArrowException) as error:
            problem = f"the row cannot be read: {error}"
        if batch.num_rows == 1:
            yield problem
        else:  # one of them is broken
            for row in range(batch.num_rows):
                yield from self._rows(batch.slice(row, 1))


class ParquetFile(ArrowFile):
    """A Parquet file. Its rows are read from a copy in the cache."""

    def prepare(self, cache: Path) -> None:
        self._plain = unpacked(self.path, self.fingerprint, ".arrow", cache, self._unpack)

    def _unpack(self, target: IO[bytes]) -> None:
        try:
            parquet = self._pyarrow.parquet.ParquetFile(
                self.path, pre_buffer=False, buffer_size=2**20
            )
            with parquet, self._pyarrow.ipc.new_file(target, parquet.schema_arrow) as writer:
                for batch in parquet.iter_batches(_AT_ONCE * 16, use_threads=False):
                    writer.write_batch(batch)
        except self._pyarrow.ArrowException as error:
            raise ConfigError(f"{self.path} is no Parquet file, or damaged: {error}") from error


def _pyarrow(path: Path) -> ModuleType:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path} needs pyarrow: pip install 'vagentrl[datasets]'; JSON Lines files need nothing"
        ) from error
    return pyarrow
