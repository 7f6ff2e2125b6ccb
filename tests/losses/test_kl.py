import pytest
import torch

from vagentrl.losses import KLKind, kl_estimate

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("k1", 0.693147),  # log 2
        ("k2", 0.240227),  # half of its square
        ("k3", 0.193147),  # 1/2 - 1 + log 2
        ("k3+", 0.193147),
    ],
)
def test_a_token_twice_as_likely_as_under_the_reference(kind: KLKind, expected: float):
    estimate = kl_estimate(torch.tensor(0.5).log(), torch.tensor(0.25).log(), kind)
    assert estimate.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k3", "k3+"])
def test_k1_and_k3_are_unbiased(kind: KLKind):
    divergence = (POLICY * (POLICY / REFERENCE).log()).sum()
    expectation = (POLICY * kl_estimate(POLICY.log(), REFERENCE.log(), kind)).sum()
    torch.testing.assert_close(expectation, divergence)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_k2_and_k3_are_never_negative(kind: KLKind):
    logprobs, reference = -torch.rand(2, 1000, dtype=torch.float64) * 10
    assert (kl_estimate(logprobs, reference, kind) >= 0).all()


def expected_gradient(kind: KLKind) -> torch.Tensor:
    """Gradient with respect to the logits, with fixed sampling probabilities as in a loss."""
    logits = POLICY.log().requires_grad_()
    estimate = kl_estimate(logits.log_softmax(0), REFERENCE.log(), kind)
    (POLICY * estimate).sum().backward()
    assert logits.grad is not None
    return logits.grad


def divergence_gradient(of_policy: bool) -> torch.Tensor:
    """Gradient of KL(policy || reference), or of KL(reference || policy), over the whole
    vocabulary."""
    logits = POLICY.log().requires_grad_()
    logprobs, reference = logits.log_softmax(0), REFERENCE.log()
    if of_policy:
        divergence = (logprobs.exp() * (logprobs - reference)).sum()
    else:
        divergence = (REFERENCE * (reference - logprobs)).sum()
    return torch.autograd.grad(divergence, logits)[0]


def test_as_a_loss_k1_has_no_gradient():
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros_like(POLICY))


@pytest.mark.parametrize("kind", ["k2", "k3+"])
def test_as_a_loss_k2_has_the_gradient_of_the_policys_divergence(kind: KLKind):
    torch.testing.assert_close(expected_gradient(kind), divergence_gradient(of_policy=True))


def test_as_a_loss_k3_has_the_gradient_of_the_references_divergence():
    torch.testing.assert_close(expected_gradient("k3"), divergence_gradient(of_policy=False))
    assert not torch.allclose(expected_gradient("k3"), divergence_gradient(of_policy=True))


def gradient_by_the_reward(kind: KLKind) -> torch.Tensor:
    """Expected policy gradient when the estimate is a cost: it multiplies the log-probs."""
    logits = POLICY.log().requires_grad_()
    logprobs = logits.log_softmax(0)
    cost = kl_estimate(logprobs, REFERENCE.log(), kind).detach()
    return torch.autograd.grad((POLICY * cost * logprobs).sum(), logits)[0]


def test_in_the_reward_k1_has_the_gradient_of_the_policys_divergence():
    torch.testing.assert_close(gradient_by_the_reward("k1"), divergence_gradient(of_policy=True))


@pytest.mark.parametrize("kind", ["k3", "k3+"])
def test_in_the_reward_k3_lacks_the_references_divergence(kind: KLKind):
    wanted = divergence_gradient(of_policy=True) - divergence_gradient(of_policy=False)
    torch.testing.assert_close(gradient_by_the_reward(kind), wanted)


def test_k3_stays_finite_where_the_policy_is_hopeless():
    logprobs = torch.tensor(-1e4, requires_grad=True)
    kl_estimate(logprobs, torch.tensor(-1.0), "k3").backward()
    assert logprobs.grad is not None and logprobs.grad.isfinite()
