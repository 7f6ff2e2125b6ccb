"""The value function."""

from __future__ import annotations

import torch
from lightning import LightningModule
from torch import Tensor
from transformers import PreTrainedModel

from vagentrl.models.forward import states_before
from vagentrl.models.value_head import ValueHead
from vagentrl.types import RolloutBatch


class CriticModule(LightningModule):
    """Value of the state before each token.

    Args:
        like: The policy. The value head copies its hidden size and its type, but is at least
            float32.
        backbone: The critic's own model, without a head; None reads the actor's hidden states.
    """

    def __init__(self, like: PreTrainedModel, backbone: PreTrainedModel | None) -> None:
        super().__init__()
        self.backbone = backbone
        hidden_size = like.config.get_text_config().hidden_size
        self.value_head = ValueHead(hidden_size, torch.promote_types(like.dtype, torch.float32))

    def forward(self, rollout: RolloutBatch, actor_states: Tensor | None = None) -> Tensor:
        """Values ``(B, T)``.

        Args:
            rollout: The rows.
            actor_states: ``(B, T, D)`` hidden states of the actor; only read by a critic without a
                backbone of its own.
        """
        if self.backbone is not None:
            return self.value_head(states_before(self.backbone, rollout))
        if actor_states is None:
            raise ValueError("a critic without a backbone of its own needs the actor's states")
        return self.value_head(actor_states)
