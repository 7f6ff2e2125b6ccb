"""The expected gradient of a KL penalty, by its place and its estimator."""

from functools import cache, partial
from typing import Any, get_args

import pytest
import torch

from tests.exact import objectives
from tests.exact.cases import AGGREGATIONS, ESTIMATORS
from tests.exact.experiment import Experiment, of_actor, visits
from tests.exact.formulas import Mode
from tests.exact.objectives import CONSTANT_LENGTH
from tests.exact.world import probabilities
from vagentrl.callbacks import KLControl
from vagentrl.losses import KLKind

close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)
BETA = 0.3
SETTINGS: dict[str, Any] = {"entropy_coef": 0.0, "value_coef": 0.5}
KINDS: tuple[KLKind, ...] = get_args(KLKind)
IN_THE_LOSS = [kind for kind in KINDS if kind != "k1"]  # the callback refuses k1 there
# Bi-Level takes penalties on the earlier tokens of a turn to that turn alone.
UNBIASED = [
    name
    for name, case in ESTIMATORS.items()
    if case.unbiased == "with any critic" and not name.startswith("BiLevel")
]


@cache
def in_the_reward(name: str, kind: KLKind) -> Experiment:
    return Experiment(ESTIMATORS[name], kl=KLControl(BETA, "reward", kind), **SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_in_the_reward_the_expected_gradient_is_the_documented_one(name: str, kind: KLKind):
    one = in_the_reward(name, kind)
    close(one.gradients("PPOClip", "token_mean"), one.documented("PPOClip", "token_mean"))


@pytest.mark.parametrize("name", UNBIASED)
def test_k1_in_the_reward_has_the_gradient_of_the_return_minus_the_divergence(name: str):
    """The divergence is that of whole episodes, KL(policy || reference)."""
    one = in_the_reward(name, "k1")
    plain = Experiment(ESTIMATORS[name], **SETTINGS)
    assert one.reference is not None
    table, divergence = plain.agent.logprob_table(), torch.zeros(())
    for path, chance in zip(plain.paths, probabilities(plain.paths, table), strict=True):
        sampled = list(path.states), list(path.actions)
        divergence = divergence + chance * (table[sampled] - one.reference[sampled]).sum()
    penalty = objectives.gradients(BETA * divergence / CONSTANT_LENGTH, plain.agent)
    wanted = of_actor(plain.true()) + of_actor(penalty)
    found = of_actor(one.gradients("PPOClip", "constant_length"))
    close(found, ESTIMATORS[name].scale * wanted)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("kind", IN_THE_LOSS)
@pytest.mark.parametrize("name", ["BiLevelGAE, default", "GroupRelative (GRPO)"])
def test_in_the_loss_the_expected_gradient_is_the_documented_one(
    name: str, kind: KLKind, mode: Mode
):
    one = Experiment(ESTIMATORS[name], kl=KLControl(BETA, "loss", kind), **SETTINGS)
    close(one.gradients("PPOClip", mode), one.documented("PPOClip", mode))
    one.move()
    close(one.gradients("CISPO", mode), one.documented("CISPO", mode))


@pytest.mark.parametrize(("kind", "forward"), [("k2", True), ("k3", False), ("k3+", True)])
def test_in_the_loss_k3_alone_has_the_gradient_of_the_backward_divergence(
    kind: KLKind, forward: bool
):
    """In the visited states: KL(reference || policy), where the others have that of KL(policy ||
    reference)."""
    one = Experiment(ESTIMATORS["MaskedGAE"], kl=KLControl(BETA, "loss", kind), **SETTINGS)
    plain = Experiment(ESTIMATORS["MaskedGAE"], **SETTINGS)
    assert one.reference is not None
    table = one.agent.logprob_table()
    first, second = (table, one.reference) if forward else (one.reference, table)
    divergence = (first.exp() * (first - second)).sum(-1)
    penalty = BETA * (visits(one.paths, one.chances, len(table)) * divergence).sum()
    penalised = one.gradients("PPOClip", "constant_length")
    without = plain.gradients("PPOClip", "constant_length")
    found = {name: penalised[name] - without[name] for name in without}
    close(found, objectives.gradients(penalty / CONSTANT_LENGTH, one.agent))
