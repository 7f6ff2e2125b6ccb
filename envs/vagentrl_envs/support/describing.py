"""The true state in the three representations."""

from __future__ import annotations

import json

from vagentrl.types import State
from vagentrl_envs.support.phone import SWITCHES, World


def describe(world: World, verified: bool = False, turns: int = 0) -> State:
    """The telephone and its line; the other records are as the tools show them.

    Args:
        world: The world to describe.
        verified: Whether the caller is verified.
        turns: Number of replies so far.
    """
    phone, line = world.phone, world.line
    fields = {
        **{name: _on(getattr(phone, name)) for name in SWITCHES},
        "mode": phone.mode,
        "apn": phone.apn,
        "sim": phone.sim,
        "restart": "needed" if phone.stale else "not needed",
        "place": "abroad" if phone.abroad else "home",
        "screen": world.screen(),
        "plan": line.plan,
        "status": f"{line.status} {line.hold}".strip(),
        "allowed": _on(line.roaming),
        "used": f"{line.used_gb}/{line.limit_gb}",
        "registered": "yes" if line.registered else "no",
        "bound": line.bound_until,
        "verified": "yes" if verified else "no",
        "turn": str(turns),
    }
    switches = ", ".join(f"{words} is {fields[name]}" for name, words in SWITCHES.items())
    return State(
        natural=(
            f"on the phone {switches}, the network mode {phone.mode}, the APN "
            f"{phone.apn}, the SIM card {phone.sim}, a restart {fields['restart']}; it is "
            f"{'abroad' if phone.abroad else 'at home'} and shows {fields['screen']}; the line "
            f"has plan {line.plan}, is {fields['status']}, roaming is {fields['allowed']}, "
            f"{line.used_gb} of {line.limit_gb} GB are used, it is "
            f"{'' if line.registered else 'not '}registered and bound until {line.bound_until}; "
            f"the caller is {'' if verified else 'not '}verified; this is turn {turns}"
        ),
        structured=json.dumps(fields, separators=(",", ":")),
        symbolic="\n".join(f"{name}={value}" for name, value in fields.items()),
    )


def _on(switch: bool) -> str:
    return "on" if switch else "off"
