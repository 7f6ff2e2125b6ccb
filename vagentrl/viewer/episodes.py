"""A folder to which single episodes are added, and in which an episode can be played again.

```
trajectories/episodes-000007.parquet   one episode, or several that were added before it
trajectories/images/<hash>.png         each distinct image once
```

An episode is in a file as soon as it is added. Every so often the small files are joined. Where the
same episode is in two files, the later one counts: so an episode that is added again replaces the
former, and a process that is killed while it joins files neither loses nor doubles one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vagentrl.viewer.folder import write_table
from vagentrl.viewer.reading import IMAGES, UNFINISHED
from vagentrl.viewer.records import load_pyarrow, png, schema

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

JOINED = 32
"""Files that are joined to one."""


class EpisodeFolder:
    """Adds episodes; several processes may add to one folder.

    Args:
        folder: Where to write; made with the first episode.
        kind: What the files are called.
        max_bytes: Bytes of files and images in the folder, beyond which nothing more is added.

    Raises:
        ConfigError: When pyarrow is not installed.
    """

    def __init__(
        self,
        folder: Path,
        kind: Literal["episodes", "branches"] = "episodes",
        max_bytes: float = 1e9,
    ) -> None:
        load_pyarrow()
        self.folder = folder
        self.kind = kind
        self.max_bytes = max_bytes
        self._bytes = sum(path.stat().st_size for path in folder.rglob("*.p*") if path.is_file())
        self._rows: dict[Path, Mapping[str, Any]] = {}  # those of the small files
        self._adding = threading.Lock()
        self._told = False

    def add(self, row: Mapping[str, Any], images: Mapping[str, Image]) -> None:
        """Add an episode; one with the same `episode` is replaced.

        A folder that is full stays as it is, with a warning.

        Args:
            row: A row of `vagentrl.viewer.records.RowWriter`.
            images: The images that the row names.

        Raises:
            OSError: When the disk is full, or the folder cannot be written.
        """
        with self._adding:
            if self._bytes > self.max_bytes:
                self._tell_full()
                return
            (self.folder / IMAGES).mkdir(parents=True, exist_ok=True)
            for name, image in images.items():
                self._add_image(name, image)
            path = self._claim()
            self._write([row], path)
            self._rows[path] = row
            if len(self._rows) >= JOINED:
                self._join()

    def close(self) -> None:
        """Join the small files of this process."""
        with self._adding:
            if len(self._rows) > 1:
                self._join()

    def _tell_full(self) -> None:
        if not self._told:
            log.warning(
                "%s holds %.0f MB, so no further trajectories are stored; remove it, or store "
                "fewer episodes",
                self.folder,
                self._bytes / 1e6,
            )
        self._told = True

    def _claim(self) -> Path:
        """A path after all others, which no other process gets."""
        numbers = [int(path.name.split("-")[1][:6]) for path in self._files()]
        number = max(numbers, default=0) + 1
        while True:
            path = self.folder / f"{self.kind}-{number:06d}.parquet"
            try:
                _aside(path).open("xb").close()
            except FileExistsError:
                number += 1
                continue
            if not path.exists():
                return path
            _aside(path).unlink()  # another process was done with it meanwhile
            number += 1

    def _files(self) -> Iterable[Path]:
        return self.folder.glob(f"{self.kind}-[0-9][0-9][0-9][0-9][0-9][0-9].parquet*")

    def _write(self, rows: list[Mapping[str, Any]], path: Path) -> None:
        table = load_pyarrow().Table.from_pylist(rows, schema=schema())
        try:
            write_table(table, _aside(path))
            os.replace(_aside(path), path)
        except OSError:
            _aside(path).unlink(missing_ok=True)
            raise
        self._bytes += path.stat().st_size

    def _join(self) -> None:
        """Write all rows in place of the last small file, and then remove the others."""
        *others, last = self._rows
        latest = {row["episode"]: row for row in self._rows.values()}
        self._write(list(latest.values()), last)
        for path in others:
            self._bytes -= path.stat().st_size
            path.unlink()
        self._rows = {}

    def _add_image(self, name: str, image: Image) -> None:
        path = self.folder / IMAGES / name
        if path.exists():
            return
        aside = path.with_name(f"{name}.{os.getpid()}{UNFINISHED}")
        aside.write_bytes(png(image))
        os.replace(aside, path)
        self._bytes += path.stat().st_size


def _aside(path: Path) -> Path:
    return path.with_name(path.name + UNFINISHED)
