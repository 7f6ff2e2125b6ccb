"""Opens images as Qwen-VL does: from a path, a URL or a data URI, in RGB and resized."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_IMPORTING = threading.Lock()
"""Environments open images in threads, and the stand-in below is no matter of one thread alone."""


def fetch_image(
    source: str | Image, *, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 1003520
) -> Image:
    """Load an image, convert it to RGB and resize it as Qwen-VL does.

    Transparent pixels are blended with white.

    Args:
        source: A path, a URL, a ``file://`` or base64 data URI, or an image.
        factor: Both sides become multiples of this number: patch size times merge size.
        min_pixels: An image with fewer pixels is enlarged.
        max_pixels: An image with more pixels is reduced.
    """
    return _qwen_vl_utils().fetch_image(
        {"image": source, "min_pixels": min_pixels, "max_pixels": max_pixels},
        image_patch_size=factor / 2,  # qwen_vl_utils multiplies it by a fixed merge size of 2
    )


@cache
def _qwen_vl_utils() -> ModuleType:
    with _IMPORTING, _torchvision_or_stand_in():
        try:
            return importlib.import_module("qwen_vl_utils.vision_process")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"images by path or URL need {error.name}: pip install qwen-vl-utils"
            ) from error


@contextmanager
def _torchvision_or_stand_in() -> Iterator[None]:
    """Inside this context an empty torchvision replaces one that cannot be imported.

    qwen_vl_utils imports torchvision at module level but uses it for videos only, and with CPU
    builds of torch it may be missing or fail to load. The stand-in is removed at the end, so that
    transformers, which chooses its image processors by whether torchvision exists, never sees it.
    """
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # not installed, or its operators do not load
        pass
    else:
        yield
        return
    names = ("torchvision", "torchvision.io", "torchvision.transforms")
    before = {name: sys.modules.get(name) for name in names}
    package, io, transforms = (ModuleType(name) for name in names)
    package.__dict__.update(io=io, transforms=transforms)
    transforms.__dict__["InterpolationMode"] = None
    sys.modules.update(zip(names, (package, io, transforms), strict=True))
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
