"""The root module with tables in place of networks: every probability and value can be computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.exact.world import VOCABULARY, A, B, state_rows
from tests.loop_free import LoopFreeAgent, attach
from vagentrl.advantages import AdvantageEstimator
from vagentrl.modules.agent import AgentModule
from vagentrl.modules.callback import AgentCallback
from vagentrl.types import Credit, RolloutBatch, Scores

TEMPERATURE = 0.8
BANNED = frozenset(range(VOCABULARY)) - {A, B}
HIDDEN_SIZE = 5


class Table(nn.Module):
    """A causal backbone whose hidden state after a prefix is the prefix's own row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(len(state_rows()) + 1, HIDDEN_SIZE)
        nn.init.normal_(self.rows.weight, std=0.6)

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        index = [
            [state_rows().get(tuple(ids[: length + 1]), 0) for length in range(len(ids))]
            for ids in input_ids.tolist()
        ]
        return SimpleNamespace(last_hidden_state=self.rows(torch.tensor(index)))


class TablePolicy(nn.Module):
    """The part of a Hugging Face model that the trainer uses."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = Table()
        self.head = nn.Linear(HIDDEN_SIZE, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=0.6)
        text_config = SimpleNamespace(hidden_size=HIDDEN_SIZE)
        self.config = SimpleNamespace(get_text_config=lambda: text_config)

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    def get_output_embeddings(self) -> nn.Linear:
        return self.head


def logprob_table(policy: Any) -> Tensor:
    """Log-probs of A and B in every state ``(states, 2)``: a softmax over these two alone."""
    hidden, head = policy.base_model.rows.weight, policy.head.weight
    return (hidden @ head[[A, B]].T / TEMPERATURE).log_softmax(-1)


class TableAgent(AgentModule):
    """The project's root module with table models, in float64.

    Only `load_model` is replaced, and the float32 rewards of `collate` are widened.
    """

    def build(self, banned_ids: frozenset[int] = BANNED, *, meta: bool = False) -> None:
        torch.manual_seed(0)
        with mock.patch("vagentrl.modules.agent.load_model", lambda *_, **__: TablePolicy()):
            super().build(BANNED)
        if self.critic is None:
            return
        torch.manual_seed(1)  # the same critic with and without a reference
        value_head = self.critic.value_head
        nn.init.normal_(value_head.weight)
        nn.init.normal_(value_head.bias)
        # The policy's head ignores the direction that the value head reads, so `set_values` changes
        # no probability, even where actor and critic share a table.
        head: Any = self.actor.policy.get_output_embeddings()
        direction = value_head.weight.data[0] / value_head.weight.data[0].norm()
        head.weight.data -= (head.weight.data @ direction)[:, None] * direction

    def assess(
        self, rollout: RolloutBatch, earlier: Scores | None = None
    ) -> tuple[RolloutBatch, Scores, Credit]:
        wide = {name: getattr(rollout, name).double() for name in ("rewards", "rollout_logprobs")}
        return super().assess(replace(rollout, **wide), earlier)

    def logprob_table(self) -> Tensor:
        """The actor's log-probs of A and B in every state, ``(states, 2)``."""
        return logprob_table(self.actor.policy)

    def value_table(self) -> Tensor:
        """The critic's value of every state ``(states,)``; zeros without a critic."""
        if self.critic is None:
            return torch.zeros(len(state_rows()) + 1)
        value_head = self.critic.value_head
        return self._critic_rows() @ value_head.weight[0] + value_head.bias

    def set_values(self, values: Mapping[int, float]) -> None:
        """Change the critic's table so that these states have these values."""
        assert self.critic is not None
        rows, weight = self._critic_rows().data, self.critic.value_head.weight.data[0]
        for row, value in values.items():
            error = value - self.value_table()[row].detach()
            rows[row] += error * weight / (weight @ weight)

    def _critic_rows(self) -> Tensor:
        assert self.critic is not None
        backbone: Any = self.critic.backbone or self.actor.policy.base_model
        return backbone.rows.weight


class LoopFreeTableAgent(TableAgent, LoopFreeAgent):
    """A `TableAgent` whose training steps are called one by one."""


def make_agent(
    advantage: AdvantageEstimator, *callbacks: AgentCallback, **settings: Any
) -> LoopFreeTableAgent:
    """A module that is ready to learn, always with the same weights."""
    agent = attach(LoopFreeTableAgent("exact", advantage, **settings), *callbacks)
    agent.build()
    return agent


@contextmanager
def in_float64() -> Iterator[None]:
    """Make new tensors and weights in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
