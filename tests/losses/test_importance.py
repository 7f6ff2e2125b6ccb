import pytest
import torch

from tests.losses.batches import train_batch
from vagentrl.errors import ConfigError
from vagentrl.losses import PPOClip, Reinforce, TruncatedImportance
from vagentrl.losses.importance import Level

# two turns of two tokens with an observed one between them
TURNS = torch.tensor([[0, 0, -1, 1, 1]])
SAMPLED = torch.full((1, 5), -2.0)
OLD = SAMPLED + torch.tensor([[2.0, 3.0, 99.0, 0.5, 1.0]]).log()
ADVANTAGES = torch.tensor([[1.0, -1.0, 0.0, 2.0, 1.0]])
BATCH = train_batch(OLD, ADVANTAGES, turn_ids=TURNS, sampled_with=SAMPLED)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2.0, 2.5, 0.5, 1.0]),  # 2, 3, 0.5, 1 and a cap of 2.5
        ("turn", [2.5, 2.5, 0.5, 0.5]),  # 2 * 3 = 6 ; 0.5 * 1
        ("row", [2.5, 2.5, 2.5, 2.5]),  # 2 * 3 * 0.5 * 1 = 3
    ],
)
def test_weights_are_capped_ratios(level: Level, expected: list[float]):
    weights = TruncatedImportance(level, cap=2.5).weights(BATCH)
    torch.testing.assert_close(weights[BATCH.rollout.action_mask], torch.tensor(expected))


def test_a_loss_is_multiplied_by_the_weights_and_they_carry_no_gradient():
    importance = TruncatedImportance(cap=2.5)
    logprobs = torch.full((1, 5), -1.0, requires_grad=True)
    batch = train_batch(OLD.clone().requires_grad_(), ADVANTAGES, sampled_with=SAMPLED)
    loss = Reinforce(importance)(logprobs, batch)
    [gradient] = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(gradient, -ADVANTAGES * torch.tensor([[2.0, 2.5, 2.5, 0.5, 1.0]]))
    assert torch.autograd.grad(loss.sum(), batch.scores.old_logprobs, allow_unused=True) == (None,)


def test_a_bandit_sampled_by_another_policy_gets_the_gradient_of_its_own():
    """Exactly, summed over both actions: without the weight it is another policy's."""
    logits = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)[:, None]  # one row per action
    sampler = torch.tensor([[0.4], [0.6]], dtype=torch.float64)
    rewards = torch.tensor([[1.0], [0.2]], dtype=torch.float64)
    batch = train_batch(logprobs.detach(), rewards, sampled_with=sampler.log())

    def expectation(loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((sampler * loss).sum(), logits, retain_graph=True)[0]

    [truth] = torch.autograd.grad(-(logprobs.exp() * rewards).sum(), logits, retain_graph=True)
    corrected = PPOClip(importance=TruncatedImportance(cap=10.0))(logprobs, batch)
    torch.testing.assert_close(expectation(corrected), truth)
    assert not torch.allclose(expectation(PPOClip()(logprobs, batch)), truth)


def test_metrics_tell_how_far_engine_and_trainer_are_apart():
    metrics = TruncatedImportance(cap=2.5).metrics(BATCH.rollout, BATCH.scores)
    # weights 2, 2.5, 0.5, 1: mean 1.5, mean square 11.5 / 4 = 2.875, one of four capped
    torch.testing.assert_close(metrics["importance_weight"], torch.tensor(1.5))
    torch.testing.assert_close(metrics["importance_capped"], torch.tensor(0.25))
    torch.testing.assert_close(metrics["importance_sample_size"], torch.tensor(2.25 / 2.875))


def test_a_cap_below_1_is_refused():
    with pytest.raises(ConfigError, match=r"cap is 0\.5"):
        TruncatedImportance(cap=0.5)
