"""Logits processors that make vLLM report the log-probs the trainer works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor  # pyright: ignore

from vagentrl.engines.vllm.settings import BANNED_IDS

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore


class _Stateless(LogitsProcessor):
    """Does the same to every row."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass


class BanTokens(_Stateless):
    """Bans tokens; what is left is normalised, for rows that are decoded greedily."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        settings: Any = vllm_config.additional_config
        banned = settings[BANNED_IDS]
        self._banned = torch.tensor(banned, dtype=torch.long, device=device)

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, logits: Tensor) -> Tensor:
        return logits.index_fill_(1, self._banned, -torch.inf).log_softmax(-1)


class Normalise(_Stateless):
    """Normalises after the temperature and before top-k and top-p.

    vLLM is asked for the logits that it sampled from (``processed_logits``): these are then
    log-probs of the tempered distribution, also where top-k or top-p cut it, which is what the
    trainer computes. ``processed_logprobs`` would be those of what was left after the cut, and
    ``raw_logprobs`` would know nothing of the temperature.
    """

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)
