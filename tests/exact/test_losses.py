"""The expected gradient of every loss, at the first step on a batch and after a step."""

from functools import cache, partial
from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.exact import objectives, trainer_path
from tests.exact.cases import AGGREGATIONS, ESTIMATORS, LOSSES
from tests.exact.experiment import Experiment, of_actor, visits
from tests.exact.formulas import Mode
from tests.exact.objectives import CONSTANT_LENGTH
from tests.exact.trainer_path import Gradients
from vagentrl import losses
from vagentrl.losses import ImportanceMask, PolicyLoss, Reinforce, TruncatedImportance
from vagentrl.losses.importance import Level
from vagentrl.rollout.iteration import Warmup

close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)
VALUE_CLIP = 0.1


@cache
def experiment(name: str, moved: bool) -> Experiment:
    one = Experiment(ESTIMATORS[name], entropy_coef=0.02, value_coef=0.5, value_clip=VALUE_CLIP)
    if moved:
        one.move()
    return one


def test_every_loss_and_aggregation_has_a_case():
    exported = [getattr(losses, name) for name in losses.__all__]
    concrete = {
        loss
        for loss in exported
        if isinstance(loss, type) and issubclass(loss, PolicyLoss) and not loss.__abstractmethods__
    }
    assert concrete == {type(case.loss) for case in LOSSES.values()}
    assert set(AGGREGATIONS) == set(get_args(losses.AggregationMode))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["MaskedGAE", "GroupRelative, scale null, leave_one_out (RLOO)"])
def test_at_the_first_step_every_loss_has_the_true_policy_gradient(name: str, loss: str):
    one = Experiment(ESTIMATORS[name], entropy_coef=0.0)
    close(of_actor(one.gradients(loss, "constant_length")), of_actor(one.true()))


@pytest.mark.parametrize("moved", [False, True], ids=["first step", "later step"])
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["DualDiscountGAE, default", "GroupRelative (GRPO)"])
def test_the_expected_gradient_is_the_documented_one(name: str, loss: str, mode: Mode, moved: bool):
    """The gradient of policy loss, entropy bonus and value loss together."""
    one = experiment(name, moved)
    close(one.gradients(loss, mode), one.documented(loss, mode))


def test_after_a_step_some_ratios_and_values_are_clipped_and_others_are_not():
    one = experiment("DualDiscountGAE, default", moved=True)
    tokens = one.tokens("token_mean")
    ratio = (tokens.of(one.agent.logprob_table()) - tokens.of(one.old_logprobs)).exp()
    good, bad = tokens.advantages > 0, tokens.advantages < 0
    for clipped in (good & (ratio > 1.28), bad & (ratio < 0.8), bad & (ratio > 1.5)):
        assert clipped.any()
    assert ((ratio > 0.8) & (ratio < 1.28)).any()
    moved = (one.agent.value_table() - one.old_values)[tokens.states].abs()
    assert (moved > VALUE_CLIP).any() and (moved < VALUE_CLIP).any()


# ------------------------------------------------------------------------------- parts of the loss


def change(one: Experiment, **settings: float) -> Gradients:
    """How the gradient changes with settings of the module."""
    before = one.gradients("PPOClip", "constant_length")
    for name, value in settings.items():
        setattr(one.agent, name, value)
    after = one.gradients("PPOClip", "constant_length")
    return {name: after[name] - before[name] for name in after}


def test_the_entropy_bonus_is_that_of_the_visited_states():
    one = Experiment(ESTIMATORS["MaskedGAE"], entropy_coef=0.0)
    table = one.agent.logprob_table()
    entropies = -(table.exp() * table).sum(-1)
    bonus = 0.3 * (visits(one.paths, one.chances, len(table)) * entropies).sum() / CONSTANT_LENGTH
    close(change(one, entropy_coef=0.3), objectives.gradients(-bonus, one.agent))


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_the_critic_regresses_to_the_returns(critic: str):
    """With lambda 1 to the return-to-go. Only a shared critic's loss reaches the actor."""
    one = Experiment(ESTIMATORS["MaskedGAE"], critic=critic, value_coef=0.0, value_clip=None)
    loss = torch.zeros(())
    for path, chance in zip(one.paths, one.chances, strict=True):
        to_go = torch.tensor(objectives.returns_to_go(path, one.old_values.tolist(), 1.0, 1.0))
        error = one.agent.value_table()[list(path.states)] - to_go
        loss = loss + chance * 3.0 * (error**2 / 2).sum() / CONSTANT_LENGTH
    found = change(one, value_coef=3.0)
    close(found, objectives.gradients(loss, one.agent))
    assert bool(of_actor(found).any()) == (critic == "shared")


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_in_a_warm_up_only_the_critic_gets_a_gradient(critic: str):
    """Of a shared one the head, not the actor's states that it reads."""
    one = Experiment(ESTIMATORS["MaskedGAE"], critic=critic, value_coef=0.5)
    usual = one.gradients("PPOClip", "turn_mean")
    one.agent.warmup = Warmup(rounds=1)
    found = one.gradients("PPOClip", "turn_mean")
    for name, gradient in found.items():
        if name.startswith("critic."):
            close(gradient, usual[name])
        else:
            assert not gradient.any() and usual[name].any()


def test_only_states_in_which_a_token_is_sampled_get_a_gradient():
    """Prompt tokens get none, nor do tokens that cannot be sampled."""
    one = Experiment(ESTIMATORS["MaskedGAE"], entropy_coef=0.1)
    found = one.gradients("PPOClip", "token_mean")
    sampled_in = visits(one.paths, one.chances, len(one.old_logprobs)) > 0
    for table in ("actor.policy.base_model.rows.weight", "critic.backbone.rows.weight"):
        assert found[table].any(-1).equal(sampled_in)
    # A is token 1 and B is token 2
    assert found["actor.policy.head.weight"].any(-1).nonzero().flatten().tolist() == [1, 2]


# ------------------------------------------------------------------------- micro-batches and ranks


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_the_loss_is_the_sum_over_micro_batches_and_ranks(
    mode: Mode, micro_batch_size: int, ranks: int
):
    one = experiment("DualDiscountGAE, default", moved=True)
    loss, found = one.step("GSPO", mode, micro_batch_size=micro_batch_size, ranks=ranks)
    wanted = one.documented_loss("GSPO", one.tokens(mode))
    close(loss, wanted.item())
    close(found, objectives.gradients(wanted, one.agent))


# ------------------------------------------------------------------------------ importance weights


def another_sampler() -> Tensor:
    """A policy that is nearer to uniform than the actor."""
    own = Experiment(ESTIMATORS["MaskedGAE"]).old_logprobs
    return (0.3 * own).log_softmax(-1).float().double()  # `collate` stores float32


def off_policy(importance: TruncatedImportance | None) -> Experiment:
    return Experiment(
        ESTIMATORS["MaskedGAE"],
        sampler=another_sampler(),
        policy_loss=Reinforce(importance),
        aggregation=AGGREGATIONS["constant_length"],
        entropy_coef=0.0,
        value_coef=0.0,
    )


def expected_gradients(one: Experiment) -> Gradients:
    return trainer_path.expected_gradients(one.agent, one.assessed)


@pytest.mark.parametrize("level", ["row", "trajectory"])
def test_importance_weights_of_whole_trajectories_give_the_true_gradient(level: Level):
    one = off_policy(TruncatedImportance(level, cap=None))
    true = of_actor(one.true())
    # float32 log-probs sum to a probability of 1 up to 1e-7
    close(of_actor(expected_gradients(one)), true, rtol=1e-6, atol=1e-8)
    uncorrected = of_actor(expected_gradients(off_policy(None)))
    assert (uncorrected - true).norm() > 0.1 * true.norm()


@pytest.mark.parametrize(
    ("level", "geometric"),
    [
        ("token", False),
        ("turn", False),
        ("turn", True),
        ("trajectory", False),
        ("trajectory", True),
    ],
)
def test_importance_weights_are_ratios_within_limits_and_0_where_masked(
    level: Level, geometric: bool
):
    mask = ImportanceMask("turn", low=0.8, high=1.06)
    one = off_policy(TruncatedImportance(level, 1.04, 0.95, geometric, (mask,)))
    tokens = one.tokens("constant_length")
    logs = tokens.of(one.old_logprobs) - tokens.of(one.sampler)
    units = {"token": torch.arange(len(logs)), "turn": tokens.turns, "trajectory": tokens.episodes}

    def ratio(level: str, geometric: bool) -> Tensor:
        sums = torch.zeros(len(logs)).index_add(0, units[level], logs)
        lengths = units[level].bincount(minlength=len(logs)) if geometric else torch.tensor(1)
        return (sums / lengths).exp()[units[level]]

    limited = ratio(level, geometric).clamp(0.95, 1.04)
    kept = (ratio("turn", False) >= 0.8) & (ratio("turn", False) <= 1.06)
    for case in (kept, ~kept, limited == 0.95, limited == 1.04):
        assert case.any()
    weights = tokens.weights * kept * limited
    loss = -(weights * tokens.advantages * tokens.of(one.agent.logprob_table())).sum()
    close(expected_gradients(one), objectives.gradients(loss, one.agent))


def test_normalized_importance_weights_have_mean_1_in_each_batch():
    """With constant_length every token of a batch counts the same in the mean."""
    one = off_policy(TruncatedImportance("token", cap=None, normalize=True))
    tokens = one.tokens("constant_length")
    ratio = (tokens.of(one.old_logprobs) - tokens.of(one.sampler)).exp()
    batch_of = tokens.episodes // 2
    count = int(batch_of.max()) + 1
    means = torch.zeros(count).index_add(0, batch_of, ratio) / batch_of.bincount(minlength=count)
    weights = tokens.weights * ratio / means[batch_of]
    loss = -(weights * tokens.advantages * tokens.of(one.agent.logprob_table())).sum()
    close(expected_gradients(one), objectives.gradients(loss, one.agent))
