"""The tolerant reader of claims, which judges and filters share.

An agent writes the same statement in many ways: in code fences, in capitals, with ordinals, with
full-width digits. What is tolerated here is spelling and layout; what a claim says is never
guessed. A claim is also written to be paid, so the reader undoes what hides a text from a
comparison (letters of other alphabets that look alike, characters that cannot be seen), and drops
what a text does not assert: denials, doubts, conditions and the past.
"""
# ruff: noqa: RUF001 (the characters that look alike are meant)

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from itertools import accumulate
from textwrap import dedent
from typing import Any

MAX_DEPTH = 32
"""How deep brackets of a structured claim may be nested; states nest a few levels."""
LONGEST_LITERAL = 20_000
"""Characters of a structured claim that is read although it is not JSON."""

# ---------------------------------------------------------------------------------- characters

_LOOK_ALIKES = str.maketrans(
    "абвгеёзікмнорстуухьѕјԁԛԝһӏ" "αβεικνορτυχωϲɑɡıⅼ",
    "a6breезikmhopctyyxbsjdqwhl" "abeiknoptuxwcagil",
)  # fmt: skip
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
        **dict.fromkeys("≠¬✗✘❌🚫⛔", " not "),
        **dict.fromkeys("。．｡", "."),
        "、": ",",
        "\t": " ",
    }
)


def plain(text: str) -> str:
    """The text in one spelling: NFKC, lower case, no invisible characters, accents or look-alikes.

    Lines are kept; other white space becomes single spaces.
    """
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).casefold()
    text = unicodedata.normalize("NFKD", text)
    seen = (c for c in text if unicodedata.category(c) not in ("Mn", "Cf", "Cc") or c == "\n")
    text = "".join(seen).translate(_LOOK_ALIKES).translate(_SIGNS).replace("!=", " not ")
    return "\n".join(line for raw in text.splitlines() if (line := " ".join(raw.split())))


_FENCE = re.compile(r"```[^\n`]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def unfenced(text: str) -> str:
    """The content of the only code fence, or the text itself if there is none or several."""
    fences = _FENCE.findall(text)
    if len(fences) == 1 and text.count("```") == 2:
        around = _FENCE.sub(" ", text)
        return "" if denies(around) or _LOCAL.search(plain(around)) else fences[0]
    stripped = text.strip()
    return stripped[1:-1] if re.fullmatch(r"`[^`]+`", stripped) else text


# -------------------------------------------------------------------------------------- grids


def grid_rows(text: str) -> list[str]:
    """The rows of a grid, without fences, indentation, empty lines and spaces between cells.

    There are none if words beside the grid, in lines of their own, deny or doubt it.
    """
    shape = unicodedata.normalize("NFKC", unfenced(text)).expandtabs(4)
    rows = [row.rstrip() for row in dedent(shape).splitlines() if row.strip()]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    prose = "\n".join(row for row in rows if len(row) != width or row.isalpha())
    if denies(prose) or _LOCAL.search(plain(prose)):
        return []
    if rows and all(len(row) > 1 and set(row[1::2]) == {" "} for row in rows):
        return [row[::2] for row in rows]
    return rows


# ---------------------------------------------------------------------------------------- JSON

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def read_json(text: str, keys: Collection[str] = ()) -> Any:
    """The value of a structured claim.

    Fences, words around a single object, capital letters and spaces in keys, single quotes, tuples
    and trailing commas are tolerated.

    Args:
        text: The claim.
        keys: Keys of the true state; a key of the claim that differs from one of them in case,
            spaces or a final s is read as that key.

    Raises:
        ValueError: When there is no such value, a field is named twice, or brackets nest deeper
            than `MAX_DEPTH`. Depth is counted, because how deep the parser can go depends on how
            much of the interpreter's stack is left.
    """
    text = unfenced(text).strip()
    first, last = text.find("{"), text.rfind("}")
    around = text[:first] + " " + text[last + 1 :]
    if 0 <= first < last and around.strip():
        if denies(around) or _LOCAL.search(plain(around)) or set("{}[]") & set(around):
            raise ValueError("the words around the object deny it")
        text = text[first : last + 1]
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"brackets are nested deeper than {MAX_DEPTH}")
    text = unicodedata.normalize("NFKC", text)
    known = {_bare(key): key for key in keys}

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = [(known.get(_bare(key), key), value) for key, value in pairs]
        found = dict(named)
        if len(found) < len(named):  # `json` would silently keep the last
            twice, _ = Counter(key for key, _ in named).most_common(1)[0]
            raise ValueError(f"{twice[:40]!r} is named twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=fields)
    except json.JSONDecodeError as error:
        read, value = _literal(text)
        if not read:
            raise ValueError(str(error)) from error
        return json.loads(value, object_pairs_hook=fields)


def _literal(text: str) -> tuple[bool, str]:
    """Whether a text is a literal of Python, and the literal as JSON with all of its fields."""
    if len(text) > LONGEST_LITERAL:
        return False, ""
    try:
        return True, _as_json(ast.parse(text.translate(_SIGNS).strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False, ""


def _as_json(node: ast.expr) -> str:
    """Write JSON from the syntax tree, since a dictionary would forget duplicate fields."""
    match node:
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            written = (f"{_as_json(key)}: {_as_json(value)}" for key, value in pairs if key)
            return "{" + ", ".join(written) + "}"
        case ast.List(items) | ast.Tuple(items):
            return "[" + ", ".join(map(_as_json, items)) + "]"
        case ast.Constant(value) if value is None or isinstance(value, str | int | float):
            return json.dumps(value)
        case ast.Name(id="true" | "false" | "null"):
            return node.id
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, int | float):
            return json.dumps(-value)
        case _:
            raise ValueError(f"{type(node).__name__} is no value")


def _bare(key: str) -> str:
    """A key without case, spaces and plural."""
    bare = re.sub(r"[\s_-]+", "", plain(key))
    return re.sub(r"(?<=x)es$|s$", "", bare)


def _depth(text: str) -> int:
    """How deep the brackets outside of strings are nested."""
    found = _STRING_OR_BRACKET.findall(text)
    steps = (1 if token in "[{" else -1 for token in found if token in "[]{}")
    return max(accumulate(steps), default=0)


# --------------------------------------------------------------------------------------- words

_UNTRUE = (
    r"(?:false|untrue|wrong|incorrect|inaccurate|mistaken|invalid|lies?|lying|a\s+lie|fiction"
    r"|fictional|nonsense|a\s+joke|joking|kidding|imaginary|made\s+up|fake|impossible|rubbish"
    r"|(?:not|never|far\s+from|anything\s+but)\s+(?:\w+\s+)?"
    r"(?:true|so|right|correct|accurate|the\s+case|valid|real|what\s+i\s+see))"
)
_DENIAL = re.compile(
    rf"^\W*{_UNTRUE}\b\W*$|^\W*{_UNTRUE}\s*[:,-]"
    rf"|\b(?:is|are|was|were|be|being|it's|that's|i'm|am)\s+(?:\w+ly\s+|all\s+|just\s+)?{_UNTRUE}"
    r"\W*(?:$|that\b|to\s+(?:say|claim|think|believe|assume)\b|:)"
    rf"|\b{_UNTRUE}\s+(?:that|statements?|claims?|facts?|descriptions?|sentences?|reports?)\b"
    r"|\b(?:nowhere|used\s+to|no\s+longer|anymore|any\s+more|anywhere\s+(?:but|except)|far\s+from"
    r"|(?:the\s+)?opposite|contrary|den(?:y|ies|ied|ying)|refut\w+|disprov\w+|reject\w*|doubt\w*"
    r"|myth|rumou?r\w*|pretend\w*|imagin\w+|suppos\w+|hypothe\w+|fail(?:s|ed)?\s+to|refus\w+\s+to"
    r"|hardly|barely|scarcely|seldom|rarely|lacks?|absent|excluded|except|avoids?|instead\s+of"
    r"|rather\s+than|other\s+than|anything\s+but|unlike|formerly|previously|once\s+was|ceased"
    r"|isnt|arent|wasnt|werent|doesnt|aint|disregard|unless|whether|if|assum\w+|provided"
    r"|would|should|wish\w*|hop(?:e|es|ed|ing)|dream\w*|guess\w*|ignore[ds]?)\b"
)
"""A sentence that does not assert what it says."""
_ABOUT_THE_CLAIM = re.compile(
    rf"^\W*{_UNTRUE}\W*$|\b(?:none|nothing)\b"
    r"|\b(?:this|that|these|those|it|all|everything|above|following|below|statements?|claims?"
    rf"|sentences?|descriptions?|what\s+i|just|i)\b.*\b{_UNTRUE}"
)
"""With a denial: a sentence that denies the claim, and not only something in it."""
_NONE_TRUE = re.compile(r"\b(?:none|nothing)\b.*\b(?:true|right|correct|real|holds?)\b")
_LOCAL = re.compile(
    r"\b(?:not|no|never|neither|nor|without|cannot|none|nothing|or|either|maybe|perhaps|possibly"
    r"|might|may|could|unknown|unclear|unsure|was|were|had)\b|n't\b"
)
"""A part of a sentence that does not assert what it says."""
_PART = re.compile(
    r"[,(]\s*(?:and\s+|but\s+|so\s+|yet\s+)?"
    r"(?=(?:there|no|none|neither|not|nothing|the|an?|both|all|each|every|its?|i|we|you|they|my"
    r"|maybe|perhaps|possibly|could|may|might|never|without)\b)|\b(?:but|while|whereas|although|though)\b"
)
_THAT = re.compile(
    r"^(?P<before>[^.;:]{1,80}?)\b(?:that|which)\b(?=\s+(?:the|an?|there|i|my|box|row|player)\b)"
)
_SAYS = re.compile(
    r"\b(?:see|seen|sees|note|notice|observe|observed?|observes|say|says|said|shows?|shown|predict"
    r"|predicts?|expect|expects?|believe|think|know|known|conclude|means?|true|clear|certain|sure"
    r"|fact|evident|obvious|correct|state|states|report|tells?|find|finds|so|now|infer|given"
    r"|such|appears?|seems?|room|map|grid|image|picture|position|result|after|ensures?)\b"
)
_NAMES = (
    "first|1st", "second|2nd", "third|3rd", "fourth|4th", "fifth|5th", "sixth|6th", "seventh|7th",
    "eighth|8th", "ninth|9th", "tenth|10th", "eleventh|11th", "twelfth|12th",
)  # fmt: skip
_ORDINALS = {word: number for number, words in enumerate(_NAMES) for word in words.split("|")}
_ORDINAL = re.compile(
    rf"\b(?:the\s+)?(?P<which>{'|'.join(_ORDINALS)})\s+(?P<line>row|column|col)\b"
    r"(?:\s+(?:from\s+the\s+(?:top|left)(?:\s+edge)?|down))?"
)
_CELL = (
    r"(?:[(\[]\s*\d+\s*,\s*\d+\s*[)\]]|row\s*\d+,?\s*(?:and\s+)?col(?:umn)?\s*\d+|\d+\s*,\s*\d+)"
)
_AT = r"(?:(?:at|in|on|to|position|cell|square|the)\s+)*"
_FROM_TO = re.compile(rf"\bfrom\s+{_AT}{_CELL},?\s+(?:and\s+)?(?:in)?to\s+{_AT}(?={_CELL})")
_ARROW = re.compile(rf"(?:\bfrom\s+)?{_CELL}\s*(?:->|=>|→|➔)\s*(?={_CELL})")
_WAS_NOW = re.compile(
    rf"\b(?:was|were)\s+(?:previously\s+|before\s+)?{_AT}{_CELL},?\s+(?:and|but)\s+"
    r"(?:it\s+)?(?:is\s+now|now\s+is|now|is|will\s+be)\b"
)
_CONTRACTIONS = tuple(
    (re.compile(short), long)
    for short, long in (
        (r"\bi'm\b", "i am"),
        (r"'re\b", " are"),
        (r"\b(it|he|she|there|here)'s\b", r"\1 is"),
        (r"'s\s+(?:position|location|cell|place|coordinates)\b", ""),
        (r"\bcan\s+be\s+(?=found|seen|spotted)", "is "),
    )
)
_END = re.compile(r"[;\n!?]|\.(?!\d)")


def denies(text: str) -> bool:
    """Whether a text takes back what it, or the text next to it, says."""
    return any(_DENIAL.search(part.strip()) for part in _END.split(plain(text)))


@lru_cache(maxsize=4096)
def asserted(text: str) -> tuple[str, ...]:
    """The sentences and parts of sentences that a claim in words asserts, as `plain` text.

    Ordinals become numbers counted from 0, as rows and columns are ("the second row" is row 1). Of
    a move from one cell to another, or of a past and a present cell, the last one is kept. Denied,
    uncertain, conditional and past statements are dropped. A sentence that is about the claim and
    denies it ("all of this is false") drops all.
    """
    words = plain(unfenced(text))
    for short, long in _CONTRACTIONS:
        words = short.sub(long, words)
    words = _ORDINAL.sub(lambda found: f"{found['line']} {_ORDINALS[found['which']]}", words)
    words = _WAS_NOW.sub("is ", _ARROW.sub("at ", _FROM_TO.sub("to ", words)))
    kept: list[str] = []
    for sentence in (part.strip(" ,-*>#") for part in _END.split(words)):
        if _DENIAL.search(sentence) or _NONE_TRUE.search(sentence):
            if not re.search(r"\d", sentence) and _ABOUT_THE_CLAIM.search(sentence):
                return ()
            continue
        if (that := _THAT.match(sentence)) and not _SAYS.search(that["before"]):
            continue
        parts = _PART.split(sentence) if _LOCAL.search(sentence) else [sentence]
        kept += [part.strip() for part in parts if part.strip() and not _LOCAL.search(part)]
    return tuple(kept)


def clauses(text: str) -> list[str]:
    """All clauses of a text, asserted or not, in one spelling."""
    return [clause for part in _END.split(plain(unfenced(text))) if (clause := part.strip(" ,"))]


def words(text: str) -> list[str]:
    """The words and numbers of a text, in one spelling."""
    return re.findall(r"\w+", plain(text))
