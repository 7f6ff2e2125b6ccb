"""Threads that compute on the GPU select the device of the thread that started them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.shipped import CONTEXT, SETTINGS, TEXT, ask, needs_vllm, renderer, request_of
from vagentrl.devices import same_device
from vagentrl.engines import VLLMEngine
from vagentrl.engines.base import Sampling
from vagentrl.event_loops import run_to_the_end
from vagentrl.filters import KeepAll
from vagentrl.models.load import load_model
from vagentrl.rollout.iteration import Iteration
from vagentrl.rollout.source import Collection, CollectionPlan, EpisodeSource


class FakeCuda:
    """Stands in for CUDA, whose current device belongs to a thread and is 0 in a new one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._current = threading.local()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "set_device", self.select)
        monkeypatch.setattr(torch.cuda, "current_device", self.current)

    def select(self, device: int) -> None:
        self._current.device = device

    def current(self) -> int:
        return getattr(self._current, "device", 0)


@needs_vllm
def test_vllm_is_stepped_on_the_device_on_which_it_was_started(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch)
    cuda.select(1)
    engine = VLLMEngine(**SETTINGS)
    engine.prepare(renderer(TEXT).vocabulary(CONTEXT))
    engine.update_weights(load_model(TEXT), 0)
    step, devices = engine._llm.step, []
    monkeypatch.setattr(engine._llm, "step", lambda: (devices.append(cuda.current()), step())[1])
    ask(engine, request_of(TEXT, 0))
    assert set(devices) == {1}


def test_an_event_loop_in_a_thread_of_its_own_keeps_the_device(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch)
    cuda.select(3)

    async def device() -> int:
        return cuda.current()

    async def notebook() -> int:  # a loop is already running
        return run_to_the_end(device, same_device())

    assert asyncio.run(notebook()) == 3


def test_episodes_are_played_ahead_on_the_device_of_the_trainer(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch)
    cuda.select(2)
    engine: Any = SimpleNamespace(update_weights=lambda policy, version: None)
    collector: Any = SimpleNamespace(engine=engine)
    draws: Any = SimpleNamespace(assign=lambda slots, seed: [])
    plan = CollectionPlan(1, 1, None, KeepAll(), Sampling(), staleness=1, seed=0)
    source = EpisodeSource(collector, plan, draws)
    devices = []

    def collect(iteration: Iteration, hooks: Any) -> Collection:
        devices.append(cuda.current())
        return Collection([], [], {})

    monkeypatch.setattr(source, "collect", collect)
    hooks: Any = None
    source.next(Iteration(0), torch.nn.Linear(1, 1), hooks, upcoming=Iteration(1))
    source.close()
    assert devices == [2, 2]


def test_without_cuda_nothing_is_selected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("no CUDA"))
    same_device()()
