"""Predictions without a judge: honesty pays, and what needs no look at the state does not."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.claims.claims import claim
from vagentrl.claims.self_prediction import Said, prediction_values
from vagentrl_judges.exact_state import ExactState

Cells = tuple[int, ...]
"""The places of the player on a line, before each action and after the last."""
Speaker = Callable[[int, Cells, tuple[str, ...], int, random.Random], tuple[str, str]]
"""From the room, the places, the actions and the turn to an observation and a prediction."""


async def agreement(text: str, other: str) -> float:
    return (await ExactState()(claim(text, truth=other))).score


def see(room: int, place: int) -> str:
    return f"the room is {room}; the player is on cell {place}"


def batch(speak: Speaker, seed: int = 0) -> list[Said]:
    """Eight episodes of four turns in each of four rooms, with random steps."""
    rng, turns = random.Random(seed), []
    for episode in range(32):
        room, place, acted = episode % 4, 3, ()
        steps = [rng.choice((-1, 1)) for _ in range(4)]
        places = tuple(place + sum(steps[:n]) for n in range(5))
        actions = tuple("left" if step < 0 else "right" for step in steps)
        for number in range(4):
            said = speak(room, places, actions, number, rng)
            shown = f"{room} {places[number]}"
            turns.append(Said(episode, number, shown, acted, *said))
            acted = actions[number : number + 1]
    return turns


def mean(speak: Speaker) -> float:
    values = asyncio.run(prediction_values(batch(speak), agreement))
    known = [value for value in values if value is not None]
    assert len(known) > 32
    return sum(known) / len(known)


def honest(room: int, places: Cells, actions: tuple[str, ...], turn: int, rng: random.Random):
    return see(room, places[turn]), see(room, places[turn + 1])


def invented() -> Speaker:
    """Words that are invented as a prediction and repeated as the next observation."""
    last = {"word": ""}

    def speak(room: int, places: Cells, actions: tuple[str, ...], turn: int, rng: random.Random):
        seen, last["word"] = last["word"] or "x", f"the word is {rng.randrange(10**9)}"
        return seen, last["word"]

    return speak


GAMED: dict[str, Speaker] = {
    "a constant": lambda *_: ("all is well", "all is well"),
    "two constants in turn": lambda r, p, a, t, g: (f"it is {t % 2}", f"it is {(t + 1) % 2}"),
    "the number of the turn": lambda r, p, a, t, g: (f"turn {t}", f"turn {t + 1}"),
    "the last action": lambda r, p, a, t, g: (
        f"I went {a[t - 1] if t else 'nowhere'}", f"I went {a[t]}"
    ),
    "nothing changes": lambda r, p, a, t, g: (see(r, p[t]), see(r, p[t])),
    "invented words": invented(),
}  # fmt: skip


def test_an_honest_prediction_is_paid():
    assert mean(honest) > 0.3


@pytest.mark.parametrize("speak", GAMED.values(), ids=GAMED.keys())
def test_what_needs_no_look_at_the_state_earns_next_to_nothing(speak: Speaker):
    assert mean(speak) < 0.05


def test_the_value_is_trust_times_skill():
    # Two episodes are shown A, then B; a third one A, then C, after the same action. All see well.
    def told(episode: int, end: str) -> list[Said]:
        return [
            Said(episode, 0, "A", (), "it is A", f"it is {end}"),
            Said(episode, 1, end, ("go",), f"it is {end}", "it is over"),
        ]

    turns = [*told(0, "B"), *told(1, "B"), *told(2, "C")]
    values = asyncio.run(prediction_values(turns, agreement))
    # B is confirmed: agreement 1 with the other B, 0 with C. C has nobody who confirms it, and the
    # last predictions have no next turn.
    assert values == [1.0, None, 1.0, None, None, None]


def test_a_malformed_next_reply_leaves_the_value_unknown():
    turns = [
        Said(0, 0, "A", (), "it is A", "it is B"),
        Said(0, 1, "B", ("go",), None, None),
        Said(1, 0, "A", (), "it is A", "it is B"),
    ]
    assert asyncio.run(prediction_values(turns, agreement)) == [None, None, None]
