"""The policy that training started from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from vagentrl.models.lora import without_adapter
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


class ActorWithoutAdapter(nn.Module):
    """The reference of an actor that learns by an adapter alone: it costs no memory.

    Args:
        actor: Its weights stay its own: this module has none.
    """

    def __init__(self, actor: ActorModule) -> None:
        super().__init__()
        self._actor = (actor,)  # in a tuple, so that it is no child

    @torch.no_grad()
    def forward(self, rollout: RolloutBatch) -> Tensor:
        (actor,) = self._actor
        with without_adapter(actor.policy):
            return actor(rollout)
