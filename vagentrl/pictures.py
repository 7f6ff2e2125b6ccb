"""Tells pictures apart by their pixels, and hashes each of them once."""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING

from vagentrl.errors import EnvError

if TYPE_CHECKING:
    from PIL.Image import Image

_known: dict[int, tuple[weakref.ref[Image], bytes]] = {}
"""Digests by the identity of their image; images cannot be keys, because they have no hash."""


def digest(image: Image) -> bytes:
    """A digest of what a model sees of an image: its size and its pixels as RGB.

    It is computed once for each image object, whose pixels must not change afterwards.
    """
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
