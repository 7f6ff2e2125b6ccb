"""A folder for what can be made again: indexes, and unpacked copies of compressed files.

Nothing is written beside the user's files. The folder may be deleted at any time, except under a
run that uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

from vagentrl.errors import ConfigError


def cache_folder(setting: str | None) -> Path:
    """The folder, which is there and can be written to.

    Args:
        setting: A folder; None for ``$XDG_CACHE_HOME/vagentrl/datasets``, or ``~/.cache/…``.

    Returns:
        A temporary folder of this process, if the wanted one cannot be written to.
    """
    if setting is not None:
        folder = Path(setting).expanduser()
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(home) / "vagentrl" / "datasets"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(_temporary().name)


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder that is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="vagentrl-datasets-")


def digest(*values: Any) -> str:
    """A name for these values, which JSON can write."""
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=12).hexdigest()


def write_whole(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file that other processes see whole or not at all.

    Raises:
        OSError: When it cannot be written; nothing is left behind.
    """
    stream = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)  # noqa: SIM115
    try:
        with stream:
            write(stream)
        os.replace(stream.name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stream.name)
        raise


def unpacked(
    source: Path,
    fingerprint: tuple[int, int],
    suffix: str,
    folder: Path,
    write: Callable[[IO[bytes]], None],
) -> Path:
    """An unpacked copy of a file, made if there is none yet.

    The copy's name has its size, so that a copy that was cut off is not taken for a whole one.

    Args:
        source: The compressed file.
        fingerprint: Its size and time of change.
        suffix: Suffix of the copy's name.
        folder: Where copies are.
        write: Writes the unpacked content.

    Raises:
        ConfigError: When the copy cannot be written.
    """
    name = digest(str(source))
    version = f"{name}-{digest(*fingerprint)}"
    for copy in folder.glob(f"{version}-*{suffix}"):
        if copy.stem.rpartition("-")[2] == str(copy.stat().st_size):
            return copy
    unsized = folder / f"{version}-{os.getpid()}.part"
    try:
        write_whole(unsized, write)
        for stale in folder.glob(f"{name}-*{suffix}"):  # of the same file, before it changed
            stale.unlink(missing_ok=True)
        copy = folder / f"{version}-{unsized.stat().st_size}{suffix}"
        os.replace(unsized, copy)
    except OSError as error:
        raise ConfigError(
            f"{source} cannot be unpacked into {folder}: {error}; set cache to a folder with "
            "enough room, or check that the file is whole"
        ) from error
    return copy
