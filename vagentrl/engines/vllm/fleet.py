"""Several vLLM servers that all ranks of a run sample from."""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from torch import nn

from vagentrl import ranks
from vagentrl.engines.base import Generation, GenerationRequest
from vagentrl.engines.vllm.base import VLLMBase
from vagentrl.engines.vllm.client import PAUSE_S, VLLMClient, Weights
from vagentrl.engines.vllm.connections import RequestFailed, ServerError, ServerSilent
from vagentrl.engines.vllm.members import Member, check_servers, start_servers
from vagentrl.engines.vllm.messages import generation_in
from vagentrl.engines.vllm.process import ServerProcess
from vagentrl.engines.vllm.settings import engine_settings
from vagentrl.engines.vllm.transfer import Transfer
from vagentrl.engines.vllm.weights import equal_on_all, save, weights_of
from vagentrl.errors import ConfigError, EngineDead, EngineError
from vagentrl.models.lora import has_adapter, save_adapter
from vagentrl.models.sharded import is_sharded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 4
"""Attempts at a request before the failure is blamed on the request, lest it end all servers."""


class VLLMFleet(VLLMBase):
    """Samples from several vLLM servers, with any number of ranks.

    Every rank uses all servers. An episode begins at the server with the fewest episodes of its
    rank and stays there, where its prefix is cached. Rank 0 hands new weights to all servers under
    a unique name, and every reply names the weights that wrote it. A server that fails is left out
    until the next update of the weights, and its unanswered requests are sent to the others with
    the same seeds. If no server is left, the run ends. All ranks must call `update_weights`
    together.

    Args:
        urls: Addresses of servers that were started with `server_command`.
        servers: In place of `urls`, the number of servers to start on this machine. They end with
            the trainer. One that has died is started again at the next update of the weights.
        devices: ``CUDA_VISIBLE_DEVICES`` of each server that it starts; None for the trainer's.
        transfer: How servers get new weights: ``files`` in `folder`, or by vLLM's weight transfer
            from GPU to GPU with ``nccl`` or ``ipc`` (docs/engines.md). Adapters go in files.
        folder: See `VLLMBase`.
        patience_s: Seconds that a server may be silent before it is left out.
        start_s: Additional seconds that servers started by this engine may need to start.
        kv_cache_gb: As in `VLLMEngine`, for each server started by this engine.
        tolerance: See `VLLMBase`.
        options: Further vLLM engine arguments by name, for servers started by this engine.
    """

    def __init__(
        self,
        urls: list[str] | None = None,
        servers: int | None = None,
        devices: list[str] | None = None,
        transfer: Literal["files", "nccl", "ipc"] = "files",
        folder: str | None = None,
        patience_s: float = 60.0,
        start_s: float = 600.0,
        kv_cache_gb: float | None = None,
        tolerance: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tolerance, folder, options)
        check_servers(urls, servers, devices, transfer)
        self.urls = urls
        self.servers = servers
        self.devices = devices
        self.transfer: Literal["files", "nccl", "ipc"] = transfer
        self.patience_s = patience_s
        self.start_s = start_s
        self.kv_cache_gb = kv_cache_gb
        self._members: list[Member] = []
        self._homes: dict[int, Member] = {}  # the server of each episode
        self._left_out: set[str] = set()  # servers that could not be used before this update
        self._wanted = Weights("")  # the weights that every reply must come from
        self._asked_anew = 0
        self._transfer: Transfer | None = None

    @property
    def server_settings(self) -> dict[str, Any]:
        """vLLM's engine arguments that servers of this fleet need besides `engine_settings`."""
        if self.transfer == "files":
            return {}
        return {"weight_transfer_config": {"backend": self.transfer}}

    @property
    def beside_trainer(self) -> bool:
        """Whether the servers run on the trainer's devices."""
        return self.urls is None and self.devices is None

    def counts(self) -> dict[str, float]:
        in_use = sum(member.in_use for member in self._members)
        counts = {"rollout/asked_anew": float(self._asked_anew)}
        if ranks.rank() == 0:  # counts are summed over the ranks
            counts |= {
                "rollout/servers": float(in_use),
                "rollout/servers_left_out": float(len(self._members) - in_use),
            }
        return counts

    # --------------------------------------------------------------------------------- weights

    def update_weights(self, policy: nn.Module, version: int) -> None:
        model = cast("PreTrainedModel", policy)
        self._read_image_layout(model)
        if not self._members:
            self._members = self._find_servers(model)
        lost = [member.client.url for member in self._members if not member.in_use]
        self._left_out = {url for urls in ranks.gather([lost]) for url in urls}
        self._homes.clear()
        self._asked_anew = 0
        old, self._wanted = self._wanted, self._save(model, version)
        self._adapter = self._wanted.adapter
        self._find_live()
        self._load(model, old.version)
        self._on_servers(self._begin)
        self._verify_weights(model, self._sample_alone, self._compare)
        if (old_adapter := old.adapter) is not None:
            self._on_servers(lambda member: member.client.unload(old_adapter))
            ranks.on_first(lambda: shutil.rmtree(old_adapter.path))
        self.policy_version = version

    def _save(self, policy: PreTrainedModel, version: int) -> Weights:
        """Save the adapter, or all weights if there is none, on rank 0; the others help gather."""

        def find_room() -> Weights:
            name = self._version_name(version)
            if has_adapter(policy):
                return Weights(name, adapter=self._room_for_adapter(policy))
            if self.transfer != "files":
                return Weights(name)
            return Weights(name, folder=self._room_for_weights(policy))

        weights, first = ranks.on_first(find_room), ranks.rank() == 0
        in_files = weights.adapter is not None or weights.folder is not None
        if not in_files or (not first and not is_sharded(policy)):
            return weights
        if weights.adapter is not None:
            with TemporaryDirectory() as aside:
                save_adapter(policy, weights.adapter.path if first else aside)
        elif weights.folder is not None and first:
            save(weights_of(policy), weights.folder)
        else:
            for _ in weights_of(policy):  # rank 0 gathers each weight with all ranks
                pass
        return weights

    def _load(self, policy: PreTrainedModel, old_version: str) -> None:
        """Give all servers the current weights."""
        wanted = self._wanted
        if wanted.adapter is not None or wanted.folder is not None:
            self._on_servers(lambda member: member.client.load(wanted))
            return
        assert self.transfer != "files"
        if self._transfer is None:
            self._transfer = Transfer(self.transfer)
        held = self._on_servers(lambda member: member.client.version())
        servers = [member.client for member in self._members if member.in_use]
        self._transfer.send(policy, servers, restarted=set(held.values()) != {old_version})

    def _begin(self, member: Member) -> None:
        """Let a server sample from the weights that it was given; it must confirm their name."""
        client, wanted = member.client, self._wanted
        client.begin(wanted.version)
        if (found := client.version()) != wanted.version:
            raise ServerError(f"it has weights {found} after it was given {wanted.version}")

    def _sample_alone(self, request: GenerationRequest) -> dict[str, Generation]:
        """Return the distinct replies of all servers, each under the name of one server."""
        body, version = self._body(request), self._wanted.version
        answers = self._on_servers(lambda member: member.client.ask_alone(body, version))
        distinct = {generation_in(answer, -1): url for url, answer in answers.items()}
        return {f"the vLLM server at {url}": reply for reply, url in distinct.items()}

    def _compare(self, names: Collection[str] | None) -> dict[str, bool]:
        folder = self._wanted.folder
        if folder is None:
            return {}  # there are no files to compare with
        found = self._on_servers(lambda member: member.client.compare(folder, names))
        together = equal_on_all(list(found.values()))
        for name in (name for name, same in together.items() if not same):
            at = [url for url, equal in found.items() if not equal.get(name, True)]
            if len(at) < len(found):
                log.warning("%s differs at %s only", name, ", ".join(at))
        return together

    # ------------------------------------------------------------------------------ the servers

    def _find_servers(self, policy: PreTrainedModel) -> list[Member]:
        """Return all servers; rank 0 starts those that run on this machine when needed."""
        if self.urls is not None:
            return [Member(VLLMClient(url, self.patience_s)) for url in self.urls]
        assert self.servers is not None
        machines = set(ranks.gather([platform.node()]))
        if len(machines) > 1:
            raise ConfigError(
                f"servers is {self.servers} and the ranks are on {len(machines)} machines "
                f"({', '.join(sorted(machines))}), but only this one would reach the servers: "
                "start them on the machines (docs/engines.md) and give their urls"
            )
        given = (self.options, self.kv_cache_gb, self.dtype)
        settings = engine_settings(policy, self._vocabulary, *given) | self.server_settings
        devices = self.devices or [None] * self.servers
        started = start_servers(settings, devices, self.patience_s) if ranks.rank() == 0 else None
        urls = ranks.on_first(lambda: [client.url for client in started or ()])
        clients = started or [VLLMClient(url, self.patience_s) for url in urls]
        return [Member(client) for client in clients]

    def end_servers(self) -> None:
        """End the servers that this engine has started, which frees their memory."""
        started = [m.client.process for m in self._members if m.client.process is not None]
        with ThreadPoolExecutor(len(started) or 1) as threads:
            list(threads.map(ServerProcess.end, started))

    def _find_live(self) -> None:
        """Find out which servers answer.

        Those that could be used until now are waited for. A server that could not, or whose
        process must be started again, can join a later update; if there are only such servers, all
        are waited for.
        """
        hasty = ranks.on_first(
            lambda: {
                m.client.url for m in self._members if m.client.url in self._left_out or m.ended
            }
        )
        try:
            self._wait_for_all_but(hasty)
        except EngineDead:
            if not hasty:
                raise
            self._wait_for_all_but(set())

    def _wait_for_all_but(self, hasty: set[str]) -> None:
        """Try all servers; return when all but these have answered or taken too long."""

        def limit_s(member: Member) -> float:
            if member.client.url in hasty:
                return 0.0
            return self.patience_s + (self.start_s if member.starts else 0.0)

        for member in self._members:
            member.problem, member.episodes = None, 0
        self._on_servers(lambda member: member.wait(limit_s(member)))

    def _on_servers(self, do: Callable[[Member], T]) -> dict[str, T]:
        """Do something with all servers in use at once, on rank 0.

        A server that fails is left out. All ranks must call this together.

        Returns:
            The results by URL, on all ranks.

        Raises:
            EngineDead: When no server is left.
        """
        members = [member for member in self._members if member.in_use]

        def act() -> list[tuple[str | None, Any]]:
            with ThreadPoolExecutor(len(members)) as threads:
                return list(threads.map(lambda member: _outcome(do, member), members))

        results: dict[str, T] = {}
        for member, (problem, result) in zip(members, ranks.on_first(act), strict=True):
            if problem is None:
                results[member.client.url] = result
            else:
                self._leave_out(member, problem, told=ranks.rank() > 0)
        if not results:
            raise self._none_left()
        return results

    def _leave_out(self, member: Member, problem: str, told: bool = False) -> None:
        """Use a server no more until the next update; warn unless another rank has told of it."""
        if not member.in_use:
            return
        member.problem = problem
        known = told or member.client.url in self._left_out
        log.log(
            logging.DEBUG if known else logging.WARNING,
            "rank %d leaves out the vLLM server at %s until the next update of the weights; %d of "
            "%d are left: %s",
            *(ranks.rank(), member.client.url),
            *(sum(m.in_use for m in self._members), len(self._members), problem),
        )

    def _none_left(self) -> EngineDead:
        problems = "\n".join(member.in_words() for member in self._members)
        return EngineDead(
            f"none of the {len(self._members)} vLLM servers can be used any more:\n{problems}\n"
            "Start them again and resume the run from its last checkpoint with --ckpt_path, or "
            "raise patience_s (or start_s, if the engine starts the servers)"
        )

    # -------------------------------------------------------------------------------- sampling

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check(request)
        with self._busy():
            answer = await self._ask(request)
        return self._counted(request, answer)

    def release(self, session: int) -> None:
        if (home := self._homes.pop(session, None)) is not None:
            home.episodes -= 1

    async def _ask(self, request: GenerationRequest) -> Any:
        """Ask one server after the other until there is an answer.

        A failure of one server alone shows that it is the server's fault, not the request's.

        Raises:
            EngineError: When servers have repeatedly failed at this request.
            EngineDead: When no server is left.
        """
        body, version = self._body(request), self._wanted.version
        failures, failed_at = 0, set[Member]()
        while True:
            home = self._home(request.session, failed_at)
            try:
                answer = await home.client.ask(body, version)
            except ServerError as error:
                self._asked_anew += 1
                failures += 1
                if await self._is_well(home, error):
                    if isinstance(error, RequestFailed):
                        failed_at.add(home)
                    await asyncio.sleep(PAUSE_S)
                if failures == ATTEMPTS and any(member.in_use for member in self._members):
                    raise EngineError(
                        f"vLLM servers failed {failures} times at one prompt, which may be the "
                        f"cause; the last time: {error}"
                    ) from error
                continue
            for member in failed_at - {home}:
                self._leave_out(member, "it failed at a prompt that another server answered")
            return answer

    async def _is_well(self, member: Member, error: ServerError) -> bool:
        """Whether a server that has just failed can be used; if not, it is left out."""
        connections = await member.client.connect()
        async with connections.recovery_lock:  # all its requests fail at once
            if member.in_use:
                silent = isinstance(error, ServerSilent)
                trouble = "silent" if silent else await member.client.trouble(self._wanted.version)
                if trouble is not None:
                    self._leave_out(member, f"{error} ({trouble})")
        return member.in_use

    def _home(self, session: int, avoid: Collection[Member]) -> Member:
        """Return the server of an episode; the one with the fewest episodes if it has none yet."""
        home = self._homes.get(session)
        if home is not None and home.in_use and home not in avoid:
            return home
        live = [member for member in self._members if member.in_use]
        if not live:
            raise self._none_left()
        others = [member for member in live if member not in avoid] or live
        # Ranks begin at different servers, because none knows the episodes of the others.
        shift = ranks.rank() * len(others) // ranks.world_size()
        chosen = min(others[shift:] + others[:shift], key=lambda member: member.episodes)
        self.release(session)
        self._homes[session] = chosen
        chosen.episodes += 1
        return chosen


def _outcome(do: Callable[[Member], T], member: Member) -> tuple[str | None, T | None]:
    """Return what went wrong with a server, and the result if nothing did."""
    try:
        return None, do(member)
    except (ServerError, EngineError, EngineDead) as error:
        return str(error), None
