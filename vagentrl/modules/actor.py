"""The trainable policy, which is also the base class of the frozen reference."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from vagentrl.models.forward import states_before, token_logprobs
from vagentrl.types import RolloutBatch


class ActorModule(LightningModule):
    """The policy.

    Args:
        policy: A Hugging Face model with its language-model head.
        banned_ids: Tokens that the engine never samples; their probability is 0 here as well.
    """

    banned_ids: Tensor

    def __init__(self, policy: PreTrainedModel, banned_ids: frozenset[int]) -> None:
        super().__init__()
        self.policy = policy
        ids = torch.tensor(sorted(banned_ids), dtype=torch.long)
        self.register_buffer("banned_ids", ids, persistent=False)

    def states(self, rollout: RolloutBatch) -> Tensor:
        """Hidden state before each token, ``(B, T, D)``."""
        return states_before(self.policy.base_model, rollout)

    def logprobs(
        self, states: Tensor, rollout: RolloutBatch, *, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of the sampled tokens and, with `with_entropy`, entropies; each ``(B, T)``."""
        return token_logprobs(
            self.policy, states, rollout, self.banned_ids, with_entropy=with_entropy
        )

    def forward(self, rollout: RolloutBatch) -> Tensor:
        """Log-probs ``(B, T)`` of the sampled tokens, 0 elsewhere."""
        return self.logprobs(self.states(rollout), rollout)[0]
