"""How alike the replies of an iteration are, and how much thinking there is in them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from vagentrl.types import Reply, Trajectory

MOST_WORDS = 512
"""Words of a reply that are read, so that the statistics of endless replies stay cheap."""
OPENING_WORDS = 3
REPEATED_WORDS = 3
"""Length of the n-grams whose repetition is counted."""

_WORD = re.compile(r"\w+|[^\w\s]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """A reply as the statistics read it.

    Attributes:
        group: The group of its episode: replies of different groups answer different prompts.
        text: The thought if there is one; otherwise the actions or, in a malformed reply, all of
            it. The tags of a format are left out, because they are the same in every reply.
        words: The words and punctuation marks of the text, at most `MOST_WORDS`.
    """

    group: int
    text: str
    words: Words

    @classmethod
    def of(cls, reply: Reply, group: int) -> Said:
        """Read a parsed reply.

        Args:
            reply: The reply.
            group: The group of its episode.
        """
        text = reply.thought or ", ".join(reply.actions) or reply.text
        found = (match.group() for match in _WORD.finditer(text))
        words = tuple(word for word, _ in zip(found, range(MOST_WORDS), strict=False))
        return cls(group, text, words)


def sample_replies(trajectories: Sequence[Trajectory], most: int, seed: int) -> list[Said]:
    """Replies of these episodes, drawn without replacement.

    Args:
        trajectories: The episodes.
        most: How many replies to draw at most.
        seed: Decides which ones.
    """
    replies = [(turn.reply, each.group_id) for each in trajectories for turn in each.turns]
    if len(replies) > most:
        replies = Random(seed).sample(replies, most)
    return [Said.of(reply, group) for reply, group in replies]


def reply_report(said: Sequence[Said], pairs: int, seed: int) -> dict[str, float]:
    """Metrics of how alike replies are, without those that these replies leave undefined.

    Args:
        said: The replies.
        pairs: How many pairs of replies to compare.
        seed: Decides which ones.
    """
    words = [each.words for each in said]
    report = {f"distinct_{n}": distinct_share(words, n) for n in (1, 2, 3)} | {
        "opening_share": most_frequent_share(each[:OPENING_WORDS] for each in words),
        "template_share": most_frequent_share(template(each.text) for each in said),
        "repeated_within": repeated_within(words, REPEATED_WORDS),
        "repeated_across": repeated_across(said, REPEATED_WORDS),
        "similarity": mean_similarity(said, pairs, seed),
    }
    return {name: value for name, value in report.items() if not math.isnan(value)}


def thought_report(replies: Iterable[Reply]) -> dict[str, float]:
    """Metrics of the thoughts in well-formed replies; empty if the format has no thoughts."""
    thoughts = [reply.thought for reply in replies if reply.problem is None]
    if not thoughts or all(thought is None for thought in thoughts):
        return {}
    return {
        "thought_words": _mean([len((thought or "").split()) for thought in thoughts]),
        "without_thought": _mean([not (thought or "").strip() for thought in thoughts]),
    }


def ngrams(words: Words, n: int) -> Iterator[Words]:
    """The runs of n words, in order; none if there are fewer words."""
    return (words[start : start + n] for start in range(len(words) - n + 1))


def distinct_share(replies: Sequence[Words], n: int) -> float:
    """Distinct-n: different n-grams as a share of all (Li et al. 2016, arXiv 1510.03055).

    It depends on the number of words, so only samples of similar size compare. NaN without
    n-grams.
    """
    counts = Counter(gram for words in replies for gram in ngrams(words, n))
    return len(counts) / counts.total() if counts else math.nan


def most_frequent_share(items: Iterable[Hashable]) -> float:
    """The share of the most frequent item; NaN without items."""
    counts = Counter(items)
    return max(counts.values()) / counts.total() if counts else math.nan


def template(text: str) -> str:
    """The text in lower case with single spaces, and with every number replaced by ``#``."""
    return _NUMBER.sub("#", " ".join(text.casefold().split()))


def repeated_within(replies: Sequence[Words], n: int) -> float:
    """The share of n-grams that occurred earlier in the same reply, as a mean over replies.

    Replies of fewer than n words do not count; NaN without others.
    """
    shares = [1 - distinct_share([words], n) for words in replies if len(words) >= n]
    return _mean(shares)


def repeated_across(said: Sequence[Said], n: int) -> float:
    """The share of n-grams that occur in the replies to more than one prompt.

    NaN without n-grams, or with replies to one prompt only.
    """
    if len({each.group for each in said}) < 2:
        return math.nan
    groups: dict[Words, set[int]] = {}
    grams = [(gram, each.group) for each in said for gram in ngrams(each.words, n)]
    for gram, group in grams:
        groups.setdefault(gram, set()).add(group)
    return _mean([len(groups[gram]) > 1 for gram, _ in grams])


def mean_similarity(said: Sequence[Said], pairs: int, seed: int) -> float:
    """The mean Jaccard similarity of replies to different prompts.

    Two replies are compared by their sets of words and of pairs of neighbouring words: the size of
    the intersection as a share of the size of the union. Two empty replies are equal.

    Args:
        said: The replies.
        pairs: How many random pairs to draw; those within one group do not count.
        seed: Decides which ones.

    Returns:
        From 0 to 1; NaN without a pair of replies to different prompts.
    """
    if len({each.group for each in said}) < 2:
        return math.nan
    grams = [{*ngrams(each.words, 1), *ngrams(each.words, 2)} for each in said]
    draw = Random(seed)
    drawn = [(draw.randrange(len(said)), draw.randrange(len(said))) for _ in range(pairs)]
    return _mean([_jaccard(grams[a], grams[b]) for a, b in drawn if said[a].group != said[b].group])


def _jaccard(one: set[Words], other: set[Words]) -> float:
    union = len(one | other)
    return len(one & other) / union if union else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
