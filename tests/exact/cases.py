"""Every estimator, loss and aggregation of the project, each with its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tests.exact import formulas, objectives
from tests.exact.formulas import Credit, Estimate, Group, Mode, Values
from tests.exact.objectives import CONSTANT_LENGTH, LossFormula
from vagentrl.advantages import (
    AdvantageEstimator,
    BiLevelGAE,
    DualDiscountGAE,
    GiGPO,
    GroupRelative,
    MaskedGAE,
    ReinforcePlusPlus,
    TurnGAE,
    TurnGroupRelative,
    VineTurn,
)
from vagentrl.losses import CISPO, GSPO, Aggregation, PolicyLoss, PPOClip, Reinforce

MEMBERS = 3
"""Episodes in a group, where members are compared."""

Unbiased = Literal["with any critic", "with an exact critic", "never"]
ANY: Unbiased = "with any critic"
EXACT: Unbiased = "with an exact critic"


@dataclass(frozen=True)
class EstimatorCase:
    """An estimator and what is claimed of it.

    Attributes:
        estimator: The project's estimator.
        formula: Its formula.
        unbiased: When its expected gradient, in mode constant_length, is the true policy gradient.
        scale: The factor between the two gradients where they are parallel.
    """

    estimator: AdvantageEstimator
    formula: Estimate
    unbiased: Unbiased = "never"
    scale: float = 1.0

    @property
    def reads_values(self) -> bool:
        """Whether the estimator reads values, of a critic or of continuations."""
        return self.estimator.needs_critic or self.estimator.continuations is not None


def _with_critic(
    make: Callable[..., AdvantageEstimator],
    gae: Callable[..., Credit],
    unbiased: Unbiased = "never",
    *,
    whiten: bool = False,
    **discounts: float,
) -> EstimatorCase:
    def estimate(groups: Sequence[Group], values: Values) -> list[list[Credit]]:
        credits = [[gae(path, values, **discounts) for path in group] for group in groups]
        return formulas.whiten(credits) if whiten else credits

    return EstimatorCase(make(whiten=whiten, **discounts), estimate, unbiased)


def _without_critic(
    make: Callable[..., AdvantageEstimator],
    compare: Callable[..., list[Credit]],
    unbiased: Unbiased = "never",
    factor: float = 1.0,
    **settings: Any,
) -> EstimatorCase:
    def estimate(groups: Sequence[Group], values: Values) -> list[list[Credit]]:
        return [compare(group, **settings) for group in groups]

    return EstimatorCase(make(**settings), estimate, unbiased, factor)


def _reinforce_plus_plus(**settings: Any) -> EstimatorCase:
    def estimate(groups: Sequence[Group], values: Values) -> list[list[Credit]]:
        return formulas.reinforce_plus_plus(groups, **settings)

    return EstimatorCase(ReinforcePlusPlus(**settings), estimate)


def _vine(
    unbiased: Unbiased = "never",
    *,
    turn_gamma: float,
    turn_lam: float,
    whiten: bool = False,
    every: int = 1,
) -> EstimatorCase:
    def estimate(groups: Sequence[Group], values: Values) -> list[list[Credit]]:
        credits = [
            formulas.vine_turn(group, turn_gamma=turn_gamma, turn_lam=turn_lam) for group in groups
        ]
        return formulas.whiten(credits) if whiten else credits

    estimator = VineTurn(every=every, turn_gamma=turn_gamma, turn_lam=turn_lam, whiten=whiten)
    return EstimatorCase(estimator, estimate, unbiased)


_masked = partial(_with_critic, MaskedGAE, formulas.masked_gae)
_turn = partial(_with_critic, TurnGAE, formulas.turn_gae)
_bi_level = partial(_with_critic, BiLevelGAE, formulas.bi_level_gae)
_dual = partial(_with_critic, DualDiscountGAE, formulas.dual_discount_gae)
_group = partial(_without_critic, GroupRelative, formulas.group_relative)
_gigpo = partial(_without_critic, GiGPO, formulas.gigpo)
_turn_group = partial(_without_critic, TurnGroupRelative, formulas.turn_group_relative)

# A name lists the settings that differ from a discount of 1, no whitening; "default" lists none.
ESTIMATORS: dict[str, EstimatorCase] = {
    "MaskedGAE": _masked(ANY, gamma=1.0, lam=1.0),
    "MaskedGAE, lam 0.6": _masked(EXACT, gamma=1.0, lam=0.6),
    "MaskedGAE, gamma 0.9, lam 0.6": _masked(gamma=0.9, lam=0.6),
    "MaskedGAE, whiten": _masked(whiten=True, gamma=1.0, lam=1.0),
    "TurnGAE": _turn(ANY, turn_gamma=1.0, turn_lam=1.0),
    "TurnGAE, turn_lam 0.6": _turn(EXACT, turn_gamma=1.0, turn_lam=0.6),
    "TurnGAE, turn_gamma 0.9, turn_lam 0.6": _turn(turn_gamma=0.9, turn_lam=0.6),
    "BiLevelGAE": _bi_level(ANY, gamma=1.0, lam=1.0, turn_gamma=1.0, turn_lam=1.0),
    "BiLevelGAE, lam 0.6": _bi_level(EXACT, gamma=1.0, lam=0.6, turn_gamma=1.0, turn_lam=1.0),
    "BiLevelGAE, turn_lam 0.6": _bi_level(gamma=1.0, lam=1.0, turn_gamma=1.0, turn_lam=0.6),
    "BiLevelGAE, both gammas 0.9, both lams 0.6": _bi_level(
        gamma=0.9, lam=0.6, turn_gamma=0.9, turn_lam=0.6
    ),
    "BiLevelGAE, default": _bi_level(
        whiten=True, gamma=1.0, lam=1.0, turn_gamma=0.95, turn_lam=1.0
    ),
    "DualDiscountGAE": _dual(ANY, token_gamma=1.0, token_lam=1.0, step_gamma=1.0, step_lam=1.0),
    "DualDiscountGAE, token_lam 0.8, step_lam 0.6": _dual(
        EXACT, token_gamma=1.0, token_lam=0.8, step_gamma=1.0, step_lam=0.6
    ),
    "DualDiscountGAE, default": _dual(
        whiten=True, token_gamma=1.0, token_lam=1.0, step_gamma=0.99, step_lam=0.95
    ),
    "GroupRelative (GRPO)": _group(scale="std", baseline="mean"),
    "GroupRelative, scale null (Dr.GRPO)": _group(
        ANY, 1 - 1 / MEMBERS, scale=None, baseline="mean"
    ),
    "GroupRelative, scale null, leave_one_out (RLOO)": _group(
        ANY, scale=None, baseline="leave_one_out"
    ),
    "GroupRelative, leave_one_out": _group(scale="std", baseline="leave_one_out"),
    "GiGPO": _gigpo(turn_gamma=0.95, step_coef=1.0, scale="std"),
    "GiGPO, turn_gamma 1, step_coef 0.5, scale null": _gigpo(
        turn_gamma=1.0, step_coef=0.5, scale=None
    ),
    "TurnGroupRelative": _turn_group(ANY, turn_gamma=1.0),
    "TurnGroupRelative, turn_gamma 0.9": _turn_group(turn_gamma=0.9),
    "VineTurn, turn_lam 1": _vine(ANY, turn_gamma=1.0, turn_lam=1.0),
    "VineTurn": _vine(EXACT, turn_gamma=1.0, turn_lam=0.0),
    "VineTurn, every 2, turn_lam 1": _vine(ANY, every=2, turn_gamma=1.0, turn_lam=1.0),
    "VineTurn, every 2, turn_lam 0.5": _vine(EXACT, every=2, turn_gamma=1.0, turn_lam=0.5),
    "VineTurn, default": _vine(whiten=True, every=2, turn_gamma=0.95, turn_lam=0.0),
    "ReinforcePlusPlus": _reinforce_plus_plus(gamma=1.0, baseline=False),
    "ReinforcePlusPlus, gamma 0.95, baseline": _reinforce_plus_plus(gamma=0.95, baseline=True),
}


@dataclass(frozen=True)
class LossCase:
    """A policy loss of the project and its formula."""

    loss: PolicyLoss
    formula: LossFormula


LOSSES: dict[str, LossCase] = {
    "PPOClip": LossCase(PPOClip(0.2, 0.28), objectives.ppo(0.2, 0.28)),
    "PPOClip, dual_clip": LossCase(PPOClip(0.2, 0.2, 1.5), objectives.ppo(0.2, 0.2, 1.5)),
    "GSPO": LossCase(GSPO(0.1, 0.15), objectives.gspo(0.1, 0.15)),
    "CISPO": LossCase(CISPO(None, 0.28), objectives.cispo(None, 0.28)),
    "CISPO, clip_low": LossCase(CISPO(0.2, 0.28), objectives.cispo(0.2, 0.28)),
    "Reinforce": LossCase(Reinforce(), objectives.reinforce),
}

AGGREGATIONS: dict[Mode, Aggregation] = {
    "constant_length": Aggregation("constant_length", CONSTANT_LENGTH),
    "token_mean": Aggregation("token_mean"),
    "turn_mean": Aggregation("turn_mean"),
    "trajectory_mean": Aggregation("trajectory_mean"),
}
