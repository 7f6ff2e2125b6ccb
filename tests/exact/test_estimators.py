"""The expected gradient of every estimator, against its formula and against the true gradient."""

from functools import cache, partial

import pytest
import torch

from tests.exact import objectives
from tests.exact.cases import AGGREGATIONS, ESTIMATORS, EstimatorCase
from tests.exact.experiment import Experiment, of_actor
from tests.exact.formulas import Mode
from tests.exact.objectives import CONSTANT_LENGTH
from tests.exact.trainer_path import Gradients
from tests.exact.world import EVEN
from vagentrl import advantages
from vagentrl.advantages import AdvantageEstimator, BiLevelGAE, DualDiscountGAE, MaskedGAE, TurnGAE

WITH_VALUES = [name for name, case in ESTIMATORS.items() if case.reads_values]
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


@cache
def experiment(name: str, exact_critic: bool) -> Experiment:
    return Experiment(ESTIMATORS[name], exact_critic=exact_critic, entropy_coef=0.0, value_coef=0.5)


@cache
def gradients(name: str, exact_critic: bool, mode: Mode) -> Gradients:
    return experiment(name, exact_critic).gradients("PPOClip", mode)


def test_every_estimator_has_a_case():
    exported = [getattr(advantages, name) for name in advantages.__all__]
    concrete = {
        estimator
        for estimator in exported
        if isinstance(estimator, type)
        and issubclass(estimator, AdvantageEstimator)
        and not estimator.__abstractmethods__
    }
    assert concrete == {type(case.estimator) for case in ESTIMATORS.values()}


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_expected_gradient_is_the_documented_one(name: str, mode: Mode):
    wanted = experiment(name, exact_critic=False).documented("PPOClip", mode)
    close(gradients(name, False, mode), wanted)


@pytest.mark.parametrize("name", WITH_VALUES)
def test_it_is_the_documented_one_with_an_exact_critic_too(name: str):
    wanted = experiment(name, exact_critic=True).documented("PPOClip", "constant_length")
    close(gradients(name, True, "constant_length"), wanted)


@pytest.mark.parametrize(
    ("name", "exact_critic"),
    [(name, True) for name in WITH_VALUES] + [(name, False) for name in ESTIMATORS],
)
def test_the_expected_gradient_is_the_true_one_where_that_is_claimed_and_only_there(
    name: str, exact_critic: bool
):
    """In mode constant_length, up to the factor that is claimed."""
    case = ESTIMATORS[name]
    found = of_actor(gradients(name, exact_critic, "constant_length"))
    true = of_actor(experiment(name, exact_critic).true())
    if case.unbiased == "with any critic" or (
        exact_critic and case.unbiased == "with an exact critic"
    ):
        # `collate` keeps the values of continuations in float32
        rtol, atol = (1e-9, 1e-11) if case.estimator.continuations is None else (1e-6, 1e-7)
        close(found, case.scale * true, rtol=rtol, atol=atol)
    else:
        assert torch.cosine_similarity(found, true, dim=0) < 1 - 1e-6


def no_formula(*_: object) -> list[list[object]]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("estimator", "token_gamma", "turn_gamma"),
    [
        (MaskedGAE(gamma=0.9, lam=0.6, whiten=False), 0.9, 0.9),
        (TurnGAE(turn_gamma=0.8, turn_lam=0.6, whiten=False), 1.0, 0.8),
        (BiLevelGAE(lam=0.6, turn_gamma=0.8, turn_lam=1.0, whiten=False), 1.0, 0.8),
        (
            DualDiscountGAE(
                token_gamma=0.9, token_lam=0.8, step_gamma=0.8, step_lam=0.6, whiten=False
            ),
            0.9,
            0.8,
        ),
    ],
    ids=["masked", "turn", "bi-level", "dual"],
)
def test_a_discount_shrinks_later_rewards_but_not_the_gradient_of_later_tokens(
    estimator: AdvantageEstimator, token_gamma: float, turn_gamma: float
):
    """With exact discounted values, each token's log-prob counts by its discounted return."""
    case = EstimatorCase(estimator, no_formula)  # pyright: ignore
    one = Experiment(case, entropy_coef=0.0)
    values = one.old_values.tolist()
    discounts = {"token_gamma": token_gamma, "turn_gamma": turn_gamma}
    one.agent.set_values(objectives.exact_values(one.paths, one.chances, values, **discounts))
    one.score()

    table, loss = one.agent.logprob_table(), torch.zeros(())
    for path, chance in zip(one.paths, one.chances, strict=True):
        to_go = torch.tensor(objectives.returns_to_go(path, values, **discounts))
        loss = loss - chance * (to_go * table[list(path.states), list(path.actions)]).sum()
    wanted = objectives.gradients(loss / CONSTANT_LENGTH, one.agent)
    close(of_actor(one.gradients("PPOClip", "constant_length")), of_actor(wanted))


def test_bi_level_with_turn_lam_below_1_is_unbiased_where_all_replies_have_one_length():
    """Elsewhere it is biased: the value before a turn's last token depends on which is the last."""
    case = ESTIMATORS["BiLevelGAE, turn_lam 0.6"]
    one = Experiment(case, exact_critic=True, episodes=EVEN, entropy_coef=0.0)
    close(of_actor(one.gradients("PPOClip", "constant_length")), of_actor(one.true()))
