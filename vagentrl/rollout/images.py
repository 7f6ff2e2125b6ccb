"""Encodes each distinct image once, as patches for a Qwen-VL model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from vagentrl.errors import ConfigError, ShapeError
from vagentrl.image_files import fetch_image
from vagentrl.pictures import RemotePicture, digest
from vagentrl.types import Pictures, VisionInputs

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


@runtime_checkable
class QwenVLProcessor(Protocol):
    """The part of a Hugging Face image processor's interface that is used here."""

    patch_size: Any
    merge_size: Any
    size: Any

    def get_number_of_image_patches(self, height: int, width: int) -> int: ...

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> Any: ...


class ImageEncoder:
    """Encodes images as patches, with a cache: environments often show the same picture.

    Args:
        processor: A Hugging Face image processor of the Qwen-VL family.
        cache_mb: Size of the cache in MiB; the least recently used image is dropped first.
    """

    def __init__(self, processor: QwenVLProcessor, cache_mb: float = 256) -> None:
        if not isinstance(processor, QwenVLProcessor):
            raise ConfigError(
                f"{type(processor).__name__} does not cut images into merged patches; use a model "
                "of the Qwen-VL family, with its image processor"
            )
        self.processor = processor
        self.cache_mb = cache_mb
        self._cache: OrderedDict[bytes, tuple[Tensor, Tensor]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()  # episodes may be played while rows are learned

    @property
    def factor(self) -> int:
        """Side length in pixels of the square that becomes one token."""
        return self.processor.patch_size * self.processor.merge_size

    def token_count(self, image: Image) -> int:
        """Tokens that the image takes in the prompt."""
        width, height = image.size
        patches = self.processor.get_number_of_image_patches(height, width)
        return patches // self.processor.merge_size**2

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageEncoder, (self.processor, self.cache_mb)  # a copy starts with an empty cache

    def encode(self, images: Sequence[Image]) -> VisionInputs:
        """Encode images that all belong to one row; each distinct image is stored once.

        Raises:
            ShapeError: When there is no image: a batch without images has no vision inputs.
        """
        if not images:
            raise ShapeError("there is no image to encode; leave vision None instead")
        distinct = {digest(image): image for image in images}
        # Known images are taken before new ones push them out of the cache.
        known = {key: found for key in distinct if (found := self._look_up(key)) is not None}
        encoded = [
            known[key] if key in known else self._encode(key, image)
            for key, image in distinct.items()
        ]
        patches, grids = zip(*encoded, strict=True)
        return VisionInputs(torch.cat(patches), torch.cat(grids), _indices([images], distinct))

    def pictures(self, rows: Sequence[Sequence[Image]]) -> Pictures:
        """The images of several rows, to be encoded later; each distinct image is stored once."""
        distinct: dict[bytes, Image] = {}
        for image in (image for row in rows for image in row):
            stored = distinct.setdefault(digest(image), image)
            if isinstance(stored, RemotePicture):  # this one may have the pixels
                distinct[digest(image)] = image
        return Pictures(tuple(distinct.values()), _indices(rows, distinct), self.encode)

    def fetch(self, source: str | Image) -> Image:
        """Fetch an image and resize it as this processor would."""
        size = self.processor.size
        return fetch_image(
            source,
            factor=self.factor,
            min_pixels=size["shortest_edge"],
            max_pixels=size["longest_edge"],
        )

    def check_room(self, image_tokens: int, vision: VisionInputs) -> None:
        """Check that a prompt has as many image tokens as its images take.

        Raises:
            ShapeError: When the two numbers differ.
        """
        sizes = (vision.image_grid_thw.prod(-1) // self.processor.merge_size**2).tolist()
        wanted = sum(sizes[image] for row in vision.rows for image in row)
        if image_tokens != wanted:
            raise ShapeError(
                f"the prompt holds {image_tokens} image tokens but its images take {wanted}; "
                "was it cut inside an image, or an image token sampled?"
            )

    def _look_up(self, key: bytes) -> tuple[Tensor, Tensor] | None:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)

    def _encode(self, key: bytes, image: Image) -> tuple[Tensor, Tensor]:
        """Encode an image that is not in the cache, and put it there."""
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        features = self.processor(images=[rgb], return_tensors="pt")
        encoded = (features["pixel_values"], features["image_grid_thw"])
        with self._lock:
            if key not in self._cache:
                self._cache[key] = encoded
                self._cached_bytes += encoded[0].nbytes
            while self._cached_bytes > self.cache_mb * 2**20:
                _, (patches, _) = self._cache.popitem(last=False)
                self._cached_bytes -= patches.nbytes
        return encoded


def _indices(
    rows: Sequence[Sequence[Image]], distinct: Iterable[bytes]
) -> tuple[tuple[int, ...], ...]:
    """For each row the places of its images among the distinct ones."""
    place = {key: number for number, key in enumerate(distinct)}
    return tuple(tuple(place[digest(image)] for image in row) for row in rows)
