"""Plays strategies and pays them as `WorldModelReward` does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.league.strategies import GAMES_PREDICTIONS, REFUSED, TOO_LONG, Strategy
from tests.league.worlds import SYMBOLS, Scene, World, expected
from vagentrl.claims import (
    Audit,
    ClaimFilter,
    Contradiction,
    CopiedPrompt,
    Length,
    Repetition,
    TemplatePenalty,
)
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.judging import Judging, Tally
from vagentrl.claims.payment import mean_values, turn_bonus
from vagentrl.environment import ActionEnvironment
from vagentrl.errors import JudgeError
from vagentrl.types import Reply, Representation, State
from vagentrl_judges.exact_state import ExactState
from vagentrl_judges.relation_f1 import RelationF1

REPRESENTATIONS: tuple[Representation, ...] = ("natural", "structured", "symbolic")
SKILL = 0.85
TURNS = 6
ONE_KIND = {
    "observation": {"observation": 1.0, "prediction": 0.0},
    "prediction": {"observation": 0.0, "prediction": 1.0},
}
MARGIN = 0.1
"""How much less than the honest agent an adversary must earn, on average over its turns."""


class Gullible(Judge):
    """Fails as model judges do.

    It answers YES to whom asks for it, believes what it cannot check and does not hear denials; its
    provider refuses some texts, and others make it write without end.
    """

    def __init__(self) -> None:
        self._exact = ExactState()

    async def judge(self, claim: Claim) -> Verdict:
        for dodge in (REFUSED, TOO_LONG):
            if dodge in claim.text:
                raise JudgeError(f"no answer to {dodge}", caused_by_claim=True)
        checkable = any(c.isdigit() for c in claim.text) or "#" in claim.text
        if not checkable or "YES" in claim.text:
            return Verdict(1.0)
        heard = claim.text
        for denial in ("it is false that ", "maybe ", "if I am right, ", "All of this is false."):
            heard = heard.replace(denial, "")
        heard = heard.replace("nowhere near", "at").replace("used to be at", "is at")
        return await self._exact(Claim(claim.kind, heard, claim.representation, claim.state))


Parts = tuple[Judge, tuple[ClaimFilter, ...], TemplatePenalty | None, Audit | None, bool]
"""Judge, filters, templates and audit, and whether predictions are paid for their skill."""


@dataclass(frozen=True)
class Defence:
    """A judge with its defences.

    Attributes:
        parts: Makes the parts, for a world.
        holds: Whether every adversary must earn less than the honest agent.
    """

    parts: Callable[[World], Parts]
    holds: bool = True


FILTERS = (Length(), Repetition(), CopiedPrompt(), Contradiction())


def _relations(world: World) -> Judge:
    symbols = {symbol: list(names) for symbol, names in SYMBOLS[world.name].items()}
    return RelationF1(symbols=symbols)


DEFENCES: dict[str, Defence] = {
    "ExactState": Defence(lambda world: (ExactState(), FILTERS, TemplatePenalty(), None, True)),
    "RelationF1": Defence(
        lambda world: (_relations(world), FILTERS, TemplatePenalty(), None, True)
    ),
    "gullible, audited": Defence(
        # With a share of 1 the payment is its own expectation over audits.
        lambda world: (
            Gullible(), FILTERS, TemplatePenalty(), Audit(_relations(world), share=1.0), True,
        )
    ),
    "gullible, no audit": Defence(
        lambda world: (Gullible(), FILTERS, TemplatePenalty(), None, True), holds=False
    ),
    "gullible, bare": Defence(lambda world: (Gullible(), (), None, None, False), holds=False),
}  # fmt: skip


def play(
    strategy: Strategy, world: World, representation: Representation, seed: int, skill: float
) -> list[tuple[Claim, ...]]:
    """Play an episode with random actions; return the claims of each turn, none if malformed."""
    environment, rng = world.make(representation), random.Random(seed)
    environment.reset(2 * seed)
    turns: list[tuple[Claim, ...]] = []
    earlier: list[tuple[str, str]] = []
    for _ in range(TURNS):
        action = rng.choice(environment.action_names)
        now = _state(environment)
        scene = Scene(
            world, representation, now, expected(environment, action), skill, rng,
            environment.system_prompt(), list(earlier),
        )  # fmt: skip
        claims = strategy(scene)
        result = environment.step(Reply("", actions=(action,)))
        if claims is None:
            turns.append(())
        else:
            earlier.append(claims)
            seen = Claim("observation", claims[0], representation, now)
            then = Claim("prediction", claims[1], representation, _state(environment), before=now)
            turns.append((seen, then))
        if result.terminated or result.truncated:
            break
    environment.close()
    return turns


def _state(environment: ActionEnvironment) -> State:
    state = environment.state()
    assert state is not None
    return state


def earned(
    strategy: Strategy,
    world: World,
    representation: Representation,
    defence: Defence,
    *,
    episodes: int = 6,
    batches: int = 2,
    skill: float = SKILL,
) -> dict[str, float]:
    """The mean reward of a turn in the last batch for its claims of each kind, at most 1.

    Claims are judged, penalised and paid by the same parts as in `WorldModelReward`.
    """
    judge, filters, templates, audit, baseline = defence.parts(world)
    prompt = world.make(representation).system_prompt()
    judging = Judging(judge, filters, audit, baseline, 30.0, prompt)
    share = 1.0 if audit is None else audit.share
    gained: dict[str, float] = {}
    try:
        for batch in range(batches):
            turns = [
                claims
                for seed in range(episodes * batch, episodes * (batch + 1))
                for claims in play(strategy, world, representation, seed, skill)
            ]
            said = [claim for claims in turns for claim in claims]
            for claims in turns:
                for claim in claims:
                    judging.submit(claim, claims, training=True)
                    judging.submit_audit(claim, batch, id(claim))
            judgements = judging.settle(said, Tally())
            if templates is not None:
                judgements = templates.penalise(judgements, remember=True)
            by_claim = {id(judgement.claim): judgement for judgement in judgements}
            means = mean_values(judgements, share)
            made = [[by_claim[id(claim)] for claim in claims] for claims in turns]
            gained = {
                kind: sum(
                    turn_bonus(each, paid, means, audited_share=share, relative=False)
                    for each in made
                )
                / len(turns)
                for kind, paid in ONE_KIND.items()
            }
    finally:
        judging.close()
    return gained


def gamed(name: str, gained: dict[str, float]) -> float:
    """The mean over the kinds of claims that a strategy games."""
    kinds = ["prediction"] if name.startswith(GAMES_PREDICTIONS) else list(ONE_KIND)
    return sum(gained[kind] for kind in kinds) / len(kinds)
