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
    ],
)
def test_a_token_twice_as_likely_as_under_the_reference(kind: KLKind, expected: float):
    estimate = kl_estimate(torch.tensor(0.5).log(), torch.tensor(0.25).log(), kind)
    assert estimate.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind: KLKind):
    divergence = (POLICY * (POLICY / REFERENCE).log()).sum()
    expectation = (POLICY * kl_estimate(POLICY.log(), REFERENCE.log(), kind)).sum()
    torch.testing.assert_close(expectation, divergence)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_k2_and_k3_are_never_negative(kind: KLKind):
    logprobs, reference = -torch.rand(2, 1000, dtype=torch.float64) * 10
    assert (kl_estimate(logprobs, reference, kind) >= 0).all()


def expected_gradient(kind: KLKind) -> torch.Tensor:
    """Gradient by the logits of the policy, the sampling held fixed as in a loss."""
    logits = POLICY.log().requires_grad_()
    estimate = kl_estimate(logits.log_softmax(0), REFERENCE.log(), kind)
    (POLICY * estimate).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_as_a_loss_k1_has_no_gradient_and_k2_has_that_of_the_divergence():
    logits = POLICY.log().requires_grad_()
    logprobs = logits.log_softmax(0)
    (logprobs.exp() * (logprobs - REFERENCE.log())).sum().backward()
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros_like(POLICY))
    torch.testing.assert_close(expected_gradient("k2"), logits.grad)


def test_k3_stays_finite_where_the_policy_is_hopeless():
    logprobs = torch.tensor(-1e4, requires_grad=True)
    kl_estimate(logprobs, torch.tensor(-1.0), "k3").backward()
    assert logprobs.grad is not None and logprobs.grad.isfinite()
