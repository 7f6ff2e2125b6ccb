"""Writes episodes as text."""

from __future__ import annotations

from textwrap import indent

from vagentrl.types import Trajectory, Turn

MOST_TURNS = 24
"""Maximum number of turns of a transcript; the middle of a longer episode is left out."""
MOST_CHARACTERS = 2000
"""Maximum length of each text; the middle of a longer one is left out."""


def transcript(trajectory: Trajectory) -> str:
    """An episode in Markdown: what the agent saw, was advised, said, claimed and earned.

    Observations and replies stand in code blocks, so nothing in them is taken for markup.
    """
    first = trajectory.earlier_turns + 1
    parts = [_turn(turn, number) for number, turn in enumerate(trajectory.turns, first)]
    if (left_out := len(parts) - MOST_TURNS) > 0:
        half = MOST_TURNS // 2
        gap = f"*turns {first + half} to {first + half + left_out - 1} are left out*"
        parts = [*parts[:half], gap, *parts[-half:]]
    if trajectory.final_observation is not None:
        parts.append(f"**{trajectory.stop}**\n\n{_block(trajectory.final_observation.text)}")
    return "\n\n".join([f"**{episode_title(trajectory)}**", *parts]) + "\n"


def episode_title(trajectory: Trajectory) -> str:
    """A line that identifies an episode and says how it ended."""
    title = (
        f"environment {trajectory.environment}, seed {trajectory.seed}, group "
        f"{trajectory.group_id}{_versions(trajectory)}: {trajectory.stop}, "
        f"{'success' if trajectory.success else 'no success'}, "
        f"return {trajectory.total_reward:+.2f}"
    )
    return title if trajectory.error is None else f"{title}, {trajectory.error}"


def _versions(trajectory: Trajectory) -> str:
    """The range of the versions of the weights that sampled the turns."""
    versions = sorted({turn.policy_version for turn in trajectory.turns})
    if not versions:
        return ""
    last = f" to {versions[-1]}" if len(versions) > 1 else ""
    return f", policy version {versions[0]}{last}"


def _turn(turn: Turn, number: int) -> str:
    bonus = f", bonus {turn.bonus:+.2f}" if turn.bonus else ""
    cut = ", cut off by the token limit" if turn.finish == "length" else ""
    problem = turn.reply.problem
    blocks = [
        f"**turn {number}**: reward {turn.reward:+.2f}{bonus}",
        _block(turn.observation.text),
        *([f"hint\n\n{_block(turn.observation.hint)}"] if turn.observation.hint else []),
        f"reply{cut}\n\n{_block(turn.reply.text)}",
        # a problem may quote the reply, so it is shown as code, too
        *([] if problem is None else [f"malformed\n\n{_block(problem)}"]),
        *_claims(turn),
    ]
    return "\n\n".join(blocks)


def _claims(turn: Turn) -> list[str]:
    """Each claim with the truth and the verdict."""
    lines = []
    for claim in turn.claims:
        score = turn.scores.get(claim.kind)
        verdict = "no verdict" if score is None else f"score {score:.2f}"
        told = f"claims: {claim.text}\ntruth:  {claim.truth}"
        lines.append(f"{claim.kind} claim: {verdict}\n\n{_block(told)}")
    return lines


def _block(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[… {left_out} characters left out …]\n{text[-half:]}"
    # Unlike with a fence, no text can end an indented block: each of its lines is indented.
    return indent("\n".join(text.splitlines()) or "(nothing)", "    ", lambda line: True)
