"""A folder of stored trajectories that never grows beyond a limit.

```
trajectories/train-000012.parquet   the episodes of one iteration, or of one evaluation
trajectories/images/<hash>.png      each distinct image once
```

Every file is written under another name and renamed when it is complete, so a killed run leaves
only whole files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from vagentrl.viewer.reading import IMAGES, UNFINISHED, TrajectoryFile, UnreadableFile
from vagentrl.viewer.records import StoredSplit, load_pyarrow, png, schema

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

ROWS_PER_GROUP = 8
"""Rows that are read at once; a viewer loads as many trajectories at a time."""


@dataclass(frozen=True)
class StoredFile:
    """A Parquet file in the folder.

    Attributes:
        path: Where it is.
        split: What its episodes were played for.
        iteration: Number of completed iterations when they were played.
        size: Bytes, without the images.
        images: Names of the images that it shows.
    """

    path: Path
    split: StoredSplit
    iteration: int
    size: int
    images: frozenset[str]


class TrajectoryFolder:
    """Writes the trajectories of a run, and drops old ones before the folder exceeds its limit.

    Args:
        folder: Where to write; it is made if necessary. Files that an earlier run left there count.
        max_bytes: Most bytes that files and images together may have. While a file is written, the
            folder may exceed the limit by that file.
    """

    def __init__(self, folder: Path, max_bytes: float) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._images: dict[str, int] = {}  # bytes by name
        self._files: dict[Path, StoredFile] = {}
        self._begin()

    def _begin(self) -> None:
        (self.folder / IMAGES).mkdir(parents=True, exist_ok=True)
        for left in self.folder.rglob(f"*{UNFINISHED}"):  # of a killed run
            left.unlink()
        for path in sorted(self.folder.glob("*.parquet")):
            if (stored := _stored_file(path)) is not None:
                self._files[path] = stored
        self._images = {p.name: p.stat().st_size for p in (self.folder / IMAGES).glob("*.png")}

    def write(
        self,
        split: StoredSplit,
        iteration: int,
        rows: Sequence[Mapping[str, Any]],
        images: Mapping[str, Image],
    ) -> None:
        """Write the rows of one iteration; a file of the same iteration is replaced.

        Args:
            split: What the episodes were played for.
            iteration: Number of completed iterations when they were played.
            rows: Rows of `vagentrl.viewer.records.RowWriter`.
            images: The images that the rows name.

        Raises:
            OSError: When the disk is full, or the folder cannot be written.
        """
        pa = load_pyarrow()
        for name, image in images.items():
            if name not in self._images:
                self._write_image(name, image)
        path = self.folder / f"{split}-{iteration:06d}.parquet"
        aside = path.with_name(path.name + UNFINISHED)
        write_table(pa.Table.from_pylist(list(rows), schema=schema()), aside)
        os.replace(aside, path)
        size = path.stat().st_size
        self._files[path] = StoredFile(path, split, iteration, size, frozenset(images))
        self._shrink(path)

    @property
    def bytes(self) -> int:
        """Bytes of all files and images."""
        return sum(f.size for f in self._files.values()) + sum(self._images.values())

    def _write_image(self, name: str, image: Image) -> None:
        path = self.folder / IMAGES / name
        aside = path.with_name(name + UNFINISHED)
        aside.write_bytes(png(image))
        os.replace(aside, path)
        self._images[name] = path.stat().st_size

    def _shrink(self, latest: Path) -> None:
        """Drop files until the limit is kept, and then images that no file shows any more."""
        self._drop_unused_images()
        while self._files and self.bytes > self.max_bytes:
            dropped = least_missed(list(self._files.values()))
            dropped.path.unlink(missing_ok=True)
            del self._files[dropped.path]
            self._drop_unused_images()
            if dropped.path == latest:
                log.warning(
                    "%s does not fit into max_mb=%.6g even alone, so its trajectories are not "
                    "kept; raise max_mb or store fewer groups and episodes",
                    latest.name,
                    self.max_bytes / 1e6,
                )

    def _drop_unused_images(self) -> None:
        used = frozenset[str]().union(*(file.images for file in self._files.values()))
        for name in self._images.keys() - used:
            (self.folder / IMAGES / name).unlink(missing_ok=True)
            del self._images[name]


def write_table(table: Any, path: Path) -> None:
    """Write rows as a Parquet file."""
    write = load_pyarrow().parquet.write_table
    write(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd")


def least_missed(files: Sequence[StoredFile]) -> StoredFile:
    """The file to drop first.

    Training iterations go before evaluations. Of either, the first and the newest are kept longest,
    and of those between them goes the one whose neighbours are closest together, the oldest of
    several: so the history becomes thinner, but does not lose its beginning.
    """
    ordered = sorted(files, key=lambda file: file.iteration)
    training = [file for file in ordered if file.split == "train"]
    evaluations = [file for file in ordered if file.split != "train"]
    for kind in (training, evaluations):
        if len(kind) > 1:
            return _thinnest(kind)
    return (training or evaluations)[0]


def _thinnest(files: Sequence[StoredFile]) -> StoredFile:
    if len(files) == 2:
        return files[0]
    spans = [
        after.iteration - before.iteration
        for before, after in zip(files[:-2], files[2:], strict=True)
    ]
    return files[1 + spans.index(min(spans))]


def _stored_file(path: Path) -> StoredFile | None:
    """What an earlier run has stored; None if the file is damaged or of another origin."""
    try:
        file = TrajectoryFile(path)
        images = frozenset(file.images())
    except UnreadableFile as error:
        log.warning("%s does not count towards max_mb: it is %s", path, error)
        return None
    if file.kind not in get_args(StoredSplit):
        return None
    split: Any = file.kind
    return StoredFile(path, split, file.number, path.stat().st_size, images)
