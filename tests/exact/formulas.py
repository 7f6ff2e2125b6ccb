"""The formulas of docs/algorithms.md, episode by episode, in plain Python.

Nothing here calls the project. GAE is written as a mixture of n-step returns (Sutton and Barto,
2018, eq. 12.3) and not as the backward recursion that the project runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from tests.exact.world import Path

Values = Sequence[float]  # the critic's value of each state, by its row
Group = Sequence[Path]
Mode = Literal["token_mean", "turn_mean", "trajectory_mean", "constant_length"]


class Credit(NamedTuple):
    """What each sampled token of an episode is worth.

    Attributes:
        advantages: Advantage of each token.
        returns: What the critic regresses to; None without a critic.
    """

    advantages: list[float]
    returns: list[float] | None = None


Estimate = Callable[[Sequence[Group], Values], list[list[Credit]]]  # credit of each group's members


# ------------------------------------------------------------------------------------ with a critic


def lambda_return(
    rewards: Sequence[float],
    following: Sequence[float],
    gammas: Sequence[float],
    lams: Sequence[float],
) -> float:
    """Mixture of the n-step returns of a sequence of moves.

    Args:
        rewards: Reward of each move.
        following: Value after each move.
        gammas: Discount of what follows each move.
        lams: Lambda of each move. The longest return gets all the weight that is left.
    """
    mixture, earned, weight, discount = 0.0, 0.0, 1.0, 1.0
    for n, (reward, value, gamma, lam) in enumerate(
        zip(rewards, following, gammas, lams, strict=True), start=1
    ):
        earned += discount * reward
        discount *= gamma
        n_step = earned + discount * value
        mixture += weight * (1.0 if n == len(rewards) else 1 - lam) * n_step
        weight *= lam
    return mixture


def token_gae(path: Path, values: Values, gammas: Sequence[float], lams: Sequence[float]) -> Credit:
    """GAE from token to token, with the discounts of each move."""
    following = [*(values[state] for state in path.states[1:]), _value_after(path, values)]
    returns = [
        lambda_return(path.rewards[t:], following[t:], gammas[t:], lams[t:])
        for t in range(len(path))
    ]
    return _credit(path, values, returns)


def masked_gae(path: Path, values: Values, *, gamma: float, lam: float) -> Credit:
    return token_gae(path, values, [gamma] * len(path), [lam] * len(path))


def dual_discount_gae(
    path: Path,
    values: Values,
    *,
    token_gamma: float,
    token_lam: float,
    step_gamma: float,
    step_lam: float,
) -> Credit:
    last = {tokens[-1] for tokens in _turns(path)}
    gammas = [step_gamma if t in last else token_gamma for t in range(len(path))]
    lams = [step_lam if t in last else token_lam for t in range(len(path))]
    return token_gae(path, values, gammas, lams)


def turn_gae(path: Path, values: Values, *, turn_gamma: float, turn_lam: float) -> Credit:
    turns = _turns(path)
    first = [tokens[0] for tokens in turns]
    rewards = [sum(path.rewards[t] for t in tokens) for tokens in turns]
    returns = _turn_returns(path, values, first, rewards, turn_gamma, turn_lam)
    advantages = [g - values[path.states[t]] for g, t in zip(returns, first, strict=True)]
    return Credit([advantages[k] for k in path.turns], [returns[k] for k in path.turns])


def bi_level_gae(
    path: Path, values: Values, *, gamma: float, lam: float, turn_gamma: float, turn_lam: float
) -> Credit:
    turns = _turns(path)
    last = [tokens[-1] for tokens in turns]
    rewards = [path.rewards[t] for t in last]
    turn_returns = _turn_returns(path, values, last, rewards, turn_gamma, turn_lam)
    returns = []
    for tokens, turn_return in zip(turns, turn_returns, strict=True):
        inside = [*(path.rewards[t] for t in tokens[:-1]), turn_return]
        following = [*(values[path.states[t]] for t in tokens[1:]), 0.0]
        for start in range(len(tokens)):
            left = len(tokens) - start
            returns.append(
                lambda_return(inside[start:], following[start:], [gamma] * left, [lam] * left)
            )
    return _credit(path, values, returns)


def _turn_returns(
    path: Path,
    values: Values,
    anchors: Sequence[int],
    rewards: Sequence[float],
    gamma: float,
    lam: float,
) -> list[float]:
    """Lambda-return of each turn, where a turn's value is read before the token at its anchor."""
    following = [*(values[path.states[t]] for t in anchors[1:]), _value_after(path, values)]
    count = len(anchors)
    return [
        lambda_return(rewards[k:], following[k:], [gamma] * (count - k), [lam] * (count - k))
        for k in range(count)
    ]


def _credit(path: Path, values: Values, returns: list[float]) -> Credit:
    return Credit([g - values[s] for g, s in zip(returns, path.states, strict=True)], returns)


def _value_after(path: Path, values: Values) -> float:
    """The value after the end, 0 if the episode terminated."""
    return 0.0 if path.after is None else values[path.after]


def _turns(path: Path) -> list[list[int]]:
    """The positions of each turn's tokens."""
    return [list(tokens) for _, tokens in groupby(range(len(path)), lambda t: path.turns[t])]


# --------------------------------------------------------------------------------- without a critic


def group_relative(group: Group, *, scale: str | None, baseline: str) -> list[Credit]:
    compared = _compare([sum(path.rewards) for path in group], scale, baseline)
    return [Credit([one] * len(path)) for one, path in zip(compared, group, strict=True)]


def gigpo(group: Group, *, turn_gamma: float, step_coef: float, scale: str | None) -> list[Credit]:
    episodes = _compare([sum(path.rewards) for path in group], scale)
    to_go = [_returns_to_go(path, turn_gamma) for path in group]
    observed = {
        (i, k): observation
        for i, path in enumerate(group)
        for k, observation in zip(path.turns, path.observations, strict=True)
    }
    steps: dict[tuple[int, int], float] = {}
    for observation in set(observed.values()):
        alike = [turn for turn in observed if observed[turn] == observation]
        compared = _compare([to_go[i][k] for i, k in alike], scale)
        steps |= dict(zip(alike, compared, strict=True))
    return [
        Credit([episodes[i] + step_coef * steps[i, k] for k in path.turns])
        for i, path in enumerate(group)
    ]


def turn_group_relative(group: Group, *, turn_gamma: float) -> list[Credit]:
    to_go = [_returns_to_go(path, turn_gamma) for path in group]

    def advantage(member: int, k: int) -> float:
        others = [each[k] for i, each in enumerate(to_go) if i != member and k < len(each)]
        return to_go[member][k] - (fmean(others) if others else 0.0)

    return [Credit([advantage(i, k) for k in path.turns]) for i, path in enumerate(group)]


def vine_turn(group: Group, *, turn_gamma: float, turn_lam: float) -> list[Credit]:
    starts = [_returns_to_go(path, turn_gamma)[0] for path in group]

    def credit(member: int, path: Path) -> Credit:
        rewards = [sum(path.rewards[t] for t in tokens) for tokens in _turns(path)]
        others = [start for i, start in enumerate(starts) if i != member]
        values = dict(enumerate((fmean(others), *path.continued[1:])))
        values = {turn: value for turn, value in values.items() if value is not None}
        segments = list(pairwise([*values, len(rewards)]))
        earned = [_discounted_sum(rewards[c:d], turn_gamma) for c, d in segments]
        gammas = [turn_gamma ** (d - c) for c, d in segments]
        following = [*values.values(), 0.0][1:]
        advantages: dict[int, float] = {}
        for i, (c, d) in enumerate(segments):
            lams = [turn_lam] * (len(segments) - i)
            target = lambda_return(earned[i:], following[i:], gammas[i:], lams)
            advantages |= dict.fromkeys(range(c, d), target - values[c])
        return Credit([advantages[k] for k in path.turns])

    return [credit(member, path) for member, path in enumerate(group)]


def reinforce_plus_plus(
    groups: Sequence[Group], *, gamma: float, baseline: bool
) -> list[list[Credit]]:
    def advantages(path: Path, mean: float) -> list[float]:
        rewards = [*path.rewards[:-1], path.rewards[-1] - mean]
        return [_discounted_sum(rewards[t:], gamma) for t in range(len(rewards))]

    means = [fmean(sum(path.rewards) for path in group) if baseline else 0.0 for group in groups]
    credits = [
        [Credit(advantages(path, mean)) for path in group]
        for group, mean in zip(groups, means, strict=True)
    ]
    return whiten(credits)


def whiten(credits: list[list[Credit]]) -> list[list[Credit]]:
    """Advantages with mean 0 and variance 1 over all tokens of the batch."""
    tokens = [one for group in credits for credit in group for one in credit.advantages]
    if len(tokens) < 2:
        return [[Credit([0.0], credit.returns) for credit in group] for group in credits]
    mean, deviation = fmean(tokens), (stdev(tokens) ** 2 + 1e-8) ** 0.5
    return [
        [
            Credit([(one - mean) / deviation for one in credit.advantages], credit.returns)
            for credit in group
        ]
        for group in credits
    ]


def _compare(returns: Sequence[float], scale: str | None, baseline: str = "mean") -> list[float]:
    """Each return against the others that it is grouped with."""
    if len(returns) == 1:
        return [0.0]
    if baseline == "mean":
        centred = [one - fmean(returns) for one in returns]
    else:
        total, others = sum(returns), len(returns) - 1
        centred = [one - (total - one) / others for one in returns]
    return [one / (stdev(returns) + 1e-6) if scale == "std" else one for one in centred]


def _returns_to_go(path: Path, gamma: float) -> list[float]:
    """Discounted return from each turn on."""
    rewards = [sum(path.rewards[t] for t in tokens) for tokens in _turns(path)]
    return [_discounted_sum(rewards[k:], gamma) for k in range(len(rewards))]


def _discounted_sum(rewards: Sequence[float], gamma: float) -> float:
    return sum(gamma**n * reward for n, reward in enumerate(rewards))


# ------------------------------------------------------------------------------------- aggregation


def weights(path: Path, batch: Sequence[Path], mode: Mode, constant_length: int) -> list[float]:
    """Weight of each token of an episode in the loss of its batch."""
    if mode == "token_mean":
        return [1 / sum(len(each) for each in batch)] * len(path)
    if mode == "turn_mean":
        turns = sum(len(_turns(each)) for each in batch)
        return [1 / (turns * path.turns.count(turn)) for turn in path.turns]
    length = len(path) if mode == "trajectory_mean" else constant_length
    return [1 / (len(batch) * length)] * len(path)
