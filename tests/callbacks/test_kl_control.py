from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import runs, toy
from vagentrl.callbacks import KLControl
from vagentrl.errors import ConfigError
from vagentrl.rollout.collate import collate
from vagentrl.rollout.iteration import Iteration
from vagentrl.types import Credit, RolloutBatch, Scores, TrainBatch


class Notes:
    """A stand-in for the agent that stores recorded metrics."""

    def __init__(self, actor_learns: bool = True) -> None:
        self.current = Iteration(0, actor_learns)
        self.seen: dict[str, float] = {}

    def record(self, name: str, value: float) -> None:
        self.seen[name] = value


def batch() -> RolloutBatch:
    episodes = [toy.play([toy.GO]), toy.play([toy.WAIT, toy.GO])]
    return collate(episodes, toy.renderer(), temperature=1.0)


def scores(rollout: RolloutBatch, difference: float) -> Scores:
    """The log-ratio of policy to reference is the same for every sampled token."""
    ref = torch.full_like(rollout.rewards, -1.0)
    return Scores(ref + difference, ref, None)


def adjust(control: KLControl, rollout: RolloutBatch, difference: float) -> tuple[Any, Notes]:
    notes: Any = Notes()
    return control.on_scores(notes, rollout, scores(rollout, difference)), notes


@pytest.mark.parametrize(
    ("estimator", "kl"),
    [
        ("k1", -0.5),
        ("k2", 0.125),  # 0.5 * 0.5 ** 2
        ("k3", 0.148721),  # exp(0.5) - 1 - 0.5
        ("k3+", 0.148721),
    ],
)
def test_in_the_reward_every_sampled_token_pays_and_no_other(estimator: Any, kl: float):
    rollout = batch()
    adjusted, notes = adjust(KLControl(0.1, "reward", estimator), rollout, difference=-0.5)
    expected = rollout.rewards - 0.1 * kl * rollout.action_mask
    torch.testing.assert_close(adjusted.rewards, expected, atol=1e-6, rtol=0)
    assert notes.seen == {
        "rollout/kl": pytest.approx(kl, abs=1e-6),
        "rollout/kl_coefficient": 0.1,
    }
    assert KLControl(0.1, "reward", estimator).policy_loss_term(*[None] * 3) is None  # pyright: ignore


@pytest.mark.parametrize(
    ("estimator", "slope"), [("k2", -0.5), ("k3", 1 - 1.648721), ("k3+", -0.5)]
)
def test_in_the_loss_it_pulls_towards_the_reference_and_leaves_rewards(
    estimator: Any, slope: float
):
    rollout = batch()
    control = KLControl(0.1, "loss", estimator)
    assert adjust(control, rollout, difference=-0.5)[0] is rollout
    seen = scores(rollout, difference=-0.5)
    logprobs = seen.old_logprobs.clone().requires_grad_()
    part = TrainBatch(rollout, seen, Credit(torch.zeros_like(rollout.rewards)), rollout.rewards)
    term = control.policy_loss_term(Notes(), part, logprobs)  # pyright: ignore
    assert term is not None
    term.sum().backward()
    # k2 and k3+: x; k3: 1 - exp(-x), at x = -0.5
    torch.testing.assert_close(logprobs.grad, torch.full_like(logprobs, 0.1 * slope))


class FakeTrainer:
    is_last_batch = True


def end_update(control: KLControl) -> None:
    nothing: Any = None
    trainer: Any = FakeTrainer()
    control.on_train_batch_end(trainer, nothing, nothing, nothing, 0)


@pytest.mark.parametrize(
    ("difference", "factor"),
    [
        (0.2, 1 + 0.2 * 2 / 10),  # twice the target, clipped to an error of 0.2; 2 episodes of 10
        (0.11, 1 + 0.1 * 2 / 10),  # a tenth above it
        (-0.3, 1 - 0.2 * 2 / 10),
    ],
)
def test_an_adaptive_coefficient_steers_towards_the_target(difference: float, factor: float):
    control = KLControl(0.5, target=0.1, horizon=10)
    adjust(control, batch(), difference)
    assert control.coefficient == 0.5  # the following update still uses the old coefficient
    end_update(control)
    assert control.coefficient == pytest.approx(0.5 * factor, rel=1e-5)


def test_an_iteration_of_many_episodes_changes_the_coefficient_by_a_fifth_at_most():
    control = KLControl(0.5, target=0.1, horizon=1)
    for factor in (0.8, 0.64):
        adjust(control, batch(), -3.0)  # 2 episodes, twice the horizon
        end_update(control)
        assert control.coefficient == pytest.approx(0.5 * factor)


def test_a_warm_up_of_the_critic_leaves_the_coefficient():
    control, rollout = KLControl(0.5, target=0.1, horizon=10), batch()
    warming: Any = Notes(actor_learns=False)
    control.on_scores(warming, rollout, scores(rollout, 0.0))
    end_update(control)
    assert control.coefficient == 0.5


def test_a_fixed_coefficient_stays():
    control = KLControl(0.5)
    adjust(control, batch(), 3.0)
    end_update(control)
    assert control.coefficient == 0.5


def test_only_an_adapted_coefficient_comes_back_from_a_checkpoint():
    saved = replace_state(KLControl(0.5, target=0.1), 0.25)
    adaptive, fixed = KLControl(0.7, target=0.1), KLControl(0.7)
    for control in (adaptive, fixed):
        control.load_state_dict(saved)
        end_update(control)
    assert (adaptive.coefficient, fixed.coefficient) == (0.25, 0.7)


def replace_state(control: KLControl, coefficient: float) -> dict[str, Any]:
    return dict.fromkeys(control.state_dict(), coefficient)


def test_the_reference_is_there_only_when_something_needs_it():
    for override, needed in (("--trainer.callbacks=[]", False), ("--data.groups=2", True)):
        run = runs.prepare(override)
        for callback in runs.callbacks(run):
            callback.setup(run.trainer, run.model, "fit")
        assert run.model.needs_reference is needed


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"coefficient": -1.0}, "not negative"),
        ({"place": "loss"}, "zero in expectation"),
        ({"target": 0.0}, "above 0"),
        ({"target": 0.1, "horizon": 0}, "number of episodes"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        KLControl(**settings)


def test_padding_pays_nothing():
    rollout = batch()
    shown = replace(rollout, action_mask=torch.zeros_like(rollout.action_mask))
    shown = replace(shown, action_mask=shown.action_mask.index_fill(0, torch.tensor([0]), True))
    adjusted, _ = adjust(KLControl(0.1), shown, difference=1.0)
    torch.testing.assert_close(adjusted.rewards[1], rollout.rewards[1])
    torch.testing.assert_close(adjusted.rewards[0], rollout.rewards[0] - 0.1)
