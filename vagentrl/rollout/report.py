"""Numbers about played episodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from vagentrl.types import Trajectory

Z_95 = 1.959964


def success_interval(successes: float, episodes: float) -> tuple[float, float]:
    """95 % confidence interval of a success rate, from independent episodes.

    Wilson (1927), "Probable inference, the law of succession, and statistical inference": unlike
    the normal approximation it stays inside [0, 1] and is sound at 0 and 1.
    """
    if episodes == 0:
        return 0.0, 1.0
    rate, z2 = successes / episodes, Z_95**2
    centre = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    half = Z_95 * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes**2))
    half /= 1 + z2 / episodes
    # at the edges the interval ends exactly there; keep rounding from passing it
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == episodes else min(1.0, centre + half)
    return low, high


def effective_episodes(outcomes: Sequence[Sequence[bool]]) -> float:
    """How many independent episodes would tell as much about the success rate.

    Episodes from the same initial state tend to end alike, and an interval that counts each of them
    would be too narrow. The variance of the mean over episodes is estimated from the totals of the
    states (clustered standard errors); the variance of one episode divided by it is the effective
    sample size, as Korn and Graubard (1998), "Confidence intervals for proportions with small
    expected number of positive counts estimated from survey data", put it into an interval.

    Args:
        outcomes: For each initial state, whether its episodes succeeded.

    Returns:
        At most the number of episodes: exactly that where no state repeats, or where there is only
        one. Where all episodes end alike, about the number of states.
    """
    sizes = [len(ends) for ends in outcomes]
    episodes = sum(sizes)
    if len(outcomes) == 1:
        return episodes
    rate = sum(map(sum, outcomes)) / episodes
    if rate in (0.0, 1.0):  # no variance to estimate from
        return episodes**2 / sum(size**2 for size in sizes)
    variance = sum((sum(ends) - rate * len(ends)) ** 2 for ends in outcomes) / episodes**2
    of_one = rate * (1 - rate)
    return float(episodes) if variance * episodes <= of_one else of_one / variance


def episode_report(trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Means over episodes, and over turns for the environment's own metrics.

    Scores of claims are reported under the kind of the claim: ``observation_score`` is the mean
    over claims that were judged, ``observation_right`` the share of those that were all right.

    Failed episodes count only in ``episodes`` and in ``failed``, their share of them. Of an episode
    that goes on in a later batch, only the turns count; when it ends, it counts as a whole. The
    interval of the success rate takes episodes of one seed for dependent.

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
        outcomes: defaultdict[int, list[bool]] = defaultdict(list)
        for trajectory in ended:
            outcomes[trajectory.seed].append(trajectory.success)
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
        for name in sorted({name for turn in turns for name in turn.metrics} - {"success"}):
            report[name] = _mean([turn.metrics[name] for turn in turns if name in turn.metrics])
        for kind in sorted({kind for turn in turns for kind in turn.scores}):
            scores = [turn.scores[kind] for turn in turns if kind in turn.scores]
            report[f"{kind}_score"] = _mean(scores)
            report[f"{kind}_right"] = _mean([score == 1 for score in scores])
    return {prefix + name: value for name, value in report.items()}


def staleness_report(trajectories: Sequence[Trajectory], policy_version: int) -> dict[str, float]:
    """How many versions older than `policy_version` the weights were that sampled the turns.

    ``rollout/staleness`` is the mean over turns, ``rollout/staleness_max`` the greatest.
    """
    ages = [policy_version - turn.policy_version for t in trajectories for turn in t.turns]
    return {
        "rollout/staleness": _mean(ages),
        "rollout/staleness_max": float(max(ages, default=0)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
