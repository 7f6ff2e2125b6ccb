"""A second instance of a policy, for an engine that samples from a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from vagentrl.models.head import head_dtype_of, set_head_dtype
from vagentrl.models.load import freeze_vision_tower
from vagentrl.models.sharded import full_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Replica(NamedTuple):
    """What it takes to build a policy again, in this process or in another.

    Attributes:
        kind: The policy's class.
        config: The policy's configuration.
        adapter: The configuration of its adapter, or None.
        vision_is_frozen: Whether it has a vision tower that does not learn.
        weights: Its whole weights and buffers by name, on the CPU.
    """

    kind: type[PreTrainedModel]
    config: Any
    adapter: Any
    vision_is_frozen: bool
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, policy: PreTrainedModel) -> Replica:
        """Copy a policy's weights. If the policy is sharded, all ranks must call this together."""
        visual = [p for name, p in policy.named_parameters() if "visual." in name]
        weights = {name: weight.detach().cpu().clone() for name, weight in full_state(policy)}
        adapter = next(iter(policy.peft_config.values())) if policy._hf_peft_config_loaded else None
        frozen = bool(visual) and not any(p.requires_grad for p in visual)
        return cls(type(policy), policy.config, adapter, frozen, weights)

    def build(self) -> PreTrainedModel:
        """A frozen policy on these very weights."""
        policy: Any = self.kind(self.config)
        if (head_dtype := head_dtype_of(self.config)) is not None:
            set_head_dtype(policy, head_dtype)
        if self.adapter is not None:
            policy.add_adapter(self.adapter)
        policy.load_state_dict(self.weights, assign=True)
        policy.requires_grad_(False).eval()
        if self.vision_is_frozen:
            freeze_vision_tower(policy)
        return policy
