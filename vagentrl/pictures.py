"""Tells pictures apart by their pixels, and stands for those whose pixels are with another rank."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any, NoReturn

from PIL.Image import Image

from vagentrl.errors import EnvError, VagentError

_known: dict[int, tuple[weakref.ref[Image], bytes]] = {}
"""Digests by the identity of their image; images cannot be keys, because they have no hash."""


class RemotePicture(Image):
    """Stands for a picture whose pixels stay with the rank that played its episode.

    It has the size of the picture and equals it, but using its pixels raises a `VagentError`.
    `vagentrl.rollout.exchange` brings them.

    Args:
        size: Width and height in pixels.
        digest: What `digest` returns for the picture.
        rank: The rank that has the pixels.
    """

    def __init__(self, size: tuple[int, int], digest: bytes, rank: int) -> None:
        super().__init__()
        self._mode, self._size = "RGB", size
        self.digest = digest
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePicture, (self.size, self.digest, self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and digest(other) == self.digest

    def load(self) -> NoReturn:
        raise VagentError(
            f"the pixels of this picture of {self.width} x {self.height} are with rank "
            f"{self.rank}, which played its episode; vagentrl.rollout.exchange.with_pixels brings "
            "them, if all ranks call it together"
        )


def digest(image: Image) -> bytes:
    """A digest of what a model sees of an image: its size and its pixels as RGB.

    It is computed once for each image object, whose pixels must not change afterwards.
    """
    if isinstance(image, RemotePicture):
        return image.digest
    number = id(image)
    if number in _known and _known[number][0]() is image:
        return _known[number][1]
    found = _digest(image)
    reference = weakref.ref(image, lambda _: _known.pop(number, None))
    _known[number] = (reference, found)
    return found


def check_unchanged(image: Image) -> None:
    """Check that an image which is shown again has the pixels that it had before.

    Raises:
        EnvError: When they have changed.
    """
    known = _known.get(id(image))
    if known is not None and known[0]() is image and known[1] != _digest(image):
        raise EnvError(
            "the environment changed a picture that it had shown before, and earlier turns show it "
            "too; return another image every time, for instance image.copy()"
        )


def _digest(image: Image) -> bytes:
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return hashlib.sha256(repr(rgb.size).encode() + rgb.tobytes()).digest()
