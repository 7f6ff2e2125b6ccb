"""The customer's telephone: its settings, what its screen shows, and what the customer can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vagentrl_envs.support.records import Database, Line

SWITCHES = {
    "airplane": "airplane mode",
    "wifi": "Wi-Fi",
    "hotspot": "the hotspot",
    "data": "mobile data",
    "saver": "the data saver",
    "vpn": "the VPN",
    "roaming": "data roaming",
}
"""Settings that are on or off, with their names in a sentence."""


@dataclass(frozen=True)
class Phone:
    """The state of a telephone.

    Attributes:
        airplane: Whether airplane mode is on.
        wifi: Whether Wi-Fi is on. It has no effect: it is as the customer likes it.
        hotspot: Whether the hotspot is on. It has no effect either.
        data: Whether mobile data is on.
        saver: Whether the data saver is on, which makes data slow.
        vpn: Whether the VPN is on, which lets no data through.
        roaming: Whether data roaming is on; without effect at home.
        mode: The network mode: ``auto``, or ``2g``, which is too slow for data.
        apn: Whether the access point is the company's.
        sim: Whether the SIM card sits properly in its slot.
        stale: Whether the telephone must be restarted to learn of a change.
        abroad: Whether the telephone is in another country. The customer cannot change this.
    """

    airplane: bool = False
    wifi: bool = False
    hotspot: bool = False
    data: bool = True
    saver: bool = False
    vpn: bool = False
    roaming: bool = False
    mode: Literal["auto", "2g"] = "auto"
    apn: Literal["right", "wrong"] = "right"
    sim: Literal["in", "loose"] = "in"
    stale: bool = False
    abroad: bool = False

    def settings(self) -> str:
        """What the settings menu shows; it says nothing about the SIM card."""
        switches = (f"{name} {_switch(getattr(self, name))}" for name in SWITCHES)
        return ", ".join((*switches, f"mode {self.mode}", f"apn {self.apn}"))


@dataclass(frozen=True)
class PhoneAction:
    """Something that the customer can do with the telephone, in the words that stand for it.

    Attributes:
        command: The shortest wording that the scripted user understands.
        sentence: The same as a polite sentence.
        did: What the customer says afterwards.
    """

    command: str
    sentence: str
    did: str


ACTIONS = {
    action.command: action
    for action in (
        *(
            PhoneAction(f"{name} {way}", f"Please turn {words} {way}.", f"I turned {words} {way}")
            for name, words in SWITCHES.items()
            for way in ("on", "off")
        ),
        PhoneAction(
            "mode auto",
            "Please set the network mode to automatic.",
            "I set the network mode to automatic",
        ),
        PhoneAction(
            "mode 2g", "Please set the network mode to 2G.", "I set the network mode to 2G"
        ),
        PhoneAction("apn reset", "Please reset the APN.", "I reset the APN"),
        PhoneAction("sim reseat", "Please reseat the SIM card.", "I reseated the SIM card"),
        PhoneAction("restart", "Please restart your phone.", "I restarted the phone"),
    )
}
"""All actions by command. Paying is no action of the telephone alone: see `World.pay`."""


def operate(phone: Phone, command: str) -> Phone:
    """The telephone after one of `ACTIONS`."""
    match command.split():
        case [setting, ("on" | "off") as way]:
            return replace(phone, **{setting: way == "on"})
        case ["mode", mode]:
            return replace(phone, mode=mode)
        case ["apn", "reset"]:
            # A new access point takes effect at the next start.
            return phone if phone.apn == "right" else replace(phone, apn="right", stale=True)
        case ["sim", "reseat"]:
            return replace(phone, sim="in")
        case _:
            return replace(phone, stale=False)


def repairs(phone: Phone, goal: Phone) -> list[str]:
    """The commands that turn `phone` into `goal`; a restart comes last."""
    wrong = [name for name in SWITCHES if getattr(phone, name) != getattr(goal, name)]
    commands = [f"{name} {_switch(getattr(goal, name))}" for name in wrong]
    if phone.sim != goal.sim:
        commands.append("sim reseat")
    if phone.mode != goal.mode:
        commands.append(f"mode {goal.mode}")
    if phone.apn != goal.apn:
        commands.append("apn reset")
    if phone.stale or phone.apn != goal.apn:
        commands.append("restart")
    return commands


def is_needless(command: str, phone: Phone, goal: Phone) -> bool:
    """Whether a command brings the telephone no nearer to `goal`.

    A setting that is right already stays as it is, and one that was right is spoiled: both are
    needless. Undoing a needless change is not. A restart is never needless: it is a usual request.
    """
    if command == "restart":
        return False
    return len(repairs(operate(phone, command), goal)) >= len(repairs(phone, goal))


@dataclass(frozen=True)
class World:
    """Both databases: the company's and the customer's telephone.

    Attributes:
        database: The company's records.
        phone: The customer's telephone.
        number: The number of the line that the telephone uses.
        transferred: Why the case was handed to a person; empty if it was not.
    """

    database: Database
    phone: Phone
    number: str
    transferred: str = ""

    @property
    def line(self) -> Line:
        """The line that the telephone uses."""
        line = self.database.line(self.number)
        assert line is not None, "every task draws the line of its number"
        return line

    def screen(self) -> str:
        """What the telephone shows, the most visible thing alone.

        One fault can hide another: a telephone in airplane mode does not say that its SIM card is
        loose.
        """
        phone, line = self.phone, self.line
        if phone.airplane:
            return "airplane symbol"
        if phone.sim == "loose":
            return "no SIM"
        if line.status != "active" or not line.registered or phone.stale:
            return "no service"
        if phone.abroad and not line.roaming:
            return "no service"
        usable = phone.data and not phone.vpn and phone.apn == "right"
        usable = usable and (phone.roaming or not phone.abroad)
        if not usable or line.used_gb >= line.limit_gb:
            return "signal, no data"
        return "data is slow" if phone.mode == "2g" or phone.saver else "data works"

    def with_phone(self, phone: Phone) -> World:
        return replace(self, phone=phone)

    def pay(self) -> World | None:
        """The world after the customer paid the requested bill; None without a request."""
        for bill in self.database.bills_of(self.line.customer):
            if bill.status == "requested":
                paid = replace(bill, status="paid")
                return replace(self, database=self.database.with_bill(paid))
        return None


def _switch(on: bool) -> str:
    return "on" if on else "off"
