"""The common base of the vLLM engines: checks, counts, files of weights, and the canary."""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagentrl import ranks
from vagentrl.engines.base import Engine, Generation, GenerationRequest, Vocabulary, check_request
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.canary import Canary
from vagentrl.engines.room import place_with_room, shared_memory
from vagentrl.engines.vllm.client import Adapter
from vagentrl.engines.vllm.messages import cached_tokens, generation_in, request_body
from vagentrl.engines.vllm.settings import check_installed, engine_dtype, tolerance_for
from vagentrl.engines.vllm.weights import adapter_bytes, bytes_of, parameters_of, save, weights_of
from vagentrl.errors import EngineError
from vagentrl.models.lora import save_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

Compare = Callable[[Collection[str] | None], dict[str, bool]]
"""Compares the weights of these names (None for all) with vLLM's.

The result says, for each weight that can be read back, whether it is equal.
"""


class VLLMBase(Engine):
    """An engine that samples with vLLM, which holds its own copy of the weights.

    Args:
        tolerance: Largest mean absolute difference of the canary's log-probs that counts as equal;
            None for 0.001 if the engine computes in float32, 0.05 in bfloat16, 0.02 in float16.
        options: Further engine arguments of vLLM, by name.
        folder: Folder for weights that are passed to vLLM in files; None for shared memory
            (``/dev/shm``) if it exists and has room, otherwise the system's temporary folder.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was created.
        reused_tokens: Prompt tokens whose keys and values were in the prefix cache.
        canary_gap: The canary's mean absolute difference of log-probs after the last update.
    """

    def __init__(
        self,
        tolerance: float | None,
        folder: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.tolerance = tolerance
        self.options = options or {}
        self.folder = folder
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.canary_gap = 0.0
        self._name = f"vagentrl-{uuid.uuid4().hex[:8]}"  # makes names unique to this trainer
        self._transfer_folder: tempfile.TemporaryDirectory[str] | None = None
        self._adapter: Adapter | None = None
        self._weights: str | None = None  # folder with the latest saved weights
        self._readable: frozenset[str] | None = None  # names of weights that can be read back
        self._pending, self._busy_since = 0, 0.0  # requests that await their reply, and since when
        self._blocks: list[list[str]] = []  # blocks of weights; each update compares the next one

    def prepare(self, vocabulary: Vocabulary) -> None:
        # Checked here, not in __init__, so that configurations can be parsed without vLLM.
        check_installed()
        self._vocabulary = vocabulary

    def _transfer_path(self, name: str, size: int) -> str:
        """Return a path inside this engine's folder for files that vLLM reads.

        Args:
            name: Name of the file or folder.
            size: Bytes that will be written there.

        Raises:
            EngineError: When there is no room for them.
        """
        if self._transfer_folder is not None:
            place_with_room([self._transfer_folder.name], size, "a copy of the weights")
            return str(Path(self._transfer_folder.name) / name)
        folders = [self.folder] if self.folder else [shared_memory(), tempfile.gettempdir()]
        folders = [folder for folder in folders if folder is not None]
        for folder in folders:
            _remove_stale_folders(folder)
        chosen = place_with_room(folders, size, "a copy of the weights")
        if chosen != folders[0]:
            log.warning(
                "%s has no room for a copy of the weights (%.2f GiB), so they are written to %s, "
                "which may be slower; a container gets more with docker run --shm-size=SIZE",
                *(folders[0], size / 2**30, chosen),
            )
        self._transfer_folder = tempfile.TemporaryDirectory(
            prefix=f"vagentrl-{platform.node()}-{os.getpid()}-", dir=chosen
        )
        return str(Path(self._transfer_folder.name) / name)

    def _save_weights(self, policy: PreTrainedModel) -> str:
        """Save the policy's current weights, delete the previous ones, and return the folder."""
        folder = self._room_for_weights(policy)
        save(weights_of(policy), folder)
        return folder

    def _room_for_weights(self, policy: PreTrainedModel) -> str:
        """Delete the previously saved weights, and return the folder for the current ones."""
        if self._weights is not None:
            shutil.rmtree(self._weights)  # deleted first: there may not be space for both
        self._weights = self._transfer_path(f"weights-{uuid.uuid4().hex[:8]}", bytes_of(policy))
        return self._weights

    def _save_adapter(self, policy: PreTrainedModel) -> Adapter:
        """Save the policy's current adapter."""
        adapter = self._room_for_adapter(policy)
        save_adapter(policy, adapter.path)
        return adapter

    def _room_for_adapter(self, policy: PreTrainedModel) -> Adapter:
        """Return where the policy's current adapter is to be saved, under a name of its own."""
        number = 1 + (self._adapter.number if self._adapter is not None else 0)
        name = f"{self._name}-adapter-{number}"
        return Adapter(name, number, self._transfer_path(name, adapter_bytes(policy)))

    def _read_image_layout(self, policy: PreTrainedModel) -> None:
        self._image_token, self._merge = image_layout(policy.config)

    def _check(self, request: GenerationRequest) -> None:
        if self.policy_version < 0:
            raise EngineError("no weights to sample from yet; call update_weights first")
        reads_images = self._image_token is not None
        check_request(request, self._vocabulary, reads_images=reads_images)

    def _version_name(self, version: int) -> str:
        """Return a unique name for weights: a restarted trainer counts from the same versions."""
        return f"{self._name}-{version}-{uuid.uuid4().hex[:8]}"

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        adapter = None if self._adapter is None else self._adapter.name
        layout = (self._image_token, self._merge)
        return request_body(request, self._vocabulary, adapter, layout)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Add to `busy_s` the time in which at least one request is pending."""
        if not self._pending:
            self._busy_since = time.perf_counter()
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1
            if not self._pending:
                self.busy_s += time.perf_counter() - self._busy_since

    def _counted(self, request: GenerationRequest, answer: dict[str, Any]) -> Generation:
        """Return the reply in a server's answer, and count its tokens."""
        generation = generation_in(answer, self.policy_version)
        self._count(len(request.prompt_ids), cached_tokens(answer), generation)
        return generation

    def _count(self, request_tokens: int, cached: int, generation: Generation) -> None:
        self.reused_tokens += cached
        self.prefilled_tokens += request_tokens - cached
        self.sampled_tokens += len(generation.reply_ids)

    def _verify_weights(
        self,
        policy: PreTrainedModel,
        sample: Callable[[GenerationRequest], Mapping[str, Generation]],
        compare: Compare,
    ) -> None:
        """Compare the engine's log-probs with the policy's, and one block of weights directly.

        Log-probs alone do not reveal every lost update: with a small learning rate, an update
        changes them by less than rounding does. The comparison of weights is exact.

        Args:
            policy: The policy.
            sample: Returns the reply of each server to a request, by the name of the server. The
                names are the same on all ranks.
            compare: See `Compare`.

        Raises:
            EngineError: When the engine does not have the policy's weights.
        """

        def blame() -> str | None:
            return _first_difference(compare(None), self._readable)

        dtype = engine_dtype(policy, self.options, self.dtype)
        canary = Canary(policy, self._vocabulary, tolerance_for(dtype, self.tolerance))
        replies = sample(canary.request).items()
        self.canary_gap = max(canary.check(policy, reply, blame, who) for who, reply in replies)
        if self._readable is None:
            # The canary has just shown that the first update arrived. A weight that differs
            # nevertheless is stored by vLLM in another form and cannot be compared.
            mine = frozenset(name for name, same in compare(None).items() if same)
            # All ranks compare the same blocks, because gathering sharded weights takes all ranks.
            self._readable = frozenset.intersection(*ranks.gather([mine]))
            self._blocks = _blocks(policy, self._readable)
        elif self._blocks:
            block = self._blocks.pop(0)
            self._blocks.append(block)
            culprits = ranks.gather([_first_difference(compare(block), self._readable)])
            culprit = next(filter(None, culprits), None)
            if culprit is not None:
                raise EngineError(
                    f"the engine does not have the actor's weights: {culprit} differs; its update "
                    "was lost or changed"
                )


def _first_difference(equal: dict[str, bool], readable: Collection[str] | None) -> str | None:
    """Return the name of the first readable weight that differs, or None."""
    names = (name for name, is_equal in equal.items() if not is_equal)
    return next((name for name in names if readable is None or name in readable), None)


def _blocks(policy: PreTrainedModel, readable: Collection[str]) -> list[list[str]]:
    """Return the names of the weights in each block of the model that has trainable weights.

    A block is a parent module such as ``layers.0.mlp``. Weights that vLLM packs into one belong to
    the same block.
    """
    blocks: dict[str, list[str]] = {}
    trainable: set[str] = set()
    for name, parameter in parameters_of(policy):
        block = name.rsplit(".", 2)[0]
        blocks.setdefault(block, []).append(name)
        if parameter.requires_grad and name in readable:
            trainable.add(block)
    return [names for block, names in blocks.items() if block in trainable]


def _remove_stale_folders(folder: str) -> None:
    """Delete the transfer folders of processes on this machine that were killed."""
    for path in Path(folder).glob(f"vagentrl-{platform.node()}-*"):
        owner = re.fullmatch(rf"vagentrl-{re.escape(platform.node())}-(\d+)-\w+", path.name)
        if owner is not None and not Path("/proc", owner[1]).exists():
            shutil.rmtree(path, ignore_errors=True)
