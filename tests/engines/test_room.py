"""Weights are written where there is room for them."""

import logging
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engines.shipped import TEXT
from tests.engines.test_vllm_process import FilesOnly
from vagentrl.engines import ReplicatedEngine, room
from vagentrl.engines.vllm import base
from vagentrl.engines.vllm.weights import adapter_bytes, bytes_of
from vagentrl.errors import EngineError
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA

MIB = 2**20


def with_free(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """Let a folder whose last part has this name have so many free bytes."""

    def usage(folder: str) -> SimpleNamespace:
        return SimpleNamespace(free=free[Path(folder).name])

    monkeypatch.setattr(shutil, "disk_usage", usage)


def test_the_first_folder_with_room_is_chosen_and_an_error_names_all(monkeypatch):
    with_free(monkeypatch, shm=64 * MIB, tmp=2048 * MIB)
    folders = ["/dev/shm", "/tmp"]
    assert room.place_with_room(folders, 64 * MIB, "it") == "/dev/shm"
    assert room.place_with_room(folders, 65 * MIB, "it") == "/tmp"
    said = r"it takes 3\.00 GiB, and /dev/shm has 0\.06, /tmp has 2\.00 GiB free; .*--shm-size"
    with pytest.raises(EngineError, match=said):
        room.place_with_room(folders, 3072 * MIB, "it")


def test_weights_that_shared_memory_has_no_room_for_go_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    policy = load_model(TEXT)
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    monkeypatch.setattr(base, "shared_memory", lambda: str(tmp_path / "small"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "large"))
    with_free(monkeypatch, small=bytes_of(policy) - 1, large=bytes_of(policy))
    engine = FilesOnly(None)
    with caplog.at_level(logging.WARNING):
        saved = engine._save_weights(policy)
    assert Path(saved).is_relative_to(tmp_path / "large")
    assert "small has no room for a copy of the weights" in caplog.text


def test_too_little_shared_memory_is_an_error_before_it_kills_the_process(
    monkeypatch: pytest.MonkeyPatch,
):
    policy = load_model(TEXT)
    engine = ReplicatedEngine(processes=1)
    with_free(monkeypatch, shm=1000)
    with pytest.raises(EngineError, match=r"sampling processes takes .* /dev/shm has"):
        engine.update_weights(policy, 0)


def test_the_bytes_of_weights_and_of_adapters_are_counted_apart():
    plain, adapted = load_model(TEXT), load_model(TEXT, lora=LoRA(rank=2))
    assert adapter_bytes(plain) == 0
    assert bytes_of(plain) == bytes_of(adapted) == sum(p.nbytes for p in plain.parameters())
    assert adapter_bytes(adapted) == sum(p.nbytes for p in adapted.parameters() if p.requires_grad)
