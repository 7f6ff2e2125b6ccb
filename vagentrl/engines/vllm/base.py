"""What vLLM's placements share: which requests are answered, what is counted, and the canary."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vagentrl.engines.base import Engine, Generation, GenerationRequest, Vocabulary, check_request
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.settings import check_installed, tolerance_for
from vagentrl.engines.vllm.weights import parameters_of, save, weights_of
from vagentrl.errors import EngineError
from vagentrl.models.lora import save_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Compare = Callable[[Collection[str] | None], dict[str, bool]]
"""Whether vLLM holds the weights of these names (None: all), as far as they can be read back."""


class Adapter(NamedTuple):
    """A LoRA adapter as vLLM wants it: by a name and a number that no other has, in a folder."""

    name: str
    number: int
    path: str


class VLLMBase(Engine):
    """An engine whose weights are a copy that vLLM holds.

    Args:
        tolerance: Mean difference of the canary's log-probs that is still called equal; None:
            0.001 in float32, 0.05 in bfloat16, 0.02 in float16.
        folder: Where weights are handed over that go through files; None: memory (``/dev/shm``) if
            there is such a thing.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was made.
        reused_tokens: Prompt tokens whose keys and values were in the prefix cache.
        canary_gap: The canary's mean difference of log-probs after the last update.
    """

    def __init__(self, tolerance: float | None, folder: str | None = None) -> None:
        self.tolerance = tolerance
        self.folder = folder or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.canary_gap = 0.0
        self._name = f"vagentrl-{uuid.uuid4().hex[:8]}"  # of what this trainer hands over
        self._handed_over: tempfile.TemporaryDirectory[str] | None = None
        self._adapter: Adapter | None = None
        self._weights: str | None = None  # the folder in which they are handed over
        self._readable: frozenset[str] | None = None  # weights that can be read back
        self._blocks: list[list[str]] = []  # weights that are looked at together, in turns

    def prepare(self, vocabulary: Vocabulary) -> None:
        check_installed()  # not before: a configuration for GPUs can be read without them
        self._vocabulary = vocabulary

    def _file(self, name: str) -> str:
        """Path of a file, or folder, that is handed over."""
        if self._handed_over is None:
            _sweep(self.folder or tempfile.gettempdir())
            self._handed_over = tempfile.TemporaryDirectory(
                prefix=f"vagentrl-{platform.node()}-{os.getpid()}-", dir=self.folder
            )
        return str(Path(self._handed_over.name) / name)

    def _save_weights(self, policy: PreTrainedModel) -> str:
        """The folder with the policy's weights as they are now; the one before is gone."""
        if self._weights is not None:
            shutil.rmtree(self._weights)  # first: there may be no room for both
        self._weights = self._file(f"weights-{uuid.uuid4().hex[:8]}")
        save(weights_of(policy), self._weights)
        return self._weights

    def _save_adapter(self, policy: PreTrainedModel) -> Adapter:
        """The policy's adapter as it is now."""
        number = 1 + (self._adapter.number if self._adapter is not None else 0)
        name = f"{self._name}-adapter-{number}"
        adapter = Adapter(name, number, self._file(name))
        save_adapter(policy, adapter.path)
        return adapter

    def _know(self, policy: PreTrainedModel) -> None:
        self._image_token, self._merge = image_layout(policy.config)

    def _check(self, request: GenerationRequest) -> None:
        if self.policy_version < 0:
            raise EngineError("no weights to sample from yet; call update_weights first")
        check_request(request, self._vocabulary, sees=self._image_token is not None)

    def _count(self, request_tokens: int, cached: int, generation: Generation) -> None:
        self.reused_tokens += cached
        self.prefilled_tokens += request_tokens - cached
        self.sampled_tokens += len(generation.reply_ids)

    def _sing(
        self,
        policy: PreTrainedModel,
        sample: Callable[[GenerationRequest], Generation],
        compare: Compare,
    ) -> None:
        """Compare what the engine samples with the policy, and some of the weights themselves.

        An update that was lost moves log-probs by less than arithmetic does when the learning rate
        is small, and a weight by much more.

        Raises:
            EngineError: When the engine does not have the policy's weights.
        """

        def blame() -> str | None:
            return _differing(compare(None), self._readable)

        canary = Canary(policy, self._vocabulary, tolerance_for(policy, self.tolerance))
        self.canary_gap = canary.check(policy, sample(canary.request), blame)
        if self._readable is None:
            # Before this the engine had no weights at all, so the canary has proved them: what
            # differs nevertheless is kept in another form.
            self._readable = frozenset(name for name, same in compare(None).items() if same)
            self._blocks = _blocks(policy, self._readable)
        elif self._blocks:
            block = self._blocks.pop(0)
            self._blocks.append(block)
            if (culprit := _differing(compare(block), self._readable)) is not None:
                raise EngineError(
                    f"the engine does not have the actor's weights: {culprit} differs; its update "
                    "was lost or changed"
                )


def _differing(same: dict[str, bool], readable: Collection[str] | None) -> str | None:
    """The first weight that differs, of those that can be read back."""
    names = (name for name, it_is in same.items() if not it_is)
    return next((name for name in names if readable is None or name in readable), None)


def _blocks(policy: PreTrainedModel, readable: Collection[str]) -> list[list[str]]:
    """Weights that learn, by the block of the model to which they belong.

    What vLLM packs into one is within one block.
    """
    blocks: dict[str, list[str]] = {}
    learning: set[str] = set()
    for name, parameter in parameters_of(policy):
        block = name.rsplit(".", 2)[0]
        blocks.setdefault(block, []).append(name)
        if parameter.requires_grad and name in readable:
            learning.add(block)
    return [names for block, names in blocks.items() if block in learning]


def _sweep(folder: str) -> None:
    """Remove what processes of this machine left behind that were killed."""
    for path in Path(folder).glob(f"vagentrl-{platform.node()}-*"):
        owner = re.fullmatch(rf"vagentrl-{re.escape(platform.node())}-(\d+)-\w+", path.name)
        if owner is not None and not Path("/proc", owner[1]).exists():
            shutil.rmtree(path, ignore_errors=True)
