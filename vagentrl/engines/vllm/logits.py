"""Logits processors that make vLLM report log-probs as the trainer computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor  # pyright: ignore

from vagentrl.engines.vllm.settings import BANNED_IDS

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore


class _Stateless(LogitsProcessor):
    """A processor that treats all rows of a batch alike."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass


class BanTokens(_Stateless):
    """Bans tokens and renormalises the rest, which greedy rows need to report log-probs."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        settings: Any = vllm_config.additional_config
        banned = settings[BANNED_IDS]
        self._banned = torch.tensor(banned, dtype=torch.long, device=device)

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, logits: Tensor) -> Tensor:
        return logits.index_fill_(1, self._banned, -torch.inf).log_softmax(-1)


class Normalise(_Stateless):
    """Normalises the logits after temperature and before top-k and top-p.

    vLLM is set to report the logits that it sampled from (``processed_logits``). Normalised here,
    they are log-probs of the distribution after temperature, with or without top-k and top-p, as
    the trainer computes them. ``processed_logprobs`` would be normalised after top-k and top-p,
    and ``raw_logprobs`` would ignore the temperature.
    """

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)
