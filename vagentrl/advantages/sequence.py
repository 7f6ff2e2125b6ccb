"""Sampled tokens laid end to end, and GAE along them.

Every estimator is one linear recurrence over the sampled tokens of all trajectories at once: what
lies between two sampled tokens is dropped first, and a carry of 0 keeps trajectories apart.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class TokenSequence:
    """The ``M`` sampled tokens of ``(N, T)`` streams, row after row.

    Attributes:
        rewards: ``(M,)`` reward of each token, in double precision.
        values: ``(M,)`` value of the state before each token, in double precision; 0 without a
            critic.
        ends: ``(M,)`` True on the last token of a stream.
        after: One value per stream that has a token: what follows its last one.
        index: ``(M,)`` where each token lies in the flattened ``(N, T)``.
        shape: ``(N, T)``.
        dtype: What credit is given back in.
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
        values = torch.zeros_like(rewards) if values is None else values
        row, column = action_mask.nonzero(as_tuple=True)
        index = row * action_mask.shape[1] + column
        ends = _last_of_run(row)
        if bootstrap is None:
            bootstrap = values.new_zeros(len(values))
        return cls(
            rewards=_precise(rewards.flatten()[index]),
            values=_precise(values.flatten()[index]),
            ends=ends,
            after=_precise(bootstrap[row[ends]]),
            index=index,
            shape=action_mask.shape,
            dtype=torch.promote_types(rewards.dtype, values.dtype),
        )

    @property
    def stream_of(self) -> Int[Tensor, " M"]:
        """The stream that each token is from."""
        return self.index // self.shape[1]

    def turn_ends(self, turn_ids: Int[Tensor, "N T"]) -> Bool[Tensor, " M"]:
        """True on the last sampled token of each turn, ``e_k``."""
        return self.ends | _last_of_run(turn_ids.flatten()[self.index])

    def turns(self, turn_ends: Bool[Tensor, " M"]) -> tuple[Int[Tensor, " M"], Float[Tensor, " K"]]:
        """Each token's turn, counted through the whole batch, and all that each turn earned."""
        turn_of = turn_ends.cumsum(0) - turn_ends.long()
        earned = self.rewards.new_zeros(int(turn_ends.sum()))
        return turn_of, earned.index_add(0, turn_of, self.rewards)

    def credit(
        self, advantages: Float[Tensor, " M"]
    ) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """Advantages and returns back in ``(N, T)``, 0 where nothing was sampled."""
        return self.spread(advantages), self.spread(advantages + self.values)

    def spread(self, tokens: Float[Tensor, " M"]) -> Float[Tensor, "N T"]:
        """Back in ``(N, T)``, 0 where nothing was sampled."""
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

    ``ends`` marks the last element of each of the ``K`` segments, ``after`` is the value that
    follows it. The discounts belong to the step from an element to the one after it.
    """
    following = values.roll(-1)
    following[ends] = after
    carry = (torch.ones_like(values) * (gamma * lam)).masked_fill(ends, 0.0)
    return backward_recurrence(rewards + gamma * following - values, carry)


def returns_to_go(
    rewards: Float[Tensor, " M"], ends: Bool[Tensor, " M"], gamma: float
) -> Float[Tensor, " M"]:
    """What each element and those after it in its segment earn, discounted step by step."""
    return backward_recurrence(rewards, torch.full_like(rewards, gamma).masked_fill(ends, 0.0))


def backward_recurrence(
    inputs: Float[Tensor, " M"], carry: Float[Tensor, " M"]
) -> Float[Tensor, " M"]:
    """``y[t] = inputs[t] + carry[t] * y[t + 1]``, with 0 after the end.

    Neighbours are merged into one step and the half-length problem is solved first, so the work is
    linear and the depth logarithmic. There is no division: a carry of 0 is as good as any other.
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


def _precise(tensor: Tensor) -> Tensor:
    # Rounding a discount such as 0.9999 to float32 alone is an error of 1e-4 after 8192 tokens.
    return tensor if tensor.device.type == "mps" else tensor.double()  # mps has no float64
