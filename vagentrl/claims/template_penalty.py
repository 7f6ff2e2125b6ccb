"""A penalty for descriptions that are repeated regardless of the state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from vagentrl.claims.judgement import Judgement
from vagentrl.claims.reading import grid_rows, words
from vagentrl.errors import ConfigError
from vagentrl.types import Claim, Representation

LEAST = 5
"""Number of verdicts or of states that a decision about a template needs."""
RARE = 0.01
"""Share of the window's claims below which a word is rare."""
ALIKE = 0.8
"""Share of their words that two texts of one template have in common."""
FEW_STATES = 0.25
"""Probability that any two claims are about the same state, above which scores decide instead."""
INFORMATIVE = 0.04
"""How much more probable than for any two claims it is that two with the same words are about the
same state, if their author looks at the state. Three right claims in ten give about 0.09."""
LEADERS = 64
"""Number of templates that texts are compared with."""

Bag = frozenset[str]
Entry = tuple[Bag, Bag, bytes, float | None, float | None]
"""A claim's words, those that its own truth has too, a hash of the true state, and both scores."""


class TemplatePenalty:
    """Penalises texts that are frequent, whatever the state is, and that no audit vouches for.

    A claim's template is the bag of its words after `vagentrl.claims.reading.plain`, numbers
    together with their neighbours. Words that are rare in the window and not part of the claim's
    own truth are left out. So neither case, order and repetition of words, nor invisible
    characters, letters of other alphabets and random additions make a text a new one. Texts that
    have four words in five in common belong to one template.

    The last `window` claims of each kind are remembered. A template is bad if

    - it makes up at least `least_share` of the window and is among the `top` most frequent ones,
    - the states that it was written for are no more alike than states at large; or, where the
      states hardly differ, its mean score is below `below`,
    - and the second judge of an `Audit` has not given it a mean of at least `below` in the past.
      A first judge that is fooled cannot vouch for what fooled it.

    Every claim with a bad template loses `penalty`, but never more than it is worth.

    Args:
        window: Number of claims of each kind to remember.
        top: Number of most frequent templates to examine.
        least_share: Minimum fraction of the window for a template to be frequent.
        below: Mean score below which a frequent template is bad.
        penalty: Amount subtracted from the score of a claim with a bad template.
        ignore_numbers: Treat texts that differ only in numbers as one template. This suits freely
            worded claims; structured claims would all get the same template.
    """

    def __init__(
        self,
        window: int = 1000,
        top: int = 5,
        least_share: float = 0.05,
        below: float = 0.5,
        penalty: float = 1.0,
        ignore_numbers: bool = False,
    ) -> None:
        if window < 1 or top < 1:
            raise ConfigError(
                f"TemplatePenalty.window is {window} and top is {top}; give 1 or more for each"
            )
        for name, share in (("least_share", least_share), ("below", below)):
            if not 0 < share <= 1:
                raise ConfigError(f"TemplatePenalty.{name} is {share}; give above 0, up to 1")
        if penalty <= 0:
            raise ConfigError(
                f"TemplatePenalty.penalty is {penalty}; it is subtracted, so give more than 0"
            )
        self.window = window
        self.top = top
        self.least_share = least_share
        self.below = below
        self.penalty = penalty
        self.ignore_numbers = ignore_numbers
        self._recent: dict[str, tuple[Entry, ...]] = {}

    def bag(self, claim: Claim) -> Bag:
        """Return the claim's words, each number joined with the words beside it."""
        return self._bag(claim.text, claim.representation)

    def _bag(self, text: str, representation: Representation) -> Bag:
        if representation == "symbolic":
            return frozenset(f"{row} {line}" for row, line in enumerate(grid_rows(text)))
        said = words(text)
        if self.ignore_numbers:
            return frozenset(re.sub(r"\d+", "#", word) for word in said)
        joined = {f"{a} {b}" for a, b in pairwise(said) if a.isdigit() or b.isdigit()}
        return frozenset(joined | {word for word in said if not word.isdigit()})

    def _entry(self, judgement: Judgement) -> Entry:
        claim, first, second = judgement.claim, judgement.verdict, judgement.second
        bag = self.bag(claim)
        own = bag & self._bag(claim.truth, claim.representation)
        truth = blake2b(claim.truth.encode(errors="backslashreplace"), digest_size=8).digest()
        return bag, own, truth, first and first.score, second and second.score

    def penalise(self, judgements: Sequence[Judgement], *, remember: bool) -> list[Judgement]:
        """Return the judgements with penalties set.

        Whether a template is bad depends on no audit of this batch: an audit that decided both
        what a claim earns and how its template is valued would bias the payment.

        Args:
            judgements: The judgements of a batch, in an order that does not depend on timing.
            remember: Whether to keep them in the window for later batches.
        """
        entries = [self._entry(judgement) for judgement in judgements]
        recent: dict[str, tuple[Entry, ...]] = dict(self._recent)
        bad: dict[str, _Templates] = {}
        for kind in {judgement.claim.kind for judgement in judgements}:
            made = tuple(
                entry
                for entry, judgement in zip(entries, judgements, strict=True)
                if judgement.claim.kind == kind
            )
            past = self._recent.get(kind, ())
            recent[kind] = (*past, *made)[-self.window :]
            unaudited = [(*entry[:4], None) for entry in made]
            bad[kind] = _Templates(self, [*past, *unaudited][-self.window :])
        if remember:
            self._recent = recent
        return [
            replace(judgement, penalty=self.penalty)
            if judgement.verdict is not None and bad[judgement.claim.kind].condemn(entry)
            else judgement
            for entry, judgement in zip(entries, judgements, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": {
                kind: tuple((sorted(bag), sorted(own), *more) for bag, own, *more in entries)
                for kind, entries in self._recent.items()
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = {
            kind: tuple((frozenset(bag), frozenset(own), *more) for bag, own, *more in entries)
            for kind, entries in state["recent"].items()
        }


class _Templates:
    """The templates of a window.

    Args:
        rule: The settings.
        entries: The claims of one kind in the window, oldest first.
    """

    def __init__(self, rule: TemplatePenalty, entries: Sequence[Entry]) -> None:
        seen = Counter(word for bag, *_ in entries for word in bag)
        least = max(2.0, RARE * len(entries))
        self._frequent = {word for word, count in seen.items() if count >= least}
        self._leaders: dict[Bag, Bag] = {}  # from each bag of words to that of its template
        bags = [self._common(entry) for entry in entries]
        members: defaultdict[Bag, list[int]] = defaultdict(list)
        for bag, _ in Counter(bags).most_common():
            self._leaders[bag] = self._leader(bag, tuple(members))
            members[self._leaders[bag]] = []
        for index, bag in enumerate(bags):
            members[self._leaders[bag]].append(index)
        alike = _same(Counter(truth for _, _, truth, *_ in entries))
        frequent = sorted(members, key=lambda leader: -len(members[leader]))[: rule.top]
        self._bad = {
            leader
            for leader in frequent
            if len(members[leader]) >= rule.least_share * len(entries)
            and _is_bad([(bags[i], entries[i]) for i in members[leader]], alike, rule.below)
        }

    def condemn(self, entry: Entry) -> bool:
        """Whether a claim of the window has a bad template."""
        bag = self._common(entry)
        return self._leaders.get(bag, bag) in self._bad

    def _common(self, entry: Entry) -> Bag:
        bag, own, *_ = entry
        common = frozenset(word for word in bag if word in self._frequent or word in own)
        return common or bag

    @staticmethod
    def _leader(bag: Bag, leaders: Sequence[Bag]) -> Bag:
        for leader in leaders[:LEADERS]:
            if len(bag & leader) >= ALIKE * len(bag | leader):
                return leader
        return bag


def _is_bad(claims: Sequence[tuple[Bag, Entry]], alike: float, below: float) -> bool:
    """Whether a frequent template is bad.

    Args:
        claims: The claims of the template, each with its frequent words.
        alike: Probability that any two claims of the window are about the same state.
        below: Mean score below which it is bad, if scores decide.
    """
    audited = [second for _, (*_, second) in claims if second is not None]
    first = [score for _, (_, _, _, score, _) in claims if score is not None]
    if len(audited) >= LEAST and sum(audited) >= below * len(audited):
        return False
    if alike <= FEW_STATES:
        # The number of claims keeps the noise of the estimate below `INFORMATIVE`.
        return len(claims) >= max(LEAST, 50 * alike**0.5) and not _is_informative(claims, alike)
    scores = audited if len(audited) >= LEAST else first
    return bool(scores) and sum(scores) < below * len(scores)


def _is_informative(claims: Sequence[tuple[Bag, Entry]], alike: float) -> bool:
    """Whether claims of the template, or those of them with the same words, are about the same
    state more often than any two."""
    truths: defaultdict[Bag, Counter[bytes]] = defaultdict(Counter)
    for bag, (_, _, truth, *_) in claims:
        truths[bag][truth] += 1
    if _same(sum(truths.values(), Counter())) > alike + INFORMATIVE:
        return True
    pairs = same = 0.0
    for counts in truths.values():
        number = counts.total() * (counts.total() - 1)
        pairs += number
        same += _same(counts) * number
    return pairs >= LEAST and same / pairs > alike + INFORMATIVE


def _same(counts: Counter[bytes]) -> float:
    """Probability that two of these, drawn without replacement, are the same."""
    total = counts.total()
    if total < 2:
        return 1.0
    return sum(n * (n - 1) for n in counts.values()) / (total * (total - 1))
