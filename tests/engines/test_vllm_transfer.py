"""vLLM's weight transfer to fake servers: its own trainer side, with a communicator that is not
NCCL. No GPU was available to run the real one."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import torch

from tests.engines.fake_server import FakeServer, running
from tests.engines.shipped import TEXT, needs_vllm
from vagentrl.engines.vllm import transfer as module
from vagentrl.engines.vllm.client import VLLMClient
from vagentrl.engines.vllm.transfer import Transfer
from vagentrl.engines.vllm.weights import parameters_of
from vagentrl.errors import EngineDead
from vagentrl.models.load import load_model

pytestmark = needs_vllm


class Worker(FakeServer):
    """A server with two workers that takes part in weight transfers.

    Attributes:
        bodies: The bodies of all calls with a body, with their paths.
        fails: Path that is answered with 500.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.fails = ""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.calls.append(path)
        if body is not None:
            self.bodies.append((path, body))
        if path == self.fails:
            return 500, {"error": "no memory"}
        return 200, {"world_size": 2}

    def body(self, path: str) -> dict[str, Any]:
        return next(body for at, body in reversed(self.bodies) if at == path)


class Network(NamedTuple):
    """Two servers, and what was broadcast to them."""

    workers: list[Worker]
    servers: list[VLLMClient]
    sent: dict[str, torch.Tensor]


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    from vllm.distributed.weight_transfer import nccl_engine  # pyright: ignore[reportMissingImports]

    sent: dict[str, torch.Tensor] = {}

    class Group:
        def destroy(self) -> None:
            sent.clear()

    def broadcast(iterator: Any, group: Group, src: int, post_iter_func: Any, **sizes: Any) -> None:
        assert src == 0
        sent.update((item[0], post_iter_func(item).clone()) for item in iterator)

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: Group())
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", broadcast)
    workers = [Worker(), Worker()]
    with ExitStack() as stack:
        urls = [stack.enter_context(running(worker)) for worker in workers]
        yield Network(workers, [VLLMClient(url, 1.0) for url in urls], sent)


def test_nccl_numbers_the_workers_of_all_servers_after_the_trainer(nccl: Network):
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo  # pyright: ignore[reportMissingImports]

    Transfer("nccl").send(load_model(TEXT), nccl.servers, False)
    bodies = [worker.body("/init_weight_transfer_engine") for worker in nccl.workers]
    infos = [NCCLWeightTransferInitInfo(**body["init_info"]) for body in bodies]  # as vLLM reads it
    assert [info.rank_offset for info in infos] == [1, 3]  # the trainer is 0, two workers each
    assert [info.world_size for info in infos] == [5, 5]
    assert infos[0].master_address == "127.0.0.1"
    assert infos[0].master_port == infos[1].master_port


def test_nccl_sends_every_weight_under_the_name_that_it_announced(nccl: Network):
    policy = load_model(TEXT)
    transfer = Transfer("nccl")
    transfer.send(policy, nccl.servers, False)
    wanted = dict(parameters_of(policy))
    assert list(nccl.sent) == list(wanted)
    assert all(torch.equal(nccl.sent[name], weight) for name, weight in wanted.items())
    for worker in nccl.workers:
        announced = worker.body("/update_weights")["update_info"]
        assert announced["names"] == list(wanted)
        assert announced["shapes"] == [list(weight.shape) for weight in wanted.values()]
        assert set(announced["dtype_names"]) == {"float32"}
        assert worker.calls[-3:] == [
            "/start_weight_update", "/update_weights", "/finish_weight_update",
        ]  # fmt: skip


def test_another_transfer_keeps_the_group_and_sends_the_policy_that_it_is_given(nccl: Network):
    transfer = Transfer("nccl")
    transfer.send(load_model(TEXT), nccl.servers, False)
    other = load_model(TEXT)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    transfer.send(other, nccl.servers, False)
    assert nccl.workers[0].calls.count("/init_weight_transfer_engine") == 1
    assert not any(weight.any() for weight in nccl.sent.values())


def test_a_server_that_is_gone_makes_a_new_group_of_those_that_are_left(nccl: Network):
    transfer = Transfer("nccl")
    transfer.send(load_model(TEXT), nccl.servers, False)
    gone, left = nccl.workers
    gone.calls.clear()
    transfer.send(load_model(TEXT), nccl.servers[1:], False)
    assert gone.calls == []
    assert "/shutdown_weight_transfer_engine" in left.calls
    info = left.body("/init_weight_transfer_engine")["init_info"]
    assert (info["rank_offset"], info["world_size"]) == (1, 3)


def test_a_server_that_was_restarted_makes_a_new_group(nccl: Network):
    transfer = Transfer("nccl")
    for restarted in (False, False, True):
        transfer.send(load_model(TEXT), nccl.servers, restarted)
    for worker in nccl.workers:
        assert worker.calls.count("/init_weight_transfer_engine") == 2


def test_a_transfer_that_fails_ends_the_run(nccl: Network):
    nccl.workers[1].fails = "/update_weights"
    with pytest.raises(EngineDead, match=r"could not be sent .* by nccl.*500.*transfer to files"):
        Transfer("nccl").send(load_model(TEXT), nccl.servers, False)


def test_a_transfer_that_hangs_ends_the_run(nccl: Network, monkeypatch):
    monkeypatch.setattr(module, "LOAD_S", 0.2)
    monkeypatch.setattr(module.Transfer, "_send", lambda self, servers, restarted: time.sleep(5))
    with pytest.raises(EngineDead, match="not done after 0 s"):
        Transfer("nccl").send(load_model(TEXT), nccl.servers, False)


def test_ipc_sends_the_same_handles_to_all_servers(nccl: Network, monkeypatch):
    from vllm import envs  # pyright: ignore[reportMissingImports]
    from vllm.distributed.weight_transfer import ipc_engine  # pyright: ignore[reportMissingImports]

    class Properties:
        uuid = "GPU-1"

    class Chunk(NamedTuple):
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]
        tensor_sizes: list[int]
        ipc_handle: dict[str, tuple[Any, ...]]

    def chunks(iterator: Any, gpu_uuid: str, **settings: Any) -> Iterator[Chunk]:
        for name, weight in iterator:
            shape = list(weight.shape)
            yield Chunk([name], ["float32"], [shape], [weight.nbytes], {gpu_uuid: (name,)})

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(ipc_engine, "packed_ipc_producer", chunks)
    # Once an engine has started in this process, vLLM looks at the variable no more.
    monkeypatch.setitem(vars(envs), "VLLM_ALLOW_INSECURE_SERIALIZATION", True)
    policy = load_model(TEXT)
    Transfer("ipc").send(policy, nccl.servers, False)
    for worker in nccl.workers:
        assert worker.body("/init_weight_transfer_engine") == {"init_info": {"packed": True}}
        infos = [body["update_info"] for path, body in worker.bodies if path == "/update_weights"]
        read = [ipc_engine.IPCWeightTransferUpdateInfo(**info) for info in infos]  # as vLLM does
        assert [info.names[0] for info in read] == [name for name, _ in parameters_of(policy)]
        assert all(info.ipc_handles == {"GPU-1": (info.names[0],)} for info in read)
        assert worker.calls[-1] == "/finish_weight_update"
