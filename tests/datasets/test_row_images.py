"""Images of rows are found, opened as Qwen-VL does, or make the row unusable."""

import base64
import io
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.datasets.files import json_lines, parquet
from vagentrl.datasets import RowImages, TaskFiles
from vagentrl.errors import ConfigError, RowError


def picture(color: str = "red", size: tuple[int, int] = (20, 12), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, "PNG")
    return buffer.getvalue()


def task_with(folder: Path, image: Any, images: RowImages | None = None) -> tuple[Image.Image, ...]:
    """The images of the only task of a file whose only row shows this image."""
    row = {"prompt": "<image> What?", "answer": 1, "images": image}
    path = str(json_lines(folder / "rows.jsonl", [row]))
    tasks = TaskFiles(path, images=images, validation_share=0, test_share=0)
    return tasks.task("train", 0).images


def test_a_path_is_relative_to_the_file_or_to_the_root(tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "here.png").write_bytes(picture("red"))
    (tmp_path / "pictures/there.png").write_bytes(picture("blue"))
    (here,) = task_with(tmp_path, "here.png")
    assert (here.mode, here.size, here.getpixel((0, 0))) == ("RGB", (20, 12), (255, 0, 0))
    (there,) = task_with(tmp_path, ["there.png"], RowImages(root=str(tmp_path / "pictures")))
    assert there.getpixel((0, 0)) == (0, 0, 255)


def test_a_file_url_and_a_data_uri_are_opened(tmp_path: Path):
    (tmp_path / "a picture.png").write_bytes(picture())
    data = "data:image/png;base64," + base64.b64encode(picture()).decode()
    for place in (
        f"file://{tmp_path}/a picture.png",
        f"file://{tmp_path}/a%20picture.png",
        str(tmp_path / "a picture.png"),
        data,
        {"path": data},
    ):
        assert task_with(tmp_path, place)[0].size == (20, 12)


def test_images_in_parquet_columns_are_opened(tmp_path: Path):
    pytest.importorskip("pyarrow")
    (tmp_path / "b.png").write_bytes(picture("blue"))
    rows = [
        {
            "prompt": [{"role": "user", "content": "<image><image>?"}],
            "images": [
                {"bytes": picture("red"), "path": "gone.png"},
                {"bytes": None, "path": "b.png"},
            ],
            "reward_model": {"style": "rule", "ground_truth": "blue"},
        }
    ]
    path = parquet(tmp_path / "rows.parquet", rows)
    task = TaskFiles(str(path), validation_share=0, test_share=0).task("train", 0)
    colours = [image.getpixel((0, 0)) for image in task.images]
    assert colours == [(255, 0, 0), (0, 0, 255)]
    assert task.interaction == {"ground_truth": "blue"}


def test_transparency_is_put_on_white_and_the_size_is_kept(tmp_path: Path):
    (tmp_path / "clear.png").write_bytes(picture("#00000000", mode="RGBA"))
    (image,) = task_with(tmp_path, "clear.png")
    assert (image.getpixel((0, 0)), image.size) == ((255, 255, 255), (20, 12))


def test_a_large_image_is_reduced(tmp_path: Path):
    (tmp_path / "large.png").write_bytes(picture(size=(200, 100)))
    (image,) = task_with(tmp_path, "large.png", RowImages(max_pixels=5000))
    assert image.size == (100, 50)  # 5000 pixels, of the same shape


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def server(folder: Path) -> Iterator[str]:
    serve = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def test_a_url_is_downloaded_only_if_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "there.png").write_bytes(picture())
    with server(tmp_path) as url:
        with pytest.raises(RowError, match=r"images\.allow_urls is false"):
            task_with(tmp_path, f"{url}/there.png")
        allowed = RowImages(allow_urls=True)
        assert task_with(tmp_path, f"{url}/there.png", allowed)[0].size == (20, 12)
        with pytest.raises(RowError, match="404"):
            task_with(tmp_path, f"{url}/gone.png", allowed)
        small = RowImages(allow_urls=True, largest_download_mb=1e-5)  # 10 bytes
        with pytest.raises(RowError, match=r"larger than images\.largest_download_mb"):
            task_with(tmp_path, f"{url}/there.png", small)


def bomb() -> bytes:
    """A PNG of a few bytes that claims to have 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    empty = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + empty


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no image", "cannot be opened"),
        (b"", "cannot be opened"),
        (picture(size=(300, 300))[:-40], "cannot be opened"),
        (bomb(), "DecompressionBomb"),
        (picture(size=(900, 2)), "aspect ratio"),  # thinner than Qwen-VL allows
    ],
)
def test_an_image_that_cannot_be_opened_makes_the_row_unusable(
    content: bytes, message: str, tmp_path: Path
):
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(RowError, match=rf"rows\.jsonl, line 1: the image .*{message}"):
        task_with(tmp_path, "broken.png")


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path: Path):
    (tmp_path / "large.png").write_bytes(picture(size=(1100, 1000)))
    limit = RowImages(largest_megapixels=1)
    with pytest.raises(RowError, match=r"1100 x 1000 pixels, more than images\.largest"):
        task_with(tmp_path, "large.png", limit)


def test_a_pipe_or_a_missing_file_is_no_image(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("pipe.png", "gone.png", ".", "a" * 5000):
        with pytest.raises(RowError, match=r"cannot be (used|opened)"):
            task_with(tmp_path, name)
    with pytest.raises(RowError, match=r"set images\.root"):
        task_with(tmp_path, "gone.png")


def test_a_data_uri_that_is_not_base64_is_no_image(tmp_path: Path):
    for data in ("data:image/png;base64,@@@", "data:", "data:image/svg+xml,<svg/>"):
        with pytest.raises(RowError, match="cannot be opened"):
            task_with(tmp_path, data)


@pytest.mark.parametrize("name", ["max_pixels", "largest_megapixels", "largest_download_mb"])
def test_a_limit_below_one_is_refused(name: str):
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"images.{name} is 0"):
        RowImages(**settings)
