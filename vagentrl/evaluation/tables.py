"""Tables of an evaluation, as Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean

from vagentrl.errors import ConfigError
from vagentrl.evaluation.ledger import PlayedEpisode
from vagentrl.evaluation.statistics import paired_difference, pass_at_k
from vagentrl.rollout.report import effective_episodes, success_interval

Cells = dict[tuple[str, str], list[PlayedEpisode]]


def by_cell(episodes: Iterable[PlayedEpisode]) -> Cells:
    """The episodes of each policy in each environment."""
    cells: Cells = defaultdict(list)
    for episode in episodes:
        cells[episode.policy, episode.environment].append(episode)
    return dict(cells)


def success_table(cells: Cells, policies: Sequence[str], environments: Sequence[str]) -> str:
    """The success rate of each policy in each environment, with its 95 % interval.

    Episodes of a seed are not independent, which the interval takes into account.
    """
    lines = [_line(["policy", *environments]), _line(["---"] * (len(environments) + 1))]
    for policy in policies:
        rates = [_rate(cells.get((policy, environment), [])) for environment in environments]
        lines.append(_line([policy, *rates]))
    return "\n".join(lines)


def detail_table(cells: Cells, samples: int) -> str:
    """A line for each policy and environment: pass@k, return, turns, tokens and cost."""
    ks = [k for k in _powers(samples) if k > 1]
    head = ["policy", "environment", "episodes", *(f"pass@{k}" for k in ks)]
    lines = [_line([*head, "return", "turns", "tokens", "cost"])]
    lines.append(_line(["---"] * 2 + ["--:"] * (len(head) + 2)))
    for (policy, environment), episodes in cells.items():
        counts = [(sum(ends), len(ends)) for ends in _by_seed(episodes).values()]
        fewest = min(count for _, count in counts)
        found = [f"{pass_at_k(counts, k):.3f}" if k <= fewest else "–" for k in ks]
        means = [
            fmean(episode.total_reward for episode in episodes),
            fmean(episode.turns for episode in episodes),
            fmean(episode.reply_tokens for episode in episodes),
        ]
        cost = sum(episode.cost for episode in episodes)
        cells_of_line = [policy, environment, str(len(episodes)), *found]
        cells_of_line += [f"{means[0]:.3f}", f"{means[1]:.1f}", f"{means[2]:.0f}"]
        lines.append(_line([*cells_of_line, f"{cost:.4g}" if cost else "–"]))
    return "\n".join(lines)


def comparison_table(
    cells: Cells, policies: Sequence[str], environments: Sequence[str], against: str
) -> str:
    """The difference of each policy's success rate to another's, on the seeds that both played.

    Raises:
        ConfigError: When there is no policy of that name.
    """
    if against not in policies:
        raise ConfigError(f"compare is {against!r}; the policies are {', '.join(policies)}")
    lines = [
        _line(
            ["policy", "environment", f"success minus {against}'s", "95 % interval", "p", "seeds"]
        ),
        _line(["---", "---", "--:", "--:", "--:", "--:"]),
    ]
    for policy in policies:
        for environment in environments if policy != against else ():
            one = _by_seed(cells.get((policy, environment), []))
            other = _by_seed(cells.get((against, environment), []))
            shared = sorted(set(one) & set(other))
            if not shared:
                continue
            found = paired_difference([fmean(one[seed]) - fmean(other[seed]) for seed in shared])
            interval = f"{found.low:+.3f} to {found.high:+.3f}"
            row = [policy, environment, f"{found.mean:+.3f}", interval, f"{found.p:.4f}"]
            lines.append(_line([*row, str(found.seeds)]))
    return "\n".join(lines)


def _rate(episodes: Sequence[PlayedEpisode]) -> str:
    if not episodes:
        return "–"
    outcomes = list(_by_seed(episodes).values())
    rate, count = fmean(episode.success for episode in episodes), effective_episodes(outcomes)
    low, high = success_interval(rate * count, count)
    return f"{rate:.3f} ({low:.3f} to {high:.3f})"


def _by_seed(episodes: Sequence[PlayedEpisode]) -> dict[int, list[bool]]:
    """Whether the episodes of each seed succeeded."""
    ordered = sorted(episodes, key=lambda episode: episode.seed)
    return {
        seed: [episode.success for episode in group]
        for seed, group in groupby(ordered, key=lambda episode: episode.seed)
    }


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4, … and the largest number itself."""
    k = 1
    while k < most:
        yield k
        k *= 2
    yield most


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
