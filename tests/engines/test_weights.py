"""How engines receive weights that are sharded, tied or adapted."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.engines.shipped import IMAGES, TEXT
from vagentrl.engines.vllm import weights as module
from vagentrl.engines.vllm.weights import read, save, weights_of
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "kind",
    [
        "fsdp2",
        pytest.param(
            "zero3",
            marks=pytest.mark.skipif(
                find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
            ),
        ),
    ],
)
def test_weights_that_two_ranks_shard_are_gathered_on_both(kind: str):
    for out, err in on_two_ranks(kind):
        assert out.splitlines()[-1:] == ["gathered"], err


def test_an_update_that_one_rank_lost_is_named_by_both_though_weights_are_sharded():
    for out, err in on_two_ranks("blame"):  # a rank that asked alone would wait for ever
        assert "the engine of rank 1 does not have the actor's weights" in out, err
        assert "differ by 1 on average" in out
        assert "The first tensor that differs is 1.weight" in out


def on_two_ranks(kind: str) -> list[tuple[str, str]]:
    """Run `tests.engines.gather` as two processes; returns what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tests.engines.gather", kind]
    ranks = [
        subprocess.Popen(
            [*command, rank, port],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        return [rank.communicate(timeout=280) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("model", [TEXT, IMAGES])
def test_an_adapter_is_left_out_and_does_not_change_the_names_of_weights(model: str):
    plain = dict(weights_of(load_model(model)))
    adapted = dict(weights_of(load_model(model, lora=LoRA(rank=2))))
    assert list(adapted) == list(plain)
    assert all(torch.equal(adapted[name], plain[name]) for name in plain)


def test_weights_are_written_to_files_one_at_a_time(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "SHARD_BYTES", 1000)
    folder = tmp_path / "weights"
    policy = load_model(TEXT)
    written: list[int] = []  # number of files when each weight is requested
    held = 0  # bytes of weights since the last file was written

    def one_by_one():
        nonlocal held
        for name, weight in weights_of(policy):
            files = len(list(folder.glob("*")))
            held = 0 if written and files > written[-1] else held
            assert held < 1000
            written.append(files)
            held += weight.nbytes
            yield name, weight.t().contiguous().t()  # not contiguous, as after some optimizers

    save(one_by_one(), str(folder))
    assert written[-1] > 20
    found = dict(read(str(folder)))
    assert list(found) == [
        name for name, _ in weights_of(policy)
    ]  # q, k and v must stay in this order
    assert all(torch.equal(found[name], weight) for name, weight in weights_of(policy))
    some = list(found)[3:5]
    assert [name for name, _ in read(str(folder), some)] == some
