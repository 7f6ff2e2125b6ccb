"""The policy that training started from."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vagentrl.modules.actor import ActorModule
from vagentrl.types import RolloutBatch


class ReferenceModule(ActorModule):
    """A frozen policy; see `ActorModule`. It is registered, so that strategies shard it too."""

    def __init__(self, policy: PreTrainedModel, banned_ids: frozenset[int]) -> None:
        super().__init__(policy, banned_ids)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, rollout: RolloutBatch) -> Tensor:
        return super().forward(rollout)
