"""What vLLM's placements share: which requests are answered, what is counted, and the canary."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors.torch import save_file

from vagentrl.engine import Engine, Generation, GenerationRequest, Vocabulary, check_request
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.settings import check_installed, tolerance_for
from vagentrl.engines.vllm.weights import weights_of
from vagentrl.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS = "weights.safetensors"


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

    def prepare(self, vocabulary: Vocabulary) -> None:
        check_installed()  # not before: a configuration for GPUs can be read without them
        self._vocabulary = vocabulary

    def _file(self, name: str) -> str:
        """Path of a file, or folder, that is handed over."""
        if self._handed_over is None:
            self._handed_over = tempfile.TemporaryDirectory(prefix="vagentrl-", dir=self.folder)
        return str(Path(self._handed_over.name) / name)

    def _save_weights(self, policy: PreTrainedModel) -> None:
        weights = {name: weight.contiguous() for name, weight in weights_of(policy)}
        save_file(weights, self._file(WEIGHTS + ".new"))
        os.replace(self._file(WEIGHTS + ".new"), self._file(WEIGHTS))

    def _save_adapter(self, policy: PreTrainedModel) -> Adapter:
        """The policy's adapter as it is now."""
        number = 1 + (self._adapter.number if self._adapter is not None else 0)
        name = f"{self._name}-adapter-{number}"
        adapter = Adapter(name, number, self._file(name))
        policy.save_pretrained(adapter.path)
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
        blame: Callable[[], str | None],
    ) -> None:
        """Raises:
        EngineError: When what the canary samples is not what the policy would say.
        """
        canary = Canary(policy, self._vocabulary, tolerance_for(policy, self.tolerance))
        self.canary_gap = canary.check(policy, sample(canary.request), blame)
