"""What predictions are worth without any truth: the agent's own words decide about them.

The prediction of one turn is compared with what the agent says it sees in the next. Two numbers
keep this from being gamed:

- *Skill.* A prediction is paid for what it knows beyond repeating the observation before it, as in
  `vagentrl.claims.payment`. A text that never changes shows none.
- *Trust.* The later observation counts as far as other episodes confirm it: as far as it agrees
  with what others say who are shown the same, more than with what others say who are shown
  something else at the same turn and after the same actions. The environment shows the same or
  not; nobody has to know what it means. So words that are invented and repeated earn nothing, as
  nobody else uses them for it, nor do the number of the turn and the last action, which need no
  look at the state. Where nobody else is shown the same, nothing is paid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from vagentrl.claims.payment import skill

MOST = 8
"""Number of other episodes that an observation is compared with, of each of the two kinds."""

Agreement = Callable[[str, str], Awaitable[float]]
"""How well a text agrees with another one, from 0 to 1."""


@dataclass(frozen=True)
class Said:
    """What the agent was shown and said in one turn.

    Attributes:
        episode: Number of the episode; unique within the batch.
        number: Number of the turn.
        shown: A key of what the environment showed, the same for the same text and images.
        acted: The actions of the turn before; empty in the first.
        observation: The claim about the state before the actions; None without one.
        prediction: The claim about the state after them; None without one.
    """

    episode: int
    number: int
    shown: str
    acted: tuple[str, ...]
    observation: str | None
    prediction: str | None


async def prediction_values(turns: Sequence[Said], agreement: Agreement) -> list[float | None]:
    """What the prediction of each turn is worth, from 0 to 1; None where it cannot be known.

    Args:
        turns: The turns of a batch, those of an episode one after the other.
        agreement: Compares two texts.
    """
    same: defaultdict[str, list[Said]] = defaultdict(list)
    alike: defaultdict[tuple[int, tuple[str, ...]], list[Said]] = defaultdict(list)
    for turn in turns:
        if turn.observation is not None:
            same[turn.shown].append(turn)
            alike[turn.number, turn.acted].append(turn)

    async def value(turn: Said, after: Said | None) -> float | None:
        if turn.prediction is None:
            return None
        if after is None or after.episode != turn.episode or after.observation is None:
            return None
        others = (other for other in alike[after.number, after.acted] if other.shown != after.shown)
        trust = await _trust(after, same[after.shown], others, agreement)
        if trust is None:
            return None
        hit = await agreement(turn.prediction, after.observation)
        repeated = turn.observation or ""
        return trust * skill(hit, await agreement(repeated, after.observation))

    following = zip_longest(turns, turns[1:])
    return [await value(turn, after) for turn, after in following]


async def _trust(
    turn: Said, same: Iterable[Said], others: Iterable[Said], agreement: Agreement
) -> float | None:
    """How much more an observation agrees with those of the same than with those of another."""
    means = []
    for group in (same, others):
        texts = [each.observation for each in group if each.episode != turn.episode][:MOST]
        found = [await agreement(turn.observation or "", text or "") for text in texts]
        if not found:
            return None
        means.append(sum(found) / len(found))
    return max(0.0, means[0] - means[1])
