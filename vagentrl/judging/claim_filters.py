"""Rules that a claim must pass before a judge sees it: cheap, and not to be talked round."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from vagentrl.errors import ConfigError
from vagentrl.types import Claim

_CLAUSE_END = re.compile(r"[;\n]|\.(?=\s|$)")
_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"^(?P<what>.+?)\s+is\s+(?P<where>.*\d.*)$")


class ClaimFilter(ABC):
    """Finds what is wrong with a claim without judging it; a claim with a problem scores 0."""

    @abstractmethod
    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        """What is wrong; None when nothing is.

        Args:
            claim: One of the claims of a turn.
            claims: All of them.
            system_prompt: What the agent was told.
        """


class Length(ClaimFilter):
    """Refuses what is too short to say anything, or so long that it may say everything.

    Args:
        shortest: Fewest characters.
        longest: Most characters, as a multiple of the truth's.
    """

    def __init__(self, shortest: int = 3, longest: float = 4.0) -> None:
        if shortest < 0 or longest < 1:
            raise ConfigError(
                f"Length.shortest is {shortest} and longest {longest}; give 0 or more characters, "
                "and at least once the truth's length"
            )
        self.shortest = shortest
        self.longest = longest

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        length, most = len(claim.text.strip()), self.longest * max(len(claim.truth), self.shortest)
        if length < self.shortest:
            return f"{length} characters, at least {self.shortest} are wanted"
        if length > most:
            return f"{length} characters, at most {most:.0f} are allowed"
        return None


class Repetition(ClaimFilter):
    """Refuses a natural claim that says one clause more often than the truth does.

    Args:
        most: How much more often.
    """

    def __init__(self, most: int = 1) -> None:
        if most < 0:
            raise ConfigError(f"Repetition.most is {most}; give 0 or more")
        self.most = most

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        if claim.representation != "natural":  # rows of a grid are much alike
            return None
        true = Counter(_clauses(claim.truth))
        for clause, count in Counter(_clauses(claim.text)).items():
            if count > max(true[clause], 1) + self.most:
                return f"says {count} times {clause[:60]!r}"
        return None


class CopiedPrompt(ClaimFilter):
    """Refuses a claim that repeats what the agent was told instead of what it sees.

    Args:
        words: Consecutive words of the system prompt, not all in the truth's order too, that make
            a copy. A shorter claim is one if the prompt holds it from start to end.
    """

    def __init__(self, words: int = 12) -> None:
        if words < 2:
            raise ConfigError(f"CopiedPrompt.words is {words}; one word is no copy, give 2 or more")
        self.words = words

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        said, true = _words(claim.text), f" {' '.join(_words(claim.truth))} "
        prompt = f" {' '.join(_words(system_prompt))} "
        width = min(self.words, len(said))
        for start in range(len(said) - width + 1) if said else ():
            run = f" {' '.join(said[start : start + width])} "
            if run in prompt and run not in true:
                return f"copied from the instructions: {run.strip()[:80]!r}"
        return None


class Contradiction(ClaimFilter):
    """Refuses a claim that says two things of which one must be wrong.

    That is a natural one that gives two places to what the truth has once, or a structured one that
    names a field twice.
    """

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        match claim.representation:
            case "natural":
                places, true = _places(claim.text), _places(claim.truth)
                for what, where in places.items():
                    if len(where) > max(len(true.get(what, ())), 1):
                        return f"says of {what[:40]!r} that it is in {len(where)} places"
                return None
            case "structured":
                return _named_twice(claim.text)
            case _:
                return None


class Unchanged(ClaimFilter):
    """Refuses a prediction that repeats the observation where the state did change."""

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        if claim.kind != "prediction":
            return None
        for other in claims:
            if (
                other.kind == "observation"
                and other.text.casefold().split() == claim.text.casefold().split()
                and other.truth != claim.truth
            ):
                return "the prediction is the observation, but the state changed"
        return None


def _clauses(text: str) -> list[str]:
    worded = (" ".join(part.split()).casefold() for part in _CLAUSE_END.split(text))
    return [clause for clause in worded if clause]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _places(text: str) -> dict[str, set[str]]:
    """What is said to be where, in clauses such as "the box is 2 below the player"."""
    places: dict[str, set[str]] = {}
    for clause in _clauses(text):
        if found := _PLACE.match(clause):
            places.setdefault(found["what"], set()).add(found["where"])
    return places


def _named_twice(text: str) -> str | None:
    twice: list[str] = []

    def fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
        twice.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=fields)
    except (ValueError, RecursionError):
        return None  # no JSON is for the judge to say
    return f"names {twice[0][:40]!r} twice" if twice else None
