"""A reward for predictions that needs no judge and no true state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vagentrl import ranks
from vagentrl.claims.judge import Judge
from vagentrl.claims.self_prediction import Said, prediction_values
from vagentrl.errors import ConfigError, JudgeError
from vagentrl.event_loops import run_to_the_end
from vagentrl.modules.callback import AgentCallback
from vagentrl.types import Claim, Observation, Representation, State, Trajectory

if TYPE_CHECKING:
    from vagentrl.modules.agent import AgentModule


class SelfPredictionReward(AgentCallback):
    """Rewards a prediction with what the agent itself says it sees in the next turn.

    No judge reads the true state, so this also works in environments without `state()`, as long as
    replies make both kinds of claims (`WorldModeling`). How a prediction is valued, and why
    inventing words or writing the same in every turn earns nothing, is written down in
    `vagentrl.claims.self_prediction`. Predictions whose next observation no other episode of the
    batch can confirm earn nothing, or a malformed next reply would hide a wrong prediction; groups
    of several episodes from the same start make such predictions rarer.

    Args:
        compare: Compares two of the agent's own texts; a rule judge, such as
            ``vagentrl_judges.exact_state.ExactState``. It gets one of them as the claim and the
            other one as the state.
        representation: How the agent was asked to write states.
        coefficient: Reward of a prediction with a value of 1.
        relative: Subtract the batch's mean from every turn. A longer episode then earns no more by
            being longer.
    """

    def __init__(
        self,
        compare: Judge,
        representation: Representation = "natural",
        coefficient: float = 0.5,
        relative: bool = False,
    ) -> None:
        if coefficient < 0:
            raise ConfigError(
                f"SelfPredictionReward.coefficient is {coefficient}, which would punish right "
                "predictions; give 0 or more"
            )
        self.compare = compare
        self.representation: Representation = representation
        self.coefficient = coefficient
        self.relative = relative
        self._report: dict[str, float] = {}

    def on_trajectories(
        self, agent: AgentModule, trajectories: list[Trajectory]
    ) -> list[Trajectory]:
        mine = [
            ((ranks.rank(), number), _said(trajectory))
            for number, trajectory in enumerate(trajectories)
        ]
        everyones = ranks.gather(mine)
        turns = [
            replace(said, episode=number)
            for number, (_, each) in enumerate(everyones)
            for said in each
        ]
        values = run_to_the_end(lambda: prediction_values(turns, self._agreement))
        known = [value for value in values if value is not None]
        predictions = sum(turn.prediction is not None for turn in turns)
        self._report = {
            "rollout/self_prediction": sum(known) / max(len(known), 1),
            "rollout/self_prediction_known": len(known) / max(predictions, 1),
        }
        mean = sum(known) / len(turns) if self.relative and turns else 0.0
        rest = iter(values)
        worth = {key: [next(rest) for _ in each] for key, each in everyones}
        return [
            self._rewarded(trajectory, worth[key], mean)
            for trajectory, (key, _) in zip(trajectories, mine, strict=True)
        ]

    def on_report(self, agent: AgentModule, report: dict[str, float]) -> None:
        report |= self._report

    def _rewarded(
        self, trajectory: Trajectory, values: Sequence[float | None], mean: float
    ) -> Trajectory:
        turns = [
            replace(turn, bonus=turn.bonus + self.coefficient * ((value or 0.0) - mean))
            for turn, value in zip(trajectory.turns, values, strict=True)
        ]
        return replace(trajectory, turns=tuple(turns))

    async def _agreement(self, text: str, other: str) -> float:
        state = State(other, other, other)
        claim = Claim("observation", text, self.representation, state)
        try:
            return (await self.compare(claim)).score
        except JudgeError:  # the agent's own text is no state in this representation
            return 0.0


def _said(trajectory: Trajectory) -> list[Said]:
    """What the agent was shown and said in each turn of an episode."""
    said, acted = [], ()
    for number, turn in enumerate(trajectory.turns, trajectory.earlier_turns):
        reply = turn.reply
        claims = (None, None)
        if reply.problem is None:
            claims = (reply.observation_claim, reply.prediction_claim)
        said.append(Said(0, number, _key(trajectory, turn.observation), acted, *claims))
        acted = reply.actions
    return said


def _key(trajectory: Trajectory, observation: Observation) -> str:
    """A hash of what the environment showed, without hints."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{trajectory.environment}\n{observation.text}".encode(errors="backslashreplace"))
    for image in observation.images:
        digest.update(f"{image.mode} {image.size}".encode() + image.tobytes())
    return digest.hexdigest()
