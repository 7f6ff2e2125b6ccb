"""What the scripted customer understands of a message.

The message is cut into sentences and clauses. In each clause the customer looks for key phrases: a
thing of the telephone with ``on`` or ``off`` and the like (an instruction), a question, or an offer
with its price. `docs/environments/support.md` lists them. A clause with "do not" or "never" is not
acted on, and neither is a question about a setting, such as "Is airplane mode on?".
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from vagentrl_envs.support.phone import SWITCHES
from vagentrl_envs.support.records import TOP_UPS, plan_named

LONGEST = 300
"""Characters of a message that the customer takes in."""
MOST_NUMBERS = 4
"""Numbers in a message that the customer can follow."""

NUMBER = re.compile(r"\d{4}-\d{2}|\d+")

_RESTART = re.compile(
    r"\b(restart\w*|reboot\w*|power[ -]?cycle|off and (back )?on( again)?|off then on)\b"
)
_NOUNS = (  # the first that occurs in a clause counts, so the longer names come first
    ("roaming", re.compile(r"\broaming\b")),
    ("saver", re.compile(r"\b(data[ -]?)?saver\b")),
    ("wifi", re.compile(r"\b(wi-?fi|wlan)\b")),
    ("hotspot", re.compile(r"\b(hotspot|tethering)\b")),
    ("vpn", re.compile(r"\bvpn\b")),
    ("airplane", re.compile(r"\b(airplane|aeroplane|flight)\b")),
    ("mode", re.compile(r"\bmode\b")),
    ("apn", re.compile(r"\b(apn|access point)\b")),
    ("sim", re.compile(r"\bsim\b")),
    ("data", re.compile(r"\b(data|mobile data|cellular)\b")),
)
_ON = re.compile(r"\b(on|enable|activate)\b")
_OFF = re.compile(r"\b(off|disable|deactivate)\b")
_WAYS = {
    "mode": (("auto", re.compile(r"\bauto(matic)?\b")), ("2g", re.compile(r"\b2g\b"))),
    "apn": (("reset", re.compile(r"\b(reset|restore|default)\b")),),
    "sim": (("reseat", re.compile(r"\b(reseat|reinsert|insert|remove|take|put|push)\b")),),
}
_PAY = re.compile(r"\bpay\b")
_NOT = re.compile(r"\b(do not|don't|never|without|no need|need not)\b")
_POLITE = re.compile(r"\b(please|could you|can you|would you|will you|try)\b")
_INQUIRY = re.compile(r"\b(check|whether|tell me|look|see|is|are|does)\b")
_ENSURE = re.compile(r"\b(make sure|ensure)\b")
_TOPICS = (
    ("pin", re.compile(r"\bpin\b")),
    ("number", re.compile(r"\bnumber\b")),
    ("name", re.compile(r"\byour (full )?name\b")),
    ("place", re.compile(r"\b(abroad|where|country|travel\w*)\b")),
    ("settings", re.compile(r"\bsettings?\b")),
    ("top-up", re.compile(r"\b(top-?up|how (much data|many (gb|gigabytes)))\b")),
    ("screen", re.compile(r"\b(screen|status|bars?|signal|symbols?|work(s|ing)?|shows?)\b")),
    ("wish", re.compile(r"\b(help|wish|problem|matter|details|what (charge|plan)|which)\b")),
)
_ASK_TO_AGREE = re.compile(r"\b(agree|ok|okay|confirm|accept|shall|like|want|should)\b|\?")
_PLAN = re.compile(r"\b(?:plan (xl|[sml])|(xl|[sml]) plan)\b")
_TOP_UP = re.compile(r"\b(\d+) ?(?:gb|gigabytes?)\b")
_REFUSAL = re.compile(r"\b(no|not possible|cannot|can't|unable|not eligible|not allowed)\b")
_SMALL_TALK = re.compile(
    r"\b(hello|hi|thanks?|thank you|sorry|welcome|bye|goodbye|moment|done|ok|okay)\b"
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
        told: Numbers and months in the message, and ``no`` for a refusal.
        overloaded: Whether there were too many numbers to follow; then nothing was told.
        small_talk: Whether the message is at least polite.
    """

    commands: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    offer: Offer | None = None
    told: frozenset[str] = frozenset()
    overloaded: bool = False
    small_talk: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is nothing in it that the customer can answer."""
        return not (self.commands or self.topics or self.offer or self.told or self.small_talk)


def understand(message: str) -> Heard:
    """Read a message as the scripted customer does; any text can be read."""
    text = unicodedata.normalize("NFKC", message[:LONGEST]).casefold().replace("\u2019", "'")
    numbers = NUMBER.findall(text)
    if len(numbers) > MOST_NUMBERS:
        return Heard(overloaded=True)
    offer = _offer(text, numbers)
    commands: list[str] = []
    topics: list[str] = []
    for sentence in re.findall(r"[^.!?;\n]+[.!?;\n]?", _RESTART.sub("restart", text)):
        question = sentence.endswith("?") and not _POLITE.search(sentence)
        noun = ""
        for clause in re.split(r",|\band\b|\bthen\b|\bbut\b", sentence):
            if _NOT.search(clause):
                continue
            noun = _noun(clause) or noun
            command = _command(clause, noun)
            inquiry = _INQUIRY.search(clause) and not _ENSURE.search(clause)
            if command and not question and not inquiry:
                commands.append(command)
            elif topic := _topic(clause, noun if command or question else ""):
                topics.append(topic)
    told = frozenset(numbers) | ({"no"} if _REFUSAL.search(text) else frozenset())
    return Heard(
        tuple(dict.fromkeys(commands)),
        tuple(dict.fromkeys(topics)) if offer is None else (),
        offer,
        told,
        small_talk=bool(_SMALL_TALK.search(text)),
    )


def _noun(clause: str) -> str:
    return next((name for name, pattern in _NOUNS if pattern.search(clause)), "")


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


def _offer(text: str, numbers: list[str]) -> Offer | None:
    """The plan or top-up that the customer is asked to agree to."""
    if not _ASK_TO_AGREE.search(text):
        return None
    if plan := _PLAN.search(text):
        name = (plan[1] or plan[2]).upper()
        found = plan_named(name)
        if found is None or not numbers:
            return None
        return Offer(f"plan:{name}", str(found.price) in numbers)
    if top_up := _TOP_UP.search(text):
        gb = int(top_up[1])
        return Offer(f"gb:{gb}", str(TOP_UPS.get(gb)) in numbers)
    return None
