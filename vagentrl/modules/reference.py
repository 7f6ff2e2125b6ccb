"""The policy that training started from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from vagentrl.models.lora import without_adapter
from vagentrl.modules.actor import ActorModule
from vagentrl.types import RolloutBatch


class ReferenceModule(ActorModule):
    """A frozen policy with weights of its own. As a submodule it is sharded by strategies too."""

    def __init__(self, policy: PreTrainedModel, banned_ids: frozenset[int]) -> None:
        super().__init__(policy, banned_ids)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, rollout: RolloutBatch) -> Tensor:
        return super().forward(rollout)


class ActorWithoutAdapter(nn.Module):
    """The reference of an actor with LoRA: the same model with its adapter switched off.

    It has no weights of its own.

    Args:
        actor: The actor.
    """

    def __init__(self, actor: ActorModule) -> None:
        super().__init__()
        self._actor = (actor,)  # the tuple keeps torch from registering it as a submodule

    @torch.no_grad()
    def forward(self, rollout: RolloutBatch) -> Tensor:
        (actor,) = self._actor
        with without_adapter(actor.policy):
            return actor(rollout)
