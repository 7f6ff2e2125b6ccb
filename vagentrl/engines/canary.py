"""A check that an engine has the actor's weights: both score the same greedy reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from vagentrl import ranks
from vagentrl.engines.base import Generation, GenerationRequest, Sampling, Vocabulary
from vagentrl.engines.cached_policy import image_layout
from vagentrl.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SESSION = -1
TEXT_TOKENS = 24
REPLY_TOKENS = 16
IMAGE_SIDE = 112  # in pixels; a multiple of patch size times merge size in all Qwen-VL models


class Canary:
    """Compares an engine's log-probs with those of the policy whose weights it should have.

    Args:
        policy: The policy.
        vocabulary: The engine's vocabulary, including the image encoder.
        tolerance: Largest mean absolute difference of log-probs that counts as equal.
    """

    def __init__(self, policy: PreTrainedModel, vocabulary: Vocabulary, tolerance: float) -> None:
        self.tolerance = tolerance
        self._vocabulary = vocabulary
        self.request = self._request(policy)

    def _request(self, policy: PreTrainedModel) -> GenerationRequest:
        size = policy.config.get_text_config().vocab_size
        never = self._vocabulary.banned_ids | self._vocabulary.stop_ids
        usable = np.array([token for token in range(size) if token not in never])
        text = usable[np.linspace(0, len(usable) - 1, TEXT_TOKENS).astype(int)].tolist()
        images: tuple[Image.Image, ...] = ()
        image_token, merge = image_layout(policy.config)
        if image_token is not None:
            pixels = np.random.default_rng(0).integers(0, 256, (IMAGE_SIDE, IMAGE_SIDE, 3))
            images = (Image.fromarray(pixels.astype(np.uint8)),)
            grid = self._vocabulary.encode_images(images).image_grid_thw
            tokens = int(grid.prod()) // merge**2
            text[TEXT_TOKENS // 2 : TEXT_TOKENS // 2] = [image_token] * tokens
        sampling = Sampling(temperature=0, max_tokens=REPLY_TOKENS)
        return GenerationRequest(SESSION, tuple(text), images, sampling, seed=0)

    def check(
        self,
        policy: PreTrainedModel,
        generation: Generation,
        blame: Callable[[], str | None],
        who: str = "the engine",
    ) -> float:
        """Score the engine's reply with the policy.

        All ranks must call this together. If one of them sees a difference, all ask `blame` and
        all raise: gathering sharded weights, and going on without a rank, would wait for ever.

        Args:
            policy: The policy.
            generation: The engine's reply to `request`.
            blame: Returns the name of the first weight that differs, or None. Called only when
                the log-probs differ.
            who: What replied, for the error.

        Returns:
            The mean absolute difference of the log-probs.

        Raises:
            EngineError: When the difference is larger than the tolerance on any rank.
        """
        expected = self._logprobs(policy, generation.reply_ids)
        gaps = (expected - torch.tensor(generation.logprobs)).abs()
        gap = float(gaps.mean())
        found = ranks.gather([(gap, float(gaps.max()))])
        # A comparison with nan is false, and nan must raise.
        wrong = [rank for rank, (mean, _) in enumerate(found) if not mean <= self.tolerance]
        if not wrong:
            return gap
        culprits = ranks.gather([blame()])
        culprit = next((culprits[rank] for rank in wrong if culprits[rank]), None)
        mean, largest = found[wrong[0]]
        where = f" of rank {', '.join(map(str, wrong))}" if len(wrong) < len(found) else ""
        raise EngineError(
            f"{who}{where} does not have the actor's weights: on a prompt of "
            f"{len(self.request.prompt_ids)} tokens the log-probs of {len(gaps)} sampled tokens "
            f"differ by {mean:.3g} on average and by up to {largest:.3g}, and "
            f"{self.tolerance:.3g} is allowed. "
            + (
                f"The first tensor that differs is {culprit}; its update was lost or changed."
                if culprit
                else "No tensor that could be read back differs: engine and trainer may compute "
                "in different dtypes or with different kernels; check dtype, or raise the "
                "engine's `tolerance`"
            )
        )

    def _logprobs(self, policy: PreTrainedModel, reply: tuple[int, ...]) -> torch.Tensor:
        """The policy's log-probs of the reply's tokens, computed in one forward pass."""
        ids = torch.tensor([self.request.prompt_ids + reply], device=policy.device)
        inputs: dict[str, torch.Tensor] = {}
        if self.request.images:
            vision = self._vocabulary.encode_images(self.request.images).to(policy.device)
            image_token: int = policy.config.image_token_id  # pyright: ignore
            inputs = vision.model_inputs() | {"mm_token_type_ids": ids.eq(image_token).int()}
        with torch.no_grad():
            output: Any = policy(input_ids=ids, use_cache=False, **inputs)
        logits = output.logits[0, -len(reply) - 1 : -1].float()
        logits[:, sorted(self._vocabulary.banned_ids)] = -torch.inf
        logprobs = logits.log_softmax(-1)
        return logprobs.gather(-1, ids[0, -len(reply) :, None])[:, 0].cpu()
