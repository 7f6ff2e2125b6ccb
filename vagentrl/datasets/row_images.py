"""Opens the images of a row."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import unquote

import PIL.Image
from PIL.Image import Image

from vagentrl.datasets.row import ImageReference
from vagentrl.errors import ConfigError, RowError, VagentError
from vagentrl.image_files import fetch_image

_TIMEOUT_S = 30.0
_CHUNK = 2**16


class RowImages:
    """How the images of rows are found and opened.

    They are opened as Qwen-VL does: in RGB, transparency on white. The checkpoint's image processor
    fits them to its patches, as it does with the pictures of every environment.

    Args:
        root: Folder that paths in rows are relative to; null: the folder of the row's file.
        allow_urls: Whether images may be downloaded from ``http(s)`` URLs whenever a row is used.
        max_pixels: A larger image is reduced to so many pixels.
        largest_megapixels: A larger image makes the row unusable; it is never decoded.
        largest_download_mb: A download that is larger, in MiB, makes the row unusable.
    """

    def __init__(
        self,
        root: str | None = None,
        allow_urls: bool = False,
        max_pixels: int = 1003520,
        largest_megapixels: float = 89.0,
        largest_download_mb: float = 32.0,
    ) -> None:
        for name, value in (
            ("max_pixels", max_pixels),
            ("largest_megapixels", largest_megapixels),
            ("largest_download_mb", largest_download_mb),
        ):
            if not value > 0:
                raise ConfigError(f"images.{name} is {value}; give more than 0")
        self.root = root
        self.allow_urls = allow_urls
        self.max_pixels = max_pixels
        self.largest_megapixels = largest_megapixels
        self.largest_download_mb = largest_download_mb

    def open(self, reference: ImageReference, folder: Path) -> Image:
        """Open an image.

        Args:
            reference: The image, as the row gives it.
            folder: The folder of the row's file.

        Raises:
            RowError: When it cannot be opened. The message does not say where the row is.
        """
        shown = repr(reference.place[:120]) if reference.content is None else "in the row"
        try:
            with self._stream(reference, folder) as stream:
                return self._decoded(stream)
        except VagentError as error:
            if isinstance(error, RowError):
                raise RowError(f"the image {shown} cannot be used: {error}") from error
            raise
        except Exception as error:  # decoders of foreign formats raise errors of every kind
            reason = f"{type(error).__name__}: {error}"
            raise RowError(f"the image {shown} cannot be opened: {reason}") from error

    def _decoded(self, stream: IO[bytes]) -> Image:
        with PIL.Image.open(stream) as image:  # reads the header only
            width, height = image.size
            if width * height > self.largest_megapixels * 1e6:
                raise RowError(
                    f"it has {width} x {height} pixels, more than images.largest_megapixels "
                    f"({self.largest_megapixels:g})"
                )
            return fetch_image(image, factor=1, min_pixels=1, max_pixels=self.max_pixels)

    @contextmanager
    def _stream(self, reference: ImageReference, folder: Path) -> Iterator[IO[bytes]]:
        place = reference.place
        if reference.content is not None:
            yield io.BytesIO(reference.content)
        elif place.startswith("data:"):
            yield io.BytesIO(base64.b64decode(place.partition("base64,")[2], validate=True))
        elif place.startswith(("http://", "https://")):
            yield io.BytesIO(self._downloaded(place))
        else:
            path = self._path(place, folder)
            if not path.is_file():  # opening a pipe would wait for ever
                raise RowError(f"there is no file {path}; set images.root to the images' folder")
            with path.open("rb") as stream:
                yield stream

    def _path(self, place: str, folder: Path) -> Path:
        if place.startswith("file://"):
            path = Path(place.removeprefix("file://"))
            return path if path.exists() else Path(unquote(str(path)))
        return (Path(self.root).expanduser() if self.root else folder) / Path(place)

    def _downloaded(self, url: str) -> bytes:
        if not self.allow_urls:
            raise RowError("images.allow_urls is false, so nothing is downloaded")
        import httpx  # takes long, and is seldom needed

        content = bytearray()
        with httpx.stream("GET", url, timeout=_TIMEOUT_S, follow_redirects=True) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(_CHUNK):
                content += chunk
                if len(content) > self.largest_download_mb * 2**20:
                    raise RowError(
                        "it is larger than images.largest_download_mb "
                        f"({self.largest_download_mb:g} MiB)"
                    )
        return bytes(content)
