"""RuleParser: extracts the positions of objects from plain sentences, without a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from vagentrl.claims.reading import asserted
from vagentrl_judges.relations import ANY, LESS, MORE, Range, Relation, RelationParser, at

WORDS: Mapping[str, Sequence[str]] = {
    "player": ("player", "agent", "i", "me", "you"),
    "boxes": ("box", "boxes", "crate", "crates"),
    "targets": ("target", "targets", "goal", "goals"),
    "goal": ("goal", "flag"),
    "holes": ("hole", "holes", "pit", "pits"),
}
"""Names of the objects of each class; other classes go by their own name, with or without s."""

_COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DOWN = {
    **dict.fromkeys(("below", "down", "under", "beneath", "south", "lower", "bottom"), 1),
    **dict.fromkeys(("above", "up", "over", "north", "upper", "top"), -1),
}
_RIGHT = {"right": 1, "east": 1, "left": -1, "west": -1}

_COUNT = rf"(?:\d{{1,4}}|{'|'.join(_COUNTS)})"
_UNIT = r"(?:cells?|squares?|tiles?|steps?|rows?|columns?|spaces?|blocks?|places?|positions?)"
_WAY = rf"(?:{'|'.join(sorted([*_DOWN, *_RIGHT], key=len, reverse=True))})"
_NEXT = r"(?:immediately|just|right(?=\s+(?:above|below|under|beneath|over|north|south)))"
_MOVE = (
    rf"(?:(?:(?P<count>{_COUNT}|an?(?=\s+{_UNIT}))\s+(?:{_UNIT}\s+)?|(?P<next>{_NEXT})\s+"
    r"|(?P<straight>directly|straight|exactly)\s+)?(?:to\s+(?:the|its|my)\s+)?"
    rf"\b(?P<way>{_WAY})\b)"
)
_ARTICLE = r"(?:(?:the|an?|its|my|this|one\s+of\s+the)\s+)?"
_BARE_MOVE = re.sub(r"\?P<\w+>", "?:", _MOVE)
_AND = r"(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s+|\s*-\s*)"
_MOVES = rf"{_BARE_MOVE}(?:{_AND}{_BARE_MOVE}){{0,3}}"
_CLAUSE = re.compile(r"\b(?:but|while|whereas)\b")
_LINKING_WORDS = """
    a an the this that these those there here where it its it's i'm im you're my your me we our one
    is are am be being been will now then next after move moving step currently presently still
    also just exactly precisely right directly again already both all each respectively and with of
    in on at to into onto by as for from up
    stands stand standing sits sit sitting lies lie lying located locate situated placed place
    positioned position found find seen see shown shows appears appear visible rests rest resting
    stays stay staying remains remain remaining waits wait waiting ends end ending lands land
    arrives arrive arriving arrived moves moved goes go going gets get steps stepped walks walking
    occupies occupy occupying occupied keeps keep parked set fixed stuck exists exist comes come
    coming reaches reach reached reaching has have having holding marked reads spotted
    empty free resides reside becomes become finishes finish starts start starting
    begins slides slide slid
    pushed pushes cell cells square squares tile tiles field spot location coordinates coordinate
    coords coord point grid map room board lake ice index indices row rows column columns col
    place places
    so once predicted expected says equals equal r c y x
"""
_LINKING = frozenset(_LINKING_WORDS.split())
"""Words that may stand between an object and its place. A word that is not listed may turn what is
said around ("the player avoids (2, 3)"), so the place is then not read."""
_JOINED = re.compile(rf"\s*(?:,|and|,\s*and)\s+{_ARTICLE}")


class RuleParser(RelationParser):
    """Reads the environments' own sentences, and many other sentences with the same meaning.

    It understands rows and columns ("row 2, column 3", "(2, 3)", "[2, 3]"); distances and
    directions from another object ("1 below and 2 to the right of the player", "two cells north of
    the box", "to the upper left of the player"); the position of another object ("on the target",
    "where the player is"); several places for one object; and several objects in one place. It
    reads what `vagentrl.claims.reading.asserted` leaves of the text, which is nothing that is
    denied, uncertain or past, and ignores what it does not understand.

    Args:
        words: Names of the objects of each class. Classes that are not given have the names that
            this package's environments use.
    """

    def __init__(self, words: dict[str, list[str]] | None = None) -> None:
        self.words = {**WORDS, **(words or {})}

    def identity(self) -> str:
        return f"RuleParser {sorted((name, list(words)) for name, words in self.words.items())}"

    async def parse(self, text: str, classes: Collection[str]) -> list[Relation]:
        return self.read(text, classes)

    def read(self, text: str, classes: Collection[str]) -> list[Relation]:
        """As `parse`; nothing has to be waited for."""
        names = self._names(classes)
        pattern = _pattern(tuple(sorted(names, key=len, reverse=True)))
        return [
            relation
            for part in asserted(text)
            for clause in _CLAUSE.split(part)
            for relation in _read(clause, pattern, names)
        ]

    def _names(self, classes: Collection[str]) -> dict[str, str]:
        """Map every word to its class; a class's own name takes precedence over other names."""
        names: dict[str, str] = {}
        for name in classes:
            for word in self.words.get(name, ()):
                names.setdefault(word.lower(), name)
        for name in classes:
            own = name.lower().replace("_", " ")
            names |= {own: name, own.removesuffix("s"): name}
        return names


@lru_cache(maxsize=32)
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """Compile the pattern of all phrases that are understood; longer phrases come first."""
    thing = (
        rf"\b(?:{'|'.join(map(re.escape, words))})\b(?!'s\b)"
        rf"(?:\s+(?:#|number\s+)?\d{{1,3}}\b(?!\s*(?:{_UNIT}|to\b|{_WAY})))?"
    )
    owner = rf"\b(?:{'|'.join(map(re.escape, words))})(?='s\b)"
    number = rf"(?:number\s+)?[:=]?\s*(?:{_COUNT})\b"
    between = r"(?:\s*,\s*|\s+)(?:and\s+)?(?:in\s+|at\s+)?(?:the\s+)?"
    row, column = rf"\brow\s*{number}", rf"\bcol(?:umn)?\s*{number}"
    return re.compile(
        rf"(?P<moves>{_MOVES})(?:\s+(?:of|from|than|relative\s+to))?\s+{_ARTICLE}"
        rf"(?P<origin>{thing})(?P<more>(?:{_AND}{_BARE_MOVE}(?:\s+of\s+(?:it|them)\b)?)?)"
        rf"(?!\s+(?:of|from|the|an?)\b|\s+{thing})"
        rf"|(?P<moves_first>(?:{_COUNT}\s+(?:{_UNIT}\s+)?)?)(?:to|on|at)\s+the\s+"
        rf"(?P<owner>{owner})'s\s+(?P<way_last>{_WAY})\b"
        rf"|(?P<row_first>{row}{between}{column})|(?P<column_first>{column}{between}{row})"
        r"|[(\[]\s*(?P<pair>\d{1,4}\s*,\s*\d{1,4})\s*[)\]]"
        r"|\b(?:at|position|cell|coordinates?|square)\s+(?P<bare_pair>\d{1,4}\s*,\s*\d{1,4})\b"
        r"|\b(?:where|on\s+top\s+of|on|onto|in|inside|at|into|"
        rf"same\s+\w+\s+as)\s+{_ARTICLE}(?P<place>{thing})"
        rf"|(?P<thing>{thing})"
    )


def _read(clause: str, pattern: re.Pattern[str], names: Mapping[str, str]) -> list[Relation]:
    """Extract the relations of a clause; a place belongs to the object named before it."""
    relations: list[Relation] = []
    things: list[str] = []
    waiting: list[Relation] = []  # places that were named before their object
    thing_end = origin_end = end = -1
    origin = ""
    for found in pattern.finditer(clause):
        if end >= 0 and not _links(clause[end : found.start()]):
            things, waiting = [], []
        end = found.end()
        thing = found["thing"]
        if waiting and not things and found["place"] and found[0].startswith("where"):
            thing = found["place"]  # "(2, 3) is where the player is"
        if thing is not None:
            name = _class(thing, names)
            joined = thing_end >= 0 and _JOINED.fullmatch(clause[thing_end : found.start()])
            things = [*things, name] if joined else [name]
            thing_end = found.end()
            relations += [_about(name, place) for place in waiting]
            waiting = []
        elif (place := _place(found, names)) is not None:
            about = things
            if found["pair"] and origin and not clause[origin_end : found.start()].strip():
                about = [origin]  # "left of the player (2, 3)"
            relations += [_about(name, place) for name in about]
            if not about:
                waiting.append(place)
            if place.of is not None:
                origin, origin_end = place.of, found.end()
    return relations


def _links(between: str) -> bool:
    """Whether the words between an object and a place leave the place the object's."""
    return all(word in _LINKING for word in re.findall(r"[^\W\d_]+(?:'\w+)?", between))


def _about(thing: str, place: Relation) -> Relation:
    return Relation(thing, place.rows, place.columns, place.of)


def _place(found: re.Match[str], names: Mapping[str, str]) -> Relation | None:
    """Return a relation whose object is not known yet."""
    numbers = [_number(word) for word in re.findall(rf"\b{_COUNT}\b", found[0])]
    if found["row_first"] or found["pair"] or found["bare_pair"]:
        return at("", numbers[0], numbers[1])
    if found["column_first"]:
        return at("", numbers[1], numbers[0])
    if found["place"]:
        return at("", 0, 0, _class(found["place"], names))
    if found["owner"]:
        moves = f"{found['moves_first']} {found['way_last']}"
        return _moved(moves, _class(found["owner"], names))
    return _moved(found["moves"] + (found["more"] or ""), _class(found["origin"], names))


def _moved(text: str, origin: str) -> Relation | None:
    """Return the relation to an origin; None if two moves are along the same axis."""
    ranges: dict[str, Range] = {}
    others: Range = ANY
    for move in re.finditer(_MOVE, text):
        axis, sign = ("rows", _DOWN) if move["way"] in _DOWN else ("columns", _RIGHT)
        if axis in ranges:
            return None
        if move["count"] or move["next"]:
            distance = sign[move["way"]] * (1 if move["next"] else _number(move["count"]))
            ranges[axis] = (distance, distance)
        else:
            ranges[axis] = MORE if sign[move["way"]] > 0 else LESS
        if move["count"] or move["next"] or move["straight"]:
            others = (0, 0)  # "2 above" means the same column
    return Relation("", ranges.get("rows", others), ranges.get("columns", others), origin)


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    return _COUNTS.index(word) if word in _COUNTS else 1  # "a cell"


def _class(words: str, names: Mapping[str, str]) -> str:
    """Return the class of an object's name, which may end in a number."""
    return names.get(words) or names[re.sub(r"\s+(?:#|number\s+)?\d+$", "", words)]
