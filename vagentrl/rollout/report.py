"""Metrics of played episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vagentrl.types import Trajectory

Z_95 = 1.959964


def success_interval(successes: float, episodes: float) -> tuple[float, float]:
    """95 % confidence interval of a success rate, from independent episodes.

    Wilson (1927), "Probable inference, the law of succession, and statistical inference": unlike
    the normal approximation the interval stays inside [0, 1] and does not collapse at rates of 0
    and 1.
    """
    if episodes == 0:
        return 0.0, 1.0
    rate, z2 = successes / episodes, Z_95**2
    centre = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    half = Z_95 * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes**2))
    half /= 1 + z2 / episodes
    # At rates 0 and 1 the interval ends exactly at 0 or 1; rounding must not move it beyond.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == episodes else min(1.0, centre + half)
    return low, high


def effective_episodes(outcomes: Sequence[Sequence[bool]]) -> float:
    """The effective sample size: how many independent episodes would tell as much.

    Episodes from the same initial state tend to end alike, so an interval that counts each of them
    as independent would be too narrow. The variance of the mean is estimated with standard errors
    clustered by state; the variance of a single episode divided by it is the effective sample size.
    Korn and Graubard (1998), "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", use it in an interval in this way.

    Args:
        outcomes: For each initial state, whether its episodes succeeded.

    Returns:
        At most the number of episodes, and exactly that number if no state repeats or there is only
        one state. If all episodes end alike, about the number of states.
    """
    sizes = [len(ends) for ends in outcomes]
    episodes = sum(sizes)
    if len(outcomes) == 1:
        return episodes
    rate = sum(map(sum, outcomes)) / episodes
    if rate in (0.0, 1.0):  # the variance cannot be estimated
        return episodes**2 / sum(size**2 for size in sizes)
    variance = sum((sum(ends) - rate * len(ends)) ** 2 for ends in outcomes) / episodes**2
    of_one = rate * (1 - rate)
    return float(episodes) if variance * episodes <= of_one else of_one / variance


def episode_report(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Metrics of episodes: means over episodes, and over turns for the environment's own metrics.

    Scores of claims are reported by the kind of claim: ``observation_score`` is the mean over
    judged claims, ``observation_right`` the share of judged claims with a score of 1.

    A failed episode counts only in ``episodes`` and in ``failed``, the share of failed episodes. An
    episode that continues in a later batch contributes only to means over turns; means over
    episodes count it as a whole in the batch in which it ends. The confidence interval of the
    success rate treats episodes with the same seed as dependent.

    Args:
        trajectories: The episodes.
        prefix: Put before each name, e.g. ``rollout/``.
    """
    played = [t for t in trajectories if t.error is None]
    report = {
        "failed": 1 - len(played) / len(trajectories) if trajectories else 0.0,
        "episodes": float(len(trajectories)),
    }
    if ended := [t for t in played if t.stop != "cut"]:
        rate = sum(t.success for t in ended) / len(ended)
        outcomes: defaultdict[tuple[str, int], list[bool]] = defaultdict(list)
        for trajectory in ended:
            outcomes[trajectory.environment, trajectory.seed].append(trajectory.success)
        count = effective_episodes(list(outcomes.values()))
        low, high = success_interval(rate * count, count)
        report |= {
            "success_rate": rate,
            "success_rate_low": low,
            "success_rate_high": high,
            "return": _mean([t.earlier_reward + t.total_reward for t in ended]),
            "turns": _mean([t.earlier_turns + len(t.turns) for t in ended]),
            "truncated": _mean([t.stop != "terminated" for t in ended]),
        }
    if turns := [turn for t in played for turn in t.turns]:
        report |= {
            "reply_tokens": _mean([len(turn.reply_ids) for turn in turns]),
            "unfinished_replies": _mean([turn.finish == "length" for turn in turns]),
            "malformed_replies": _mean([turn.reply.problem is not None for turn in turns]),
        }
        report |= turn_means([turn.metrics for turn in turns])
        for kind in sorted({kind for turn in turns for kind in turn.scores}):
            scores = [turn.scores[kind] for turn in turns if kind in turn.scores]
            report[f"{kind}_score"] = _mean(scores)
            report[f"{kind}_right"] = _mean([score == 1 for score in scores])
    return {prefix + name: value for name, value in report.items()}


def turn_means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the turns that have it; ``success`` is not one of turns."""
    names = sorted({name for each in metrics for name in each} - {"success"})
    return {name: _mean([float(each[name]) for each in metrics if name in each]) for name in names}


def staleness_report(trajectories: Sequence[Trajectory], policy_version: int) -> dict[str, float]:
    """By how many versions the weights that sampled the turns lag behind `policy_version`.

    ``rollout/staleness`` is the mean over turns, ``rollout/staleness_max`` the maximum.
    """
    ages = [policy_version - turn.policy_version for t in trajectories for turn in t.turns]
    return {
        "rollout/staleness": _mean(ages),
        "rollout/staleness_max": float(max(ages, default=0)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
