"""Rules that a claim must pass before a judge sees it: cheap, and not to be talked round."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

from vagentrl.errors import ConfigError
from vagentrl.types import Claim

_CLAUSE_END = re.compile(r"[;\n]|\.(?=\s|$)")
_WORD = re.compile(r"\w+")
_PLACED = re.compile(
    r"(?:there is (?P<that>.+?) (?=at |in |on |\()|(?P<what>.+?) is )(?P<where>.+)"
)
_THING = re.compile(r"(?:the |an? |one |another )?(?P<kind>.+?)(?P<number> #?\d+)?")
_PRONOUNS = {"it", "they", "this", "that", "there", "one", "another", "other", "which"}
_CELL = re.compile(r"\brow (\d+),? (?:and )?col(?:umn)? (\d+)|\((\d+) ?, ?(\d+)\)")
_DISTANCES = {
    "rows": re.compile(r"(\d+) (?:\w+ )?(?:(above|up|over)|(below|down|under))"),
    "columns": re.compile(r"(\d+) (?:\w+ )?(?:to the )?(?:(left)|(right))"),
}
_ORIGIN = re.compile(r"(?:of|above|below|over|under|from) (?:the |an? )?(\w+(?: \d+)?)")


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
        shortest: Fewest characters, white space left out.
        longest: Most characters, white space left out, as a multiple of the truth's.
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
        length = len("".join(claim.text.split()))
        most = self.longest * max(len("".join(claim.truth.split())), self.shortest)
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

    That is a natural one that gives more places to things of one kind than the truth has things of
    it, or two to one with a number; or a structured one that names a field twice. Places are
    compared with their like: cells with cells, and distances with those from the same thing.
    """

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        match claim.representation:
            case "natural":
                return _one_too_many(claim.text, claim.truth)
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


def _placed(text: str) -> Iterator[tuple[str, str, str]]:
    """What is said to be where, in clauses such as "box 1 is 2 below the player": the kind of
    thing, its number or nothing, and where."""
    for clause in dict.fromkeys(_clauses(text)):
        found = _PLACED.match(clause)
        thing = _THING.fullmatch(found["that"] or found["what"]) if found else None
        if found and thing and thing["kind"] not in _PRONOUNS and " not " not in f" {clause} ":
            yield thing["kind"], thing["number"] or "", found["where"]


def _one_too_many(text: str, truth: str) -> str | None:
    """Which thing is said to be in more places than there are such things."""
    there = Counter(kind for kind, _, _ in _placed(truth))
    places: dict[tuple[str, Hashable], set[int | tuple[int, ...]]] = defaultdict(set)
    for kind, number, where in _placed(text):
        allowed = {kind: max(there[kind], 1)} | ({kind + number: 1} if number else {})
        for origin, place in _readings(where):
            for what, most in allowed.items():
                found = places[what, origin]
                found.add(place)
                if len(found) > most:
                    return f"says of {what[:40]!r} that it is in {len(found)} places"
    return None


def _readings(where: str) -> Iterator[tuple[Hashable, int | tuple[int, ...]]]:
    """What a place is counted from, and the place: the first one, for a clause may go on to another
    thing."""
    cell = _CELL.search(where)
    if cell:
        yield "cell", (int(cell[1] or cell[3]), int(cell[2] or cell[4]))
        return
    for line in ("row", "col"):
        if found := re.search(rf"\b{line}\w* (\d+)", where):
            yield line, int(found[1])
    origin = _ORIGIN.search(where)
    for axis, pattern in _DISTANCES.items():
        if origin and (found := pattern.search(where)):
            yield (axis, origin[1]), int(found[1]) * (-1 if found[2] else 1)


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
