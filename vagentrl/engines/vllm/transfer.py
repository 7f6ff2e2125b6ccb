"""Weights from GPUs to vLLM servers, without files, by vLLM's own weight-transfer engines.

NCCL has not run; IPC has, on one GPU. The tests run vLLM's trainer side and its messages, with a
communicator that is not NCCL.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import urlsplit

from torch import Tensor, nn

from vagentrl import ranks
from vagentrl.devices import same_device
from vagentrl.engines.vllm.client import LOAD_S, VLLMClient
from vagentrl.engines.vllm.weights import parameters_of, weights_of
from vagentrl.errors import EngineDead

Backend = Literal["nccl", "ipc"]


class Transfer:
    """Sends the policy's weights from rank 0 to the workers of all servers.

    The group of trainer and servers is formed at the first transfer, and formed again when other
    servers are in use than before, or one has been restarted.

    Args:
        backend: ``nccl`` broadcasts over a network; ``ipc`` shares the memory of GPUs that trainer
            and servers both use.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._source = _policy_weights()
        self._engine: Any = None
        self._urls: list[str] = []

    def send(self, policy: nn.Module, servers: Sequence[VLLMClient], restarted: bool) -> None:
        """Send a policy's weights. All ranks must call this together, with the same arguments.

        Args:
            policy: The policy.
            servers: The servers in use.
            restarted: Whether one of them may have been restarted since the last transfer.

        Raises:
            EngineDead: On all ranks, when rank 0 could not send the weights.
        """
        failure: EngineDead | None = None
        self._source.policy = policy
        try:
            in_time(lambda: self._send(servers, restarted), LOAD_S)
        except Exception as error:  # vLLM, NCCL and requests raise errors of many kinds
            failure = EngineDead(
                f"the weights could not be sent to the vLLM servers by {self.backend}: {error!r}. "
                "A server may have died meanwhile, and cannot be left out then; start it again and "
                "resume the run from its last checkpoint with --ckpt_path, or set transfer to "
                "files"
            )
        for found in ranks.gather([failure]):
            if found is not None:
                raise found

    def _send(self, servers: Sequence[VLLMClient], restarted: bool) -> None:
        urls = [server.url for server in servers]
        if restarted or urls != self._urls:
            self._form_group(servers)
            self._urls = urls
        self._engine.send_weights()

    def _form_group(self, servers: Sequence[VLLMClient]) -> None:
        from vllm.distributed.weight_transfer import (  # pyright: ignore
            WeightTransferTrainerFactory,
        )

        client = FanOut(servers)
        if self._engine is not None:
            self._engine.shutdown()
            if ranks.rank() == 0:
                client.shutdown_weight_transfer_engine()
        make = _nccl_init_info if self.backend == "nccl" else _ipc_init_info
        self._engine = WeightTransferTrainerFactory.trainer_init(
            make(servers, client), client=client, source=self._source
        )


def _nccl_init_info(servers: Sequence[VLLMClient], client: FanOut) -> Any:
    from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore
        NCCLTrainerInitInfo,
    )

    if ranks.rank() > 0:  # takes part in gathering only
        return NCCLTrainerInitInfo("", 0, 0, rank=ranks.rank())
    address, port = _own_address(servers[0].url)
    return NCCLTrainerInitInfo(address, port, 1 + sum(client.workers()), rank=0)


def _ipc_init_info(servers: Sequence[VLLMClient], client: FanOut) -> Any:
    from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore
        IPCTrainerInitInfo,
    )

    return IPCTrainerInitInfo(rank=ranks.rank(), packed=True)


class FanOut:
    """vLLM's `VLLMWeightSyncClient` for several servers: each call goes to all of them at once.

    Args:
        servers: Clients of the servers.
    """

    def __init__(self, servers: Sequence[VLLMClient]) -> None:
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient  # pyright: ignore

        self._clients = [HTTPVLLMWeightSyncClient(server.url, LOAD_S) for server in servers]
        self._servers = servers

    def workers(self) -> list[int]:
        """Return the number of worker processes of each server."""
        answers = [server.call("/get_world_size", method="GET") for server in self._servers]
        return [answer["world_size"] for answer in answers]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        infos = [init_info] * len(self._clients)
        if "rank_offset" in init_info:  # the workers of each server follow those of the one before
            counts = self.workers()
            offsets = [init_info["rank_offset"] + sum(counts[:n]) for n in range(len(counts))]
            infos = [init_info | {"rank_offset": offset} for offset in offsets]
        self._on_each(lambda client, info: client.init_weight_transfer_engine(info), infos)

    def start_weight_update(self) -> None:
        self._on_each(lambda client: client.start_weight_update())

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._on_each(lambda client: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._on_each(lambda client: client.finish_weight_update(weight_version))

    def shutdown_weight_transfer_engine(self) -> None:
        self._on_each(lambda client: client.shutdown_weight_transfer_engine())

    def _on_each(self, call: Callable[..., None], *arguments: Sequence[Any]) -> None:
        """Call all servers at once, because they enter collective calls together."""
        with ThreadPoolExecutor(len(self._clients)) as threads:
            list(threads.map(call, self._clients, *arguments))


def _policy_weights() -> Any:
    """Return a source of weights for vLLM, whose `policy` has to be set."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource  # pyright: ignore

    class PolicyWeights(WeightSource):
        """The policy's weights under their Hugging Face names."""

        policy: nn.Module

        def metadata(self) -> list[ParamMeta]:
            weights = parameters_of(self.policy)
            return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in weights]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return weights_of(self.policy)

    return PolicyWeights()


def in_time(do: Callable[[], None], limit_s: float) -> None:
    """Do something in a thread that is left behind if it takes too long.

    Raises:
        TimeoutError: When it is not done after `limit_s` seconds.
        Exception: What `do` raised.
    """
    failures: list[BaseException] = []
    select_device = same_device()

    def work() -> None:
        select_device()
        try:
            do()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"not done after {limit_s:.0f} s")
    if failures:
        raise failures[0]


def _own_address(url: str) -> tuple[str, int]:
    """Return this machine's address as a server sees it, and a free port there."""
    host = urlsplit(url).hostname or "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # no packet is sent; the system picks the way to the host
        address = probe.getsockname()[0]
    with socket.socket() as probe:
        probe.bind((address, 0))
        return address, probe.getsockname()[1]
