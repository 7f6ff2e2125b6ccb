"""What the scripted customer understands of a message.

The message is cut into sentences and clauses. In each clause the customer looks for key phrases: a
thing of the telephone with ``on`` or ``off`` and the like (an instruction), a question, or an offer
with its price. `docs/environments/support.md` lists them. A clause with "do not" or "never" is not
acted on, and neither is a question about a setting, such as "Is airplane mode on?". What could mean
several things, such as an offer with two prices, is asked about.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from vagentrl_envs.support.phone import SWITCHES
from vagentrl_envs.support.records import TOP_UPS, plan_named

LONGEST = 300
"""Characters of a message that the customer takes in."""
MOST_NUMBERS = 4
"""Numbers in a message that the customer can follow."""

NUMBER = re.compile(r"\d{4}-\d{2}|\d+")

_SHORT = (  # each short form with what it stands for
    (re.compile(r"\bcan't\b"), "cannot"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"(?<=\d)\.00\b"), ""),
)
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(rf"\b({'|'.join(_MONTH_NAMES)})[a-z]*\.? (\d{{4}})\b")

_RESTART = re.compile(
    r"\b(restart\w*|reboot\w*|power[ -]?cycle|off and (back )?on( again)?|off then on)\b"
)
_NOUNS = (  # the first that occurs in a clause counts, so the longer names come first
    ("roaming", re.compile(r"\b(data )?roaming\b")),
    ("saver", re.compile(r"\b(data[ -]?)?saver\b")),
    ("wifi", re.compile(r"\b(wi-?fi|wlan)\b")),
    ("hotspot", re.compile(r"\b(hotspot|tethering)\b")),
    ("vpn", re.compile(r"\bvpn\b")),
    ("airplane", re.compile(r"\b(airplane|aeroplane|flight)\b")),
    ("mode", re.compile(r"\bmode\b")),
    ("apn", re.compile(r"\b(apn|access point)\b")),
    ("sim", re.compile(r"\bsim\b")),
    ("data", re.compile(r"\b(mobile data|cellular( data)?|data)\b")),
)
_BESIDE_NOUN = re.compile(
    r"\b(please|(can|could|would|will) you|turn|switch|set|put|the|your|and|or|both|also|mode)\b"
)
"""Words of a clause that only lists a thing, such as "turn the VPN" or "and your hotspot"."""
_PRONOUN = re.compile(r"\b(it|them)\b")
_ON = re.compile(r"\b(on|enable|activate)\b")
_OFF = re.compile(r"\b(off|disable|deactivate)\b")
_WAYS = {
    "mode": (("auto", re.compile(r"\bauto(matic)?\b")), ("2g", re.compile(r"\b2g\b"))),
    "apn": (("reset", re.compile(r"\b(reset|restore|default)\b")),),
    "sim": (("reseat", re.compile(r"\b(reseat|reinsert|insert|remove|take|put|push)\b")),),
}
_PAY = re.compile(r"\bpay\b")
_NOT = re.compile(r"\b(do not|never|without|no need|need not)\b")
_POLITE = re.compile(r"\b(please|could you|can you|would you|will you|try)\b")
_INQUIRY = re.compile(r"\b(check|whether|tell me|look|see|is|are|does)\b")
_ENSURE = re.compile(r"\b(make sure|ensure)\b")
_TOPICS = (
    ("pin", re.compile(r"\bpin\b")),
    ("number", re.compile(r"\bnumber\b")),
    ("name", re.compile(r"\byour (full )?name\b")),
    ("place", re.compile(r"\b(abroad|where|country|travel\w*)\b")),
    ("settings", re.compile(r"\bsettings?\b")),
    (
        "top-up",
        re.compile(r"\b(top-?up|how (much data|many (gb|gigabytes))|\d+ ?gb\b.*\bor\b.*\d+ ?gb)\b"),
    ),
    ("screen", re.compile(r"\b(screen|status|bars?|signal|symbols?|work(s|ing)?|shows?)\b")),
    ("wish", re.compile(r"\b(help|wish|problem|matter|details|what (charge|plan)|which)\b")),
)
_SMALL_TALK = re.compile(
    r"\b(hello|hi|thanks?|thank you|no worries|sorry|welcome|bye|goodbye|moment|done|ok|okay)\b"
)

# ------------------------------------------------------------------------------- offers and amounts

_ASK_TO_AGREE = re.compile(r"\b(agree|ok|okay|confirm|accept|shall|like|want|should)\b|\?")
_PLAN = re.compile(r"\b(?:plan (xl|[sml])|(xl|[sml]) plan)\b")
_TOP_UP = re.compile(r"\b(\d+) ?(?:gb|gigabytes?)\b")
_FREE = re.compile(r"\b((?<!feel )free|gratis|for nothing|costs? nothing|no (cost|charge))\b")
_DENIED = re.compile(r"\b(not|never|cannot|without|no plan)\b")
_MONEY = re.compile(r"\$ ?(\d+)|\b(\d+) ?(?:\$|dollars?\b|usd\b)")
_PLAIN = re.compile(r"(?<![\w.-])(\d{1,4})(?![\w-]|\.\d| ?(?:gb|gigabytes?)\b)")

# ------------------------------------------------------------------------------------ what is told

_REFUSAL = re.compile(
    r"\b(no(?! (problem|worr|doubt|need|idea|rush|longer|extra|hidden|fee|data|service|signal))|"
    r"not (possible|able|eligible|allowed|entitled)|cannot|unable|"
    r"will not (be )?(refund|credit|return|change|give)\w*|refuse|declined?|denied|rejected?)\b"
)
_PROMISE = re.compile(
    r"\b(refunded|credited|reimbursed)\b|"
    r"\b(will|shall|gladly|going to|let me|i|we) ((just|now|hereby|gladly|happily) )?"
    r"(refund|credit|reimburse|return)\b|"
    r"\b(get|gets|getting|receive|give|giving)\b.* (back|refund)\b(?! to you)"
)
_NO_PROMISE = re.compile(
    r"\b(no|not|never|cannot|unable|only|if|unless|would|want|wish|like|ask\w*|request\w*|whether|"
    r"why|refuse|declined?|rejected?)\b"
)
_UNBOUND = re.compile(
    r"\b(not|no longer|never)( \w+)? (bound|bind\w*)\b(?! (after|from))|(?<!feel )\bfree to\b"
)
_BACK = re.compile(r"\b(back|refund\w*|credit\w*|reimburse\w*|return\w*)\b")
_BILL = re.compile(
    r"\b(bills?|invoices?|total\w*|due|unpaid|overdue|outstanding|owed?|balance|debt|pay|payment)\b"
)
_NOT_OWED = re.compile(r"\b(not|never)( \w+)? (owe|due|unpaid|overdue|outstanding|\$?\d)")
_UNTIL = re.compile(
    r"\b(?:until|till|through|to|ends?|ending|expires?|last month|before)\b(?: [a-z]+){0,4} "
    r"(\d{4}-\d{2})\b"
)


@dataclass(frozen=True)
class Offer:
    """Something to buy, as ``plan:L`` or ``gb:5``; `priced`: with its true price."""

    what: str
    priced: bool


@dataclass(frozen=True)
class Heard:
    """What the customer understood.

    Attributes:
        commands: Commands of `phone.ACTIONS`, or ``pay``, in order.
        topics: What was asked: a name of `_TOPICS`, or a setting such as ``airplane``.
        offer: What the customer is asked to agree to; None for nothing.
        told: What the message tells, as in `Talk.told`.
        promise: Whether the message promises what a refusal would deny.
        unclear: Whether amounts, months or offers stand side by side, so that none was understood.
        overloaded: Whether there were too many numbers to follow; then nothing was told.
        small_talk: Whether the message is at least polite.
        anything_told: Whether there are numbers in the message, or a refusal.
    """

    commands: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    offer: Offer | None = None
    told: frozenset[str] = frozenset()
    promise: bool = False
    unclear: bool = False
    overloaded: bool = False
    small_talk: bool = False
    anything_told: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is nothing in it that the customer can answer."""
        asked = self.commands or self.topics or self.offer or self.unclear
        return not (asked or self.anything_told or self.promise or self.small_talk)


def understand(message: str) -> Heard:
    """Read a message as the scripted customer does; any text can be read."""
    text = _plain(message[:LONGEST])
    numbers = NUMBER.findall(text)
    if len(numbers) > MOST_NUMBERS:
        return Heard(overloaded=True)
    commands, topics = _requests(_RESTART.sub("restart", text))
    offer, unclear_offer = _offer(text)
    promise = _promises(text)
    refusal = bool(_REFUSAL.search(text)) and not promise
    told, unclear_facts = _told(text, refusal)
    return Heard(
        tuple(dict.fromkeys(commands)),
        tuple(dict.fromkeys(topics)) if offer is None else (),
        offer,
        told,
        promise,
        unclear_offer or unclear_facts,
        small_talk=bool(_SMALL_TALK.search(text)),
        anything_told=bool(numbers or _REFUSAL.search(text)),
    )


def _plain(message: str) -> str:
    """The message in small letters, with short forms and names of months written out."""
    text = unicodedata.normalize("NFKC", message).casefold().replace("\u2019", "'")
    for pattern, full in _SHORT:
        text = pattern.sub(full, text)
    return _MONTH.sub(lambda month: f"{month[2]}-{_MONTH_NAMES.index(month[1]) + 1:02d}", text)


def _sentences(text: str) -> list[str]:
    return re.findall(r"[^.!?;\n]+[.!?;\n]?", text)


def _clauses(sentence: str) -> list[str]:
    return re.split(r"[,:]|\band\b|\bthen\b|\bbut\b", sentence)


# ---------------------------------------------------------------------------------------- requests


def _requests(text: str) -> tuple[list[str], list[str]]:
    """Commands and topics, in order."""
    commands: list[str] = []
    topics: list[str] = []
    noun = ""
    for sentence in _sentences(text):
        question = sentence.endswith("?") and not _POLITE.search(sentence)
        noun = noun if _PRONOUN.search(sentence) else ""
        listed: list[str] = []  # things that wait for their on or off
        way = ""
        for clause in _clauses(sentence):
            if _NOT.search(clause):
                continue
            noun = _noun(clause) or noun
            if _only_lists(clause, noun):
                clause = f"{clause} {way}"
                listed += [] if way else [noun]
            command = _command(clause, noun)
            inquiry = _INQUIRY.search(clause) and not _ENSURE.search(clause)
            if command and not question and not inquiry:
                if noun in SWITCHES and command.startswith(noun):
                    way = command.split()[1]
                    commands += [f"{name} {way}" for name in listed]
                    listed = []
                commands.append(command)
            elif topic := _topic(clause, noun if command or question else ""):
                topics.append(topic)
    return commands, topics


def _noun(clause: str) -> str:
    return next((name for name, pattern in _NOUNS if pattern.search(clause)), "")


def _only_lists(clause: str, noun: str) -> bool:
    """Whether the clause names a switch and nothing that happens to it."""
    if noun not in SWITCHES or _noun(clause) != noun:
        return False
    rest = dict(_NOUNS)[noun].sub("", clause)
    return not re.search(r"\w", _BESIDE_NOUN.sub("", rest))


def _command(clause: str, noun: str) -> str | None:
    """The command that the clause would be, if it were an instruction."""
    if "restart" in clause:
        return "restart"
    if _PAY.search(clause):
        return "pay"
    for way, pattern in _WAYS.get(noun, ()):
        if pattern.search(clause):
            return f"{noun} {way}"
    if noun in SWITCHES:
        on, off = _ON.search(clause), _OFF.search(clause)
        if bool(on) != bool(off):
            return f"{noun} {'on' if on else 'off'}"
    return None


def _topic(clause: str, setting: str) -> str | None:
    """What the clause asks about; `setting` is the thing of a question such as "is data on?"."""
    for name, pattern in _TOPICS:
        if pattern.search(clause):
            return name
    return setting or None


# ---------------------------------------------------------------------------------- what is offered


def _offer(text: str) -> tuple[Offer | None, bool]:
    """What the customer is asked to agree to, and whether that is unclear.

    One plan or top-up and one price at most make an offer.
    """
    if not _ASK_TO_AGREE.search(text):
        return None, False
    pattern = _PLAN if _PLAN.search(text) else _TOP_UP
    names = {next(filter(None, match.groups())) for match in pattern.finditer(text)}
    if not names or _is_denied(text, pattern):
        return None, False
    about = [sentence for sentence in _sentences(text) if pattern.search(sentence)]
    prices = _amounts(text, _MONEY) or _amounts(" ".join(about), _PLAIN)
    if len(names) > 1 or len(prices) > 1 or _FREE.search(text):
        return None, True
    (name,) = names
    if pattern is _PLAN:
        if not prices:
            return None, False
        plan = plan_named(name.upper())
        return Offer(f"plan:{name.upper()}", plan is not None and prices == {plan.price}), False
    gb = int(name)
    return Offer(f"gb:{gb}", prices == {TOP_UPS.get(gb)}), False


def _is_denied(text: str, thing: re.Pattern[str]) -> bool:
    """Whether a clause about the thing or its price says no to it."""
    return any(
        _DENIED.search(clause) and (thing.search(clause) or _PLAIN.search(clause))
        for sentence in _sentences(text)
        for clause in _clauses(sentence)
    )


def _amounts(text: str, pattern: re.Pattern[str]) -> set[int]:
    return {int(next(filter(None, match.groups()))) for match in pattern.finditer(text)}


# ------------------------------------------------------------------------------------ what is told


def _promises(text: str) -> bool:
    """Whether the message promises money back, or says that no contract binds."""
    clauses = (clause for sentence in _sentences(text) for clause in _clauses(sentence))
    return bool(_UNBOUND.search(text)) or any(
        _PROMISE.search(clause) and not _NO_PROMISE.search(clause) for clause in clauses
    )


def _told(text: str, refusal: bool) -> tuple[frozenset[str], bool]:
    """What the message tells, and whether some of it is unclear.

    An amount is told together with what it is; in a refusal it is the bill's. Of several different
    amounts of a kind none is told.
    """
    facts = {"no"} if refusal else set()
    unclear = False
    found = list(_facts(text, refusal))
    for kind in ("bill", "back", "until"):
        values = {value for name, value in found if name == kind}
        if len(values) == 1:
            facts.add(f"{kind}:{values.pop()}")
        unclear = unclear or len(values) > 1
    return frozenset(facts), unclear


def _facts(text: str, refusal: bool) -> Iterator[tuple[str, str]]:
    """Kinds and values of what each sentence could tell."""
    for month in _UNTIL.findall(text):
        yield "until", month
    pattern = _MONEY if _MONEY.search(text) else _PLAIN
    for sentence in _sentences(text):
        if _NOT_OWED.search(sentence):
            continue
        for amount in _amounts(sentence, pattern):
            given = any(_BACK.search(one) and not _DENIED.search(one) for one in _clauses(sentence))
            if given and not refusal:
                yield "back", str(amount)
            if refusal or _BILL.search(sentence):
                yield "bill", str(amount)
