"""JSON Lines files, compressed by gzip or not."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from vagentrl.datasets.cache import unpacked
from vagentrl.datasets.row_file import RowFile, Scanned
from vagentrl.errors import ConfigError, RowError, seen

_CHUNK = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE = 32 * 2**20
"""Bytes; a longer line is no row. So a file without line ends does not fill the memory."""


class JsonLinesFile(RowFile):
    """A JSON object on each line, in UTF-8; empty lines are skipped. Positions are byte offsets."""

    def prepare(self, cache: Path) -> None:
        self._plain = self.path
        if self.path.suffix == ".gz":
            self._plain = unpacked(self.path, self.fingerprint, ".jsonl", cache, self._unpack)

    def scan(self) -> Iterator[Scanned]:
        position = number = 0
        with self._plain.open("rb") as stream:
            while line := stream.readline(LONGEST_LINE + 1):
                start, size = position, len(line)
                if size > LONGEST_LINE:
                    size += _skip_line(stream)
                position += size
                if line.strip():
                    try:
                        yield Scanned(number, start, _parsed(line), "", size)
                    except RowError as error:
                        yield Scanned(number, start, None, str(error), size)
                number += 1

    def read(self, position: int) -> Mapping[str, Any]:
        with self._plain.open("rb") as stream:
            stream.seek(position)
            return _parsed(stream.readline(LONGEST_LINE + 1))

    def place(self, number: int) -> str:
        return f"{self.path}, line {number + 1}"

    def _unpack(self, target: IO[bytes]) -> None:
        try:
            with gzip.open(self.path) as stream:
                shutil.copyfileobj(stream, target, _CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ConfigError(f"{self.path} is damaged: {error}; copy it again") from error


def _parsed(line: bytes) -> Mapping[str, Any]:
    """The object on a line.

    Raises:
        RowError: When there is none.
    """
    if len(line) > LONGEST_LINE:
        raise RowError(f"the line is longer than {LONGEST_LINE // 2**20} MiB")
    try:
        value = json.loads(line.removeprefix(_BYTE_ORDER_MARK).decode())
    except UnicodeDecodeError as error:
        raise RowError(f"the line is not in UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise RowError(f"the line is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RowError(f"the line is {seen(value)}; give a JSON object on each line")
    return value


def _skip_line(stream: IO[bytes]) -> int:
    """Read up to the end of the line; returns the number of bytes."""
    skipped = 0
    while piece := stream.readline(_CHUNK):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
