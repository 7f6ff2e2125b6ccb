"""Rules that a claim must pass before it is judged; unlike a model, they cannot be persuaded."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

from vagentrl.claims.reading import asserted, clauses, read_json, unfenced, words
from vagentrl.errors import ConfigError
from vagentrl.types import Claim

_PLACEMENT = re.compile(
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
    """A rule for claims; a claim that breaks it scores 0 without being judged."""

    @abstractmethod
    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        """Describe how the claim breaks the rule; None if it does not.

        Args:
            claim: One of the claims of a turn.
            claims: All claims of the turn.
            system_prompt: The agent's system prompt.
        """


class Length(ClaimFilter):
    """Rejects claims that are too short to be meaningful, or much longer than the truth.

    Args:
        shortest: Minimum number of characters, white space not counted.
        longest: Maximum number of characters as a multiple of the truth's, white space not
            counted.
    """

    def __init__(self, shortest: int = 3, longest: float = 4.0) -> None:
        if shortest < 0 or longest < 1:
            raise ConfigError(
                f"Length.shortest is {shortest} and longest is {longest}; shortest must be 0 or "
                "more, and longest, a multiple of the truth's length, 1 or more"
            )
        self.shortest = shortest
        self.longest = longest

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        length = len("".join(unfenced(claim.text).split()))
        most = self.longest * max(len("".join(claim.truth.split())), self.shortest)
        if length < self.shortest:
            return f"{length} characters, at least {self.shortest} are required"
        if length > most:
            return f"{length} characters, at most {most:.0f} are allowed"
        return None


class Repetition(ClaimFilter):
    """Rejects a natural-language claim that repeats a clause more often than the truth does.

    Args:
        most: Number of additional repetitions that are allowed.
    """

    def __init__(self, most: int = 1) -> None:
        if most < 0:
            raise ConfigError(f"Repetition.most is {most}; give 0 or more")
        self.most = most

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        if claim.representation != "natural":  # the rows of a grid may well repeat
            return None
        true = Counter(clauses(claim.truth))
        for clause, count in Counter(clauses(claim.text)).items():
            if count > max(true[clause], 1) + self.most:
                return f"says {clause[:60]!r} {count} times"
        return None


class CopiedPrompt(ClaimFilter):
    """Rejects a claim that copies text from the system prompt.

    Args:
        words: Number of consecutive words that count as a copy if the system prompt contains them
            and the truth does not. A shorter claim is a copy if the prompt contains all of it.
    """

    def __init__(self, words: int = 12) -> None:
        if words < 2:
            raise ConfigError(
                f"CopiedPrompt.words is {words}; a single word is not a copy: give 2 or more"
            )
        self.words = words

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        said, true = words(claim.text), f" {' '.join(words(claim.truth))} "
        prompt = f" {' '.join(words(system_prompt))} "
        width = min(self.words, len(said))
        for start in range(len(said) - width + 1) if said else ():
            run = f" {' '.join(said[start : start + width])} "
            if run in prompt and run not in true:
                return f"copied from the instructions: {run.strip()[:80]!r}"
        return None


class Contradiction(ClaimFilter):
    """Rejects a claim that contradicts itself.

    A natural-language claim contradicts itself if it gives more places to objects of one kind than
    the truth has such objects, or two places to one numbered object ("box 1"). Only comparable
    places are counted together: cells with cells, and distances with distances from the same
    object. A structured claim contradicts itself if it names a field twice.
    """

    def problem(self, claim: Claim, claims: Sequence[Claim], system_prompt: str) -> str | None:
        match claim.representation:
            case "natural":
                return _too_many_places(claim.text, claim.truth)
            case "structured":
                return _duplicate_field(claim.text)
            case _:
                return None


def _placements(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, number, place) for each clause such as "box 1 is 2 below the player".

    The number is empty if the object has none.
    """
    for clause in dict.fromkeys(asserted(text)):
        found = _PLACEMENT.match(clause)
        thing = _THING.fullmatch(found["that"] or found["what"]) if found else None
        if found and thing and thing["kind"] not in _PRONOUNS:
            yield thing["kind"], thing["number"] or "", found["where"]


def _too_many_places(text: str, truth: str) -> str | None:
    """Describe the first object that the text puts in more places than there are such objects."""
    existing = Counter(kind for kind, _, _ in _placements(truth))
    places: dict[tuple[str, Hashable], set[int | tuple[int, ...]]] = defaultdict(set)
    for kind, number, where in _placements(text):
        allowed = {kind: max(existing[kind], 1)} | ({kind + number: 1} if number else {})
        for origin, place in _coordinates(where):
            for what, most in allowed.items():
                found = places[what, origin]
                found.add(place)
                if len(found) > most:
                    return f"puts {what[:40]!r} in {len(found)} places"
    return None


def _coordinates(where: str) -> Iterator[tuple[Hashable, int | tuple[int, ...]]]:
    """Yield (origin, coordinates) of the first place in a text.

    Only the first place counts, because the clause may go on to describe another object.
    """
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


def _duplicate_field(text: str) -> str | None:
    try:
        read_json(text)
    except (ValueError, RecursionError) as error:
        return str(error) if "twice" in str(error) else None  # the judge scores what is not JSON
    return None
