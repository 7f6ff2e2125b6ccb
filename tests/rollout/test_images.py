import base64
import importlib.util
import io
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)
from transformers.utils.import_utils import is_torchvision_available

from tests.rollout.chat_fixtures import image_encoder
from vagentrl.errors import ConfigError, ShapeError
from vagentrl.image_files import _qwen_vl_utils, fetch_image
from vagentrl.rollout.images import ImageEncoder


def gradient(width: int, height: int, mode: str = "RGB") -> Image.Image:
    return Image.linear_gradient("L").resize((width, height)).convert(mode)


RED, BLUE = Image.new("RGB", (84, 84), "red"), Image.new("RGB", (84, 84), "blue")


def test_an_image_is_stored_once_however_many_rows_show_it():
    wide = gradient(112, 56)
    pictures = image_encoder().pictures([[RED, wide], [], [BLUE, RED.copy(), RED]])
    assert pictures.rows == ((0, 1), (), (2, 0, 0))
    vision = pictures.to("cpu")
    assert vision is not None and vision.rows == pictures.rows
    assert vision.image_grid_thw.tolist() == [[1, 6, 6], [1, 4, 8], [1, 6, 6]]
    wanted = image_encoder().processor(images=[RED, wide, BLUE], return_tensors="pt")
    torch.testing.assert_close(vision.pixel_values, wanted["pixel_values"], rtol=0, atol=0)


def test_images_of_equal_bytes_but_other_shape_or_palette_are_distinct():
    palette = Image.new("P", (84, 84), 1)
    other = palette.copy()
    palette.putpalette([0, 0, 0, 255, 0, 0])
    other.putpalette([0, 0, 0, 0, 0, 255])
    tall, wide = Image.new("RGB", (56, 112)), Image.new("RGB", (112, 56))
    vision = image_encoder().encode([palette, other, tall, wide, RED])
    assert vision.rows == ((0, 1, 2, 3, 0),)  # the first palette image looks like RED


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_every_mode_is_encoded_as_the_processor_does(mode: str):
    image = gradient(84, 56, mode)
    encoder = image_encoder()
    wanted = encoder.processor(images=[image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(encoder.encode([image]).pixel_values, wanted, rtol=0, atol=0)


def test_the_cache_forgets_the_least_recently_used():
    processed = []

    class Recording(Qwen2VLImageProcessorPil):
        def preprocess(self, images, **kwargs):
            processed.append(images)
            return super().preprocess(images, **kwargs)

    black = Image.new("RGB", (84, 84))
    # 36 patches of 3 * 2 * 14 * 14 float32 are 169,344 bytes: two images fit, three do not
    encoder = ImageEncoder(Recording(), cache_mb=0.4)
    for image in (RED, BLUE, RED, black, RED, BLUE):  # black pushes BLUE out, BLUE pushes black
        encoder.encode([image])
    assert processed == [[RED], [BLUE], [black], [BLUE]]


def test_a_batch_larger_than_the_cache_encodes_only_what_is_not_in_it():
    processed = []

    class Recording(Qwen2VLImageProcessorPil):
        def preprocess(self, images, **kwargs):
            processed.append(images)
            return super().preprocess(images, **kwargs)

    played = [Image.new("RGB", (84, 84), (shade, 0, 0)) for shade in range(5)]
    encoder = ImageEncoder(Recording(), cache_mb=0.4)  # two images fit
    for image in played:
        encoder.encode([image])
    processed.clear()
    vision = encoder.encode(played)
    assert processed == [[image] for image in played[:3]]  # the last two are known
    assert vision.rows == ((0, 1, 2, 3, 4),)
    wanted = encoder.processor(images=played, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(vision.pixel_values, wanted, rtol=0, atol=0)


def test_no_image_at_all_is_an_error():
    with pytest.raises(ShapeError, match="no image to encode"):
        image_encoder().encode([])


def test_a_processor_of_another_family_is_refused():
    from transformers import CLIPImageProcessor

    with pytest.raises(ConfigError, match="Qwen-VL family"):
        ImageEncoder(CLIPImageProcessor())  # pyright: ignore[reportArgumentType]


@settings(max_examples=40, deadline=None)
@given(width=st.integers(5, 400), height=st.integers(5, 400), merge_size=st.sampled_from([1, 2]))
def test_token_count_is_what_the_grid_says(width: int, height: int, merge_size: int):
    encoder = image_encoder(merge_size)
    image = Image.new("RGB", (width, height))
    for shown in (image, encoder.fetch(image)):
        grid = encoder.encode([shown]).image_grid_thw
        assert encoder.token_count(shown) == int(grid.prod()) // merge_size**2


# -------------------------------------------------------------------------------- qwen_vl_utils


@settings(max_examples=300, deadline=None)
@given(
    short=st.integers(0, 2000),
    ratio=st.floats(1, 64),
    upright=st.booleans(),
    factor=st.sampled_from([7, 14, 28, 32]),
    min_tokens=st.integers(1, 16),
    max_tokens=st.integers(64, 16384),
)
def test_qwen_vl_utils_sizes_are_the_processors(
    short, ratio, upright, factor, min_tokens, max_tokens
):
    # thinner than one token, the two disagree: one rounds up to a token, the other enlarges
    sides = (factor + short, int((factor + short) * ratio))
    height, width = sides if upright else sides[::-1]
    limits = (min_tokens * factor**2, max_tokens * factor**2)
    theirs = _qwen_vl_utils().smart_resize(height, width, factor, *limits)
    assert theirs == smart_resize(height, width, factor, *limits)


@pytest.mark.parametrize("size", [(100, 61), (84, 84), (1500, 900), (30, 45)])
@pytest.mark.parametrize("merge_size", [1, 2])
def test_a_fetched_image_is_not_resized_again(size: tuple[int, int], merge_size: int):
    encoder = image_encoder(merge_size)
    fetched = encoder.fetch(gradient(*size))
    height, width = (encoder.encode([fetched]).image_grid_thw[0, 1:] * 14).tolist()
    assert fetched.size == (width, height)
    direct = encoder.encode([gradient(*size)])
    assert direct.image_grid_thw.tolist() == encoder.encode([fetched]).image_grid_thw.tolist()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_images_are_fetched_from_path_url_and_data(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    image = gradient(84, 56)
    path = tmp_path / "picture.png"
    image.save(path)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    serve = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/picture.png"
        for source in (image, str(path), f"file://{path}", data, url):
            assert fetch_image(source).tobytes() == image.tobytes()
        server.shutdown()


def test_transparency_is_put_on_white():
    assert fetch_image(Image.new("RGBA", (56, 56))).getpixel((0, 0)) == (255, 255, 255)


def test_fetching_leaves_no_trace_of_torchvision():
    is_torchvision_available.cache_clear()
    before = is_torchvision_available()
    installed = importlib.util.find_spec("torchvision") is not None
    loaded = {name for name in sys.modules if name.startswith("torchvision")}

    _qwen_vl_utils.cache_clear()
    for name in [name for name in sys.modules if name.startswith("qwen_vl_utils")]:
        del sys.modules[name]
    fetch_image(RED)

    if not installed:
        assert {name for name in sys.modules if name.startswith("torchvision")} == loaded == set()
        assert importlib.util.find_spec("torchvision") is None
    assert is_torchvision_available() == before  # transformers imported and asked first
    is_torchvision_available.cache_clear()
    assert is_torchvision_available() == before  # transformers asked afterwards


def test_without_qwen_vl_utils_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    _qwen_vl_utils.cache_clear()
    monkeypatch.delitem(sys.modules, "qwen_vl_utils.vision_process", raising=False)
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", None)
    with pytest.raises(ConfigError, match="pip install qwen-vl-utils"):
        fetch_image("picture.png")


def test_threads_may_fetch_their_first_images_at_once():
    # a fresh process, with a qwen_vl_utils that takes long to import and a torchvision that is none
    program = """
import sys, threading, time, types
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
import vagentrl.image_files as files

def slow(name):
    time.sleep(0.05)
    assert name == "torchvision" or sys.modules["torchvision"].io
    if name == "torchvision":
        raise ImportError(name)
    return types.SimpleNamespace(fetch_image=lambda image, **_: image["image"])

files.importlib = types.SimpleNamespace(import_module=slow)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(files.fetch_image, [Image.new("RGB", (28, 28))] * 8))
assert "torchvision" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
