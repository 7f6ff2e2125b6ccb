"""The defences against reward hacking: a constant description must not earn more than honesty.

The judge is scripted to fail as model judges do: it checks precise statements and accepts vague
ones. Nothing is trained; the tests compare the rewards of a constant and of an honest policy.
"""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vagentrl.callbacks import WorldModelReward
from vagentrl.claims import (
    Audit,
    Contradiction,
    CopiedPrompt,
    JudgementLog,
    Length,
    Repetition,
    TemplatePenalty,
    Unchanged,
)
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.formats import WorldModeling
from vagentrl.modules.rollouts import Rollouts
from vagentrl.rollout.iteration import Iteration
from vagentrl.rollout.source import TRAIN
from vagentrl.rollout.workers import WorkerPool, step
from vagentrl.types import Prompt, Reply, State, Trajectory, Turn
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.exact_state import ExactState

VAGUE = "the player is near the box; the box is near the target; the target is in the room"
VAGUE_AFTER = "the player is closer; the box is closer to the target; the target is still there"

Policy = Callable[[str, random.Random], str]
"""Maps the true state in words to the policy's claim."""


class GullibleJudge(Judge):
    """Checks clauses with numbers against the truth and accepts all others."""

    async def judge(self, claim: Claim) -> Verdict:
        true = set(claim.truth.split("; "))
        said = claim.text.split("; ")
        fine = sum(clause in true or not any(map(str.isdigit, clause)) for clause in said)
        return Verdict(fine / len(said))


def honest(truth: str, rng: random.Random) -> str:
    """Describe the true state, with an error in 30 % of the clauses."""
    clauses = truth.split("; ")
    return "; ".join(c if rng.random() < 0.7 else f"{c} or {rng.randint(2, 9)}" for c in clauses)


def constant(truth: str, rng: random.Random) -> str:
    return VAGUE


def room() -> Sokoban:
    return Sokoban(format=WorldModeling("natural"), observation="text", turn_limit=6)


def play(policies: tuple[Policy, Policy], seed: int) -> Trajectory:
    """Play a random walk; the first policy writes observations, the second predictions."""
    env, rng, turns = room(), random.Random(seed), []
    observation, over = env.reset(2 * seed), False
    while not over:
        twin = room()
        twin.start_from(env.room())
        action = rng.choice(env.action_names)
        twin.step(Reply("", actions=(action,)))
        now, then = (_words(each.state()) for each in (env, twin))
        reply = env.format.parse(
            f"<think><observation>{policies[0](now, rng)}</observation>"
            f"<prediction>{policies[1](then, rng)}</prediction></think><answer>{action}</answer>"
        )
        result, claims = step(env, reply)
        turns.append(
            Turn(
                observation, Prompt((1,)), (1,), (0.0,), reply, result.reward, "stop", claims=claims
            )
        )
        observation, over = result.observation, result.terminated or result.truncated
    return Trajectory(TRAIN, seed, seed, tuple(turns), "truncated")


def _words(state: State | None) -> str:
    assert state is not None
    return state.natural


def earned(policies: tuple[Policy, Policy], folder: Path, **defences: Any) -> float:
    """Return the mean reward for the claims of a turn in the last of three batches."""
    callback = WorldModelReward(GullibleJudge(), **{"journal": None, **defences})
    pools = {TRAIN: WorkerPool(room, TRAIN)}
    data: Any = Rollouts()
    data.collector, data.worlds = SimpleNamespace(pools=pools), tuple(pools)
    trainer: Any = SimpleNamespace(
        datamodule=data,
        state=SimpleNamespace(fn="fit"),
        is_global_zero=True,
        log_dir=str(folder),
    )
    agent: Any = SimpleNamespace(trainer=trainer, current=Iteration(0))
    callback.setup(trainer, agent, "fit")
    turns: list[Turn] = []
    for batch in range(3):
        played = [play(policies, seed) for seed in range(20 * batch, 20 * batch + 20)]
        for turn in (turn for trajectory in played for turn in trajectory.turns):
            callback.on_turn_end(agent, turn, training=True)
        judged = callback.on_trajectories(agent, played)
        turns = [turn for trajectory in judged for turn in trajectory.turns]
    callback.teardown(trainer, agent, "fit")
    pools[TRAIN].close()
    return sum(turn.bonus for turn in turns) / len(turns)


def all_defences() -> dict[str, Any]:
    return {
        "filters": [Length(), Repetition(), CopiedPrompt(), Contradiction(), Unchanged()],
        "templates": TemplatePenalty(),
        "audit": Audit(ExactState(), share=0.2),
        "journal": JudgementLog(),
    }


GAMED: dict[str, tuple[Policy, Policy]] = {
    "one template": (constant, constant),
    "one template for each kind": (constant, lambda truth, rng: VAGUE_AFTER),
}


@pytest.mark.parametrize("gamed", GAMED.values(), ids=GAMED.keys())
def test_a_constant_description_pays_only_without_defences(
    gamed: tuple[Policy, Policy], tmp_path: Path
):
    # Without defences: 0.5 × 1 + 0.5 × 1; the honest policy, right in 70 % of clauses, earns 0.7.
    assert earned(gamed, tmp_path) == 1.0
    assert 0.6 < earned((honest, honest), tmp_path) < 0.8
    # With defences: the second judge scores the templates 0, so the penalty of 1 applies.
    assert earned(gamed, tmp_path, **all_defences()) <= 0
    assert 0.6 < earned((honest, honest), tmp_path, **all_defences()) < 0.8


def test_each_defence_alone_costs_the_gamed_policy(tmp_path: Path):
    one, parts = GAMED["one template"], all_defences()
    unchanged = earned(one, tmp_path, filters=[Unchanged()])
    assert unchanged < 0.8  # predictions earn only where the state did not change
    audited = earned(one, tmp_path, templates=parts["templates"], audit=parts["audit"])
    assert audited == 0  # 0.5 × (1 - 1) twice
    fooled = earned(one, tmp_path, templates=TemplatePenalty())
    assert fooled == 1  # without a second judge, the templates' scores look good
