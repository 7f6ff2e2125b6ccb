"""Pictures are told apart by what a model sees of them, and hashed once."""

import gc

import pytest
from PIL import Image

from vagentrl import pictures
from vagentrl.errors import EnvError
from vagentrl.pictures import check_unchanged, digest


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Image.Image]:
    """Every image whose pixels are read, in order."""
    read: list[Image.Image] = []
    true = pictures._digest

    def reading(image: Image.Image) -> bytes:
        read.append(image)
        return true(image)

    monkeypatch.setattr(pictures, "_digest", reading)
    return read


def test_an_image_is_read_once_however_often_it_is_asked_for(hashed: list[Image.Image]):
    image = Image.new("RGB", (8, 4), "red")
    assert len({digest(image) for _ in range(5)}) == 1
    assert hashed == [image]


def test_equal_pixels_are_equal_and_size_counts():
    red, tall, wide = (Image.new("RGB", size, "red") for size in ((4, 4), (2, 8), (8, 2)))
    assert digest(red) == digest(red.copy())
    assert len({digest(image) for image in (red, tall, wide, Image.new("RGB", (4, 4)))}) == 4


def test_an_image_is_what_the_model_sees_of_it():
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert digest(palette) == digest(Image.new("RGB", (4, 4), "red"))


def test_an_image_in_the_place_of_a_dead_one_is_another():
    before = len(pictures._known)
    for shade in range(200):  # the allocator gives some of them the address of an earlier one
        gray, rgb = Image.new("L", (4, 4), shade), Image.new("RGB", (4, 4), (shade,) * 3)
        assert digest(gray) == digest(rgb)
        del gray, rgb
    gc.collect()
    assert len(pictures._known) == before


def test_an_image_that_was_painted_over_is_the_environments_mistake():
    canvas = Image.new("RGB", (4, 4), "red")
    check_unchanged(canvas)  # nobody has asked for it yet
    digest(canvas)
    check_unchanged(canvas)
    canvas.putpixel((1, 1), (0, 0, 255))
    with pytest.raises(EnvError, match=r"return another image every time, .* image\.copy\(\)"):
        check_unchanged(canvas)
