import pytest
import torch

from tests.losses.batches import train_batch
from vagentrl.errors import ConfigError
from vagentrl.losses import CISPO, cispo

RATIOS = torch.tensor([[0.5, 1.0, 1.5, 4.0]])
ADVANTAGES = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
OLD = torch.full((1, 4), -3.0)
NEW = OLD + RATIOS.log()


def test_a_clipped_token_still_learns():
    logprobs = NEW.clone().requires_grad_()
    loss = cispo(logprobs, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.4)
    loss.sum().backward()
    # weights 0.8, 1, 1.4, 1.4, each times -advantage
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.6, 2.0, -2.8, 2.8]]))
    torch.testing.assert_close(loss.detach(), NEW * torch.tensor([[-1.6, 2.0, -2.8, 2.8]]))


def test_without_a_lower_limit_a_weight_may_vanish():
    logprobs = NEW.clone().requires_grad_()
    cispo(logprobs, OLD, ADVANTAGES, clip_low=None, clip_high=0.4).sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.0, 2.0, -2.8, 2.8]]))


def test_the_clip_fraction_counts_clipped_weights_of_either_sign():
    batch = train_batch(OLD, ADVANTAGES)
    # 1.5 and 4 are above 1.4, and 0.5 below 0.8
    assert float(CISPO(None, 0.4).metrics(NEW, batch)["clip_fraction"]) == 0.5
    assert float(CISPO(0.2, 0.4).metrics(NEW, batch)["clip_fraction"]) == 0.75


def test_weights_at_a_limit_are_not_clipped():
    batch = train_batch(torch.zeros(1, 3), torch.ones(1, 3))
    ratios = torch.tensor([[0.5, 1.0, 1.5]])  # the logarithm of 1.5 must survive exp
    assert (ratios.log().exp() == ratios).all()
    assert float(CISPO(0.5, 0.5).metrics(ratios.log(), batch)["clip_fraction"]) == 0


def test_a_clip_range_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match=r"clip_low is 0\.3 and clip_high 0\.2"):
        CISPO(clip_low=0.3, clip_high=0.2)
    with pytest.raises(ConfigError, match=r"clip_high is 0"):
        CISPO(clip_high=0.0)
