"""The sampled tokens of all trajectories laid end to end, and recurrences along them.

Every estimator is a linear recurrence over sampled tokens or turns. What lies between two sampled
tokens is dropped first, so one recurrence serves all trajectories: a carry of 0 keeps them apart.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vagentrl.advantages.precision import precise, rounding


@dataclass(frozen=True)
class TokenSequence:
    """The ``M`` sampled tokens of ``(N, T)`` streams, stream after stream.

    Attributes:
        rewards: ``(M,)`` reward of each token, in float64.
        values: ``(M,)`` value of the state before each token, in float64; 0 without a critic.
        ends: ``(M,)`` True on the last token of a stream.
        after: ``(K,)`` value after the last token of each stream that has a token.
        index: ``(M,)`` position of each token in the flattened ``(N, T)``.
        shape: ``(N, T)``.
        dtype: Type of the inputs, and so of the credit that is returned.
    """

    rewards: Float[Tensor, " M"]
    values: Float[Tensor, " M"]
    ends: Bool[Tensor, " M"]
    after: Float[Tensor, " K"]
    index: Int[Tensor, " M"]
    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        rewards: Float[Tensor, "N T"],
        values: Float[Tensor, "N T"] | None,
        action_mask: Bool[Tensor, "N T"],
        bootstrap: Float[Tensor, " N"] | None = None,
    ) -> "TokenSequence":
        """The tokens under the action mask; no ``values`` and no ``bootstrap`` mean 0."""
        values = torch.zeros_like(rewards) if values is None else values
        row, column = action_mask.nonzero(as_tuple=True)
        index = row * action_mask.shape[1] + column
        ends = _last_of_run(row)
        if bootstrap is None:
            bootstrap = values.new_zeros(len(values))
        return cls(
            rewards=precise(rewards.flatten()[index]),
            values=precise(values.flatten()[index]),
            ends=ends,
            after=precise(bootstrap[row[ends]]),
            index=index,
            shape=action_mask.shape,
            dtype=torch.promote_types(rewards.dtype, values.dtype),
        )

    @property
    def stream_of(self) -> Int[Tensor, " M"]:
        """The stream of each token, from 0 to N - 1."""
        return self.index // self.shape[1]

    def turn_ends(self, turn_ids: Int[Tensor, "N T"]) -> Bool[Tensor, " M"]:
        """True on the last sampled token of each turn, ``e_k``."""
        return self.ends | _last_of_run(turn_ids.flatten()[self.index])

    def turns(self, turn_ends: Bool[Tensor, " M"]) -> tuple[Int[Tensor, " M"], Float[Tensor, " K"]]:
        """The turn of each token, counted through the whole batch, and each turn's reward."""
        turn_of = turn_ends.cumsum(0) - turn_ends.long()
        rewards_K = self.rewards.new_zeros(int(turn_ends.sum()))
        return turn_of, rewards_K.index_add(0, turn_of, self.rewards)

    def turn_returns(
        self, turn_ends: Bool[Tensor, " M"], gamma: float
    ) -> tuple[Int[Tensor, " M"], Float[Tensor, " K"], Float[Tensor, " K"]]:
        """The turn of each token, each turn's discounted return-to-go, and the noise of that.

        The noise is the difference that rounding of the rewards alone may cause; see
        `group_relative`.
        """
        turn_of, rewards_K = self.turns(turn_ends)
        ends_K = self.ends[turn_ends]
        noise_K = rounding(self.dtype) * returns_to_go(rewards_K.abs(), ends_K, gamma)
        return turn_of, returns_to_go(rewards_K, ends_K, gamma), noise_K

    def stream_returns(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """The undiscounted return of each stream, and the noise of that."""
        zeros, stream_of = self.rewards.new_zeros(self.shape[0]), self.stream_of
        noise_N = rounding(self.dtype) * zeros.index_add(0, stream_of, self.rewards.abs())
        return zeros.index_add(0, stream_of, self.rewards), noise_N

    def credit(
        self, advantages: Float[Tensor, " M"]
    ) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """Advantages, and as returns advantages + values, laid out by `spread`."""
        return self.spread(advantages), self.spread(advantages + self.values)

    def spread(self, tokens: Float[Tensor, " M"]) -> Float[Tensor, "N T"]:
        """Each token back in its place of ``(N, T)``, 0 where nothing was sampled."""
        spread = tokens.new_zeros(self.shape.numel(), dtype=self.dtype)
        spread[self.index] = tokens.to(self.dtype)
        return spread.view(self.shape)


def gae(
    rewards: Float[Tensor, " M"],
    values: Float[Tensor, " M"],
    ends: Bool[Tensor, " M"],
    after: Float[Tensor, " K"] | float,
    gamma: Float[Tensor, " M"] | float,
    lam: Float[Tensor, " M"] | float,
) -> Float[Tensor, " M"]:
    """GAE (arXiv 1506.02438, eq. 16) along segments laid end to end.

    Args:
        rewards: Reward of each element, which may be a token or a turn.
        values: Value of the state before each element.
        ends: True on the last element of each of the ``K`` segments.
        after: Value after the end of each segment.
        gamma: Discount for the step from an element to the one after it.
        lam: GAE's lambda for the same step.
    """
    following = values.roll(-1)
    following[ends] = after
    carry = (torch.ones_like(values) * (gamma * lam)).masked_fill(ends, 0.0)
    return backward_recurrence(rewards + gamma * following - values, carry)


def returns_to_go(
    rewards: Float[Tensor, " M"], ends: Bool[Tensor, " M"], gamma: float
) -> Float[Tensor, " M"]:
    """Discounted sum of the rewards from each element to the end of its segment."""
    return backward_recurrence(rewards, torch.full_like(rewards, gamma).masked_fill(ends, 0.0))


def backward_recurrence(
    inputs: Float[Tensor, " M"], carry: Float[Tensor, " M"]
) -> Float[Tensor, " M"]:
    """``y[t] = inputs[t] + carry[t] * y[t + 1]``, with 0 after the end.

    Neighbours are merged into one step and the problem of half the length is solved first, so the
    work is linear and the depth logarithmic. Nothing is divided, so a carry of 0 needs no care.
    """
    length = len(inputs)
    if length < 2:
        return inputs.clone()
    if length % 2:
        inputs, carry = F.pad(inputs, (0, 1)), F.pad(carry, (0, 1))
    left, right = inputs.view(-1, 2).unbind(1)
    left_carry, right_carry = carry.view(-1, 2).unbind(1)
    lefts = backward_recurrence(left + left_carry * right, left_carry * right_carry)
    rights = right + right_carry * F.pad(lefts[1:], (0, 1))
    return torch.stack((lefts, rights), dim=1).flatten()[:length]


def _last_of_run(ids: Int[Tensor, " M"]) -> Bool[Tensor, " M"]:
    """True where the next id differs, and on the last one."""
    last = torch.ones_like(ids, dtype=torch.bool)
    last[:-1] = ids[1:] != ids[:-1]
    return last
