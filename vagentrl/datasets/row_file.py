"""The interface of a file of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vagentrl.errors import ConfigError, RowError


class Scanned(NamedTuple):
    """A row, as a pass over the file finds it.

    Attributes:
        number: Number of the row in the file, from 0.
        position: Where `RowFile.read` finds it.
        row: The row; None if it cannot be read.
        problem: Why it cannot be read; empty if it can.
        size: Its share of the file, in bytes.
    """

    number: int
    position: int
    row: Mapping[str, Any] | None
    problem: str
    size: int


class RowFile(ABC):
    """A file whose rows can be read in any order, by any number of threads.

    Args:
        path: The user's file.

    Attributes:
        fingerprint: Its size in bytes and its time of change in ns.

    Raises:
        ConfigError: When there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fingerprint = self._fingerprint()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    def prepare(self, cache: Path) -> None:  # noqa: B027 (most files can be read as they are)
        """Make an unpacked copy in the cache's folder, if the file needs one.

        Raises:
            ConfigError: When the file is damaged.
        """

    @abstractmethod
    def scan(self) -> Iterator[Scanned]:
        """All rows in order, in flat memory. `prepare` comes first."""

    @abstractmethod
    def read(self, position: int) -> Mapping[str, Any]:
        """The row at a position. `prepare` comes first.

        Raises:
            RowError: When it cannot be read. The message does not say where the row is.
        """

    def place(self, number: int) -> str:
        """How error messages name a row."""
        return f"{self.path}, row {number} (counted from 0)"

    def check_unchanged(self) -> None:
        """Check that the file is the one that was first seen.

        Raises:
            RowError: When it has changed since, or is gone.
        """
        try:
            now = self._fingerprint()
        except OSError as error:
            raise RowError(f"{self.path} cannot be read any more: {error.strerror}") from error
        if now != self.fingerprint:
            raise RowError(
                f"{self.path} has changed since this run first read it ({self.fingerprint[0]} "
                f"bytes then, {now[0]} now), so its rows are others; put the old file back, or "
                "start a new run"
            )

    def _fingerprint(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns
