"""What vLLM's placements share: which requests are answered, what is counted, and the canary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vagentrl.engine import Engine, Generation, GenerationRequest, Vocabulary, check_request
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.canary import Canary
from vagentrl.engines.vllm.settings import check_installed, tolerance_for
from vagentrl.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class VLLMBase(Engine):
    """An engine whose weights are a copy that vLLM holds.

    Args:
        tolerance: Mean difference of the canary's log-probs that is still called equal; None:
            0.001 in float32, 0.05 in bfloat16, 0.02 in float16.

    Attributes:
        prefilled_tokens: Prompt tokens read since the engine was made.
        reused_tokens: Prompt tokens whose keys and values were in the prefix cache.
        canary_gap: The canary's mean difference of log-probs after the last update.
    """

    def __init__(self, tolerance: float | None) -> None:
        self.tolerance = tolerance
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.canary_gap = 0.0

    def prepare(self, vocabulary: Vocabulary) -> None:
        check_installed()  # not before: a configuration for GPUs can be read without them
        self._vocabulary = vocabulary

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
