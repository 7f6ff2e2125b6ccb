"""Threads that compute on the GPU select the device of the thread that started them."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import toy
from tests.engines.shipped import CONTEXT, SETTINGS, TEXT, ask, needs_vllm, renderer, request_of
from vagentrl.devices import same_device
from vagentrl.engines import VLLMEngine
from vagentrl.engines.base import Sampling
from vagentrl.engines.scripted import ScriptedEngine
from vagentrl.event_loops import run_to_the_end
from vagentrl.filters import KeepAll
from vagentrl.models.load import load_model
from vagentrl.rollout.collection import CollectionPlan
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.draws import Draws, World
from vagentrl.rollout.iteration import Iteration
from vagentrl.rollout.source import EpisodeSource
from vagentrl.rollout.workers import WorkerPool


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
    engine = ScriptedEngine([toy.GO], toy.encode_reply)
    engine.prepare(toy.renderer().vocabulary(512))
    pools = {"train": WorkerPool(toy.Countdown, "train")}
    collector = Collector(engine, toy.renderer(), pools, 512, background=True)
    plan = CollectionPlan(2, 1, None, KeepAll(), Sampling(), staleness=2, seed=0)
    source = EpisodeSource(collector, plan, Draws([World("train")]))
    collecting: set[tuple[str, int]] = set()
    playing: set[tuple[str, int]] = set()
    updating: list[tuple[str, int]] = []

    def here() -> tuple[str, int]:
        return threading.current_thread().name.partition("_")[0], cuda.current()

    def update(policy: Any, version: int) -> None:
        updating.append(here())
        engine.policy_version = version

    monkeypatch.setattr(engine, "update_weights", update)
    hooks: Any = SimpleNamespace(
        on_turn_end=lambda turn, training: playing.add(here()),
        on_episode_end=lambda trajectory: None,
        on_trajectories=lambda trajectories: collecting.add(here()) or trajectories,
        on_report=lambda report: None,
    )
    iterations = [Iteration(number, batch=number) for number in range(4)]
    for number in range(2):
        source.next(
            iterations[number],
            torch.nn.Linear(1, 1),
            hooks,
            upcoming=iterations[number + 1 : number + 3],
        )
    source.close()
    assert playing == {("play", 2)}
    assert collecting == {("MainThread", 2), ("collect", 2)}
    assert updating == [("MainThread", 2), ("play", 2)]


def test_without_cuda_nothing_is_selected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("no CUDA"))
    same_device()()


def test_attention_of_a_loaded_model_makes_no_plan_for_each_length():
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_model(TEXT)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
