"""Stored trajectories to test the viewer with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests import toy
from vagentrl.types import Claim, Observation, State, Trajectory
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.reading import FOLDER
from vagentrl.viewer.records import RowWriter, StoredSplit, TokenScores

pytest.importorskip("pyarrow")  # skips the tests that import this module

HOSTILE = (
    "<script>window.broken = 1</script></script><svg onload='window.broken = 2'>"
    "<img src=x onerror='window.broken = 3'>&lt;b&gt;&quot;\u2028\u202eevil\u202c\x00\x1b[31m"
)
CLAIM = Claim("observation", "two left", "natural", State("3 left", "{}", "###"))


def name_tokens(ids: list[int]) -> list[str]:
    return [f"<{id}>" for id in ids]


def full_trajectory() -> Trajectory:
    """One turn in which every field has a value of its own."""
    played = toy.play([toy.GO], seed=4, group_id=3, images=True)
    [turn] = played.turns
    turn = replace(
        turn,
        observation=replace(turn.observation, hint="Say go."),
        reply=replace(turn.reply, thought="one is left", problem="too short"),
        finish="length",
        claims=(CLAIM,),
        scores={"observation": 0.5},
        reasons={"observation": "half right"},
        bonus=0.25,
        continued_value=0.75,
    )
    end = Observation("<image>over", (Image.new("RGB", (2, 3), "red"),))
    return replace(
        played,
        turns=(turn,),
        final_observation=end,
        transition_seed=11,
        earlier_turns=2,
        earlier_reward=-0.5,
        error="EnvError: no water",
        stop="failed",
    )


def full_scores(tokens: int) -> list[TokenScores]:
    """Scores that differ by kind, with one that is not finite."""
    steps = [place / 4 for place in range(tokens)]
    return [
        TokenScores(
            actor_logprobs=[-1.0 - step for step in steps],
            reference_logprobs=[-2.0 - step for step in steps],
            entropies=steps,
            values=[float("nan"), *steps[1:]],
            advantages=[step - 1 for step in steps],
        )
    ]


def store(
    run: Path,
    trajectories: Sequence[Trajectory],
    *,
    split: StoredSplit = "train",
    iteration: int = 0,
    max_bytes: float = 1e9,
) -> Path:
    """Store trajectories as members of their groups; returns the run's folder."""
    writer, members = RowWriter(name_tokens), dict[int, int]()
    for trajectory in trajectories:
        member = members[trajectory.group_id] = members.get(trajectory.group_id, -1) + 1
        writer.add(trajectory, split=split, iteration=iteration, member=member)
    folder = TrajectoryFolder(run / FOLDER, max_bytes)
    folder.write(split, iteration, writer.rows, writer.images)
    return run


def hostile_trajectory(text: str = HOSTILE) -> Trajectory:
    """A trajectory in which whoever can write a text writes this one."""
    played = toy.play([toy.GO], seed=4)
    [turn] = played.turns
    reply: Any = replace(turn.reply, text=text, thought=text, actions=(text, text), problem=text)
    turn = replace(
        turn,
        observation=Observation(text, hint=text),
        reply=reply,
        metrics={text: 1.0, "__proto__": 2.0},
        claims=(replace(CLAIM, text=text, state=State(text, text, text)),),
        scores={"observation": 0.0},
        reasons={"observation": text},
    )
    return replace(played, turns=(turn,), environment=text, error=text)
