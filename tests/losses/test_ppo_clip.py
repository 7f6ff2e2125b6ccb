import pytest
import torch

from tests.losses.batches import train_batch
from vagentrl.errors import ConfigError
from vagentrl.losses import PPOClip, approximate_kl, clip_fraction, ppo_clip

# ratios 0.5, 1, 1.5 and 4, each with a good and a bad token
RATIOS = torch.tensor([[0.5, 1.0, 1.5, 4.0], [0.5, 1.0, 1.5, 4.0]])
ADVANTAGES = torch.tensor([[2.0, 2.0, 2.0, 2.0], [-2.0, -2.0, -2.0, -2.0]])
OLD = torch.full((2, 4), -3.0)
NEW = OLD + RATIOS.log()


def test_the_clip_holds_back_only_what_would_be_gained():
    loss = ppo_clip(NEW, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.4)
    # good: -2 * min(ratio, 1.4) = -1, -2, -2.8, -2.8
    # bad:   2 * max(ratio, 0.8) = 1.6, 2, 3, 8
    expected = torch.tensor([[-1.0, -2.0, -2.8, -2.8], [1.6, 2.0, 3.0, 8.0]])
    torch.testing.assert_close(loss, expected)


def test_dual_clip_bounds_the_loss_of_bad_tokens_only():
    loss = ppo_clip(NEW, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.4, dual_clip=3.0)
    # as above, but no bad token costs more than 3 * 2
    expected = torch.tensor([[-1.0, -2.0, -2.8, -2.8], [1.6, 2.0, 3.0, 6.0]])
    torch.testing.assert_close(loss, expected)


def test_a_clipped_token_gets_no_gradient():
    logprobs = NEW.clone().requires_grad_()
    ppo_clip(logprobs, OLD, ADVANTAGES, clip_low=0.2, clip_high=0.4).sum().backward()
    # elsewhere d loss / d logprob = -advantage * ratio
    expected = torch.tensor([[-1.0, -2.0, 0.0, 0.0], [0.0, 2.0, 3.0, 8.0]])
    torch.testing.assert_close(logprobs.grad, expected)


def test_clip_fraction_counts_sampled_tokens_whose_gradient_is_cut():
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    fraction = clip_fraction(RATIOS, ADVANTAGES, mask, clip_low=0.2, clip_high=0.4)
    # good: 1.5 and 4 are above 1.4; bad: 0.5 is below 0.8; so 3 of 6
    torch.testing.assert_close(fraction, torch.tensor(0.5))


def test_approximate_kl_is_the_mean_of_k3_from_the_old_policy():
    mask = torch.tensor([[True, False, False, True], [False, False, False, False]])
    # ratio - 1 - log ratio: 0.5 - 1 + 0.693147 = 0.193147 and 4 - 1 - 1.386294 = 1.613706
    torch.testing.assert_close(approximate_kl(NEW, OLD, mask), torch.tensor(0.9034265))
    assert approximate_kl(NEW, OLD, torch.zeros_like(mask)) == 0


def test_metrics_hold_both():
    mask = torch.ones(2, 4, dtype=torch.bool)
    metrics = PPOClip(0.2, 0.4).metrics(NEW, train_batch(OLD, ADVANTAGES))
    # of eight tokens 1.5 and 4 (good) and 0.5 (bad) are cut
    torch.testing.assert_close(metrics["clip_fraction"], torch.tensor(0.375))
    torch.testing.assert_close(metrics["approximate_kl"], approximate_kl(NEW, OLD, mask))


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.2), (0.0, 0.2), (-0.1, 0.2), (1.0, 2.0)])
def test_a_clip_range_that_cannot_work_names_both_settings(low: float, high: float):
    with pytest.raises(ConfigError, match=r"clip_low is .* clip_high"):
        PPOClip(clip_low=low, clip_high=high)


def test_a_dual_clip_of_one_or_less_is_refused():
    with pytest.raises(ConfigError, match=r"dual_clip is 1\.0"):
        PPOClip(dual_clip=1.0)
    assert PPOClip(dual_clip=1.5).dual_clip == 1.5


def test_dual_clip_leaves_good_tokens_alone_however_small_their_advantage():
    # -0.5 * min(4, 1.5) = -0.75; three times the advantage would be -1.5
    loss = ppo_clip(
        torch.tensor([[4.0]]).log(),
        torch.zeros(1, 1),
        torch.tensor([[0.5]]),
        clip_low=0.5,
        clip_high=0.5,
        dual_clip=3.0,
    )
    torch.testing.assert_close(loss, torch.tensor([[-0.75]]))


def test_tokens_at_a_limit_and_tokens_without_advantage_are_not_clipped():
    ratios = torch.tensor([[1.5, 0.5, 4.0, 0.25, 4.0, 0.25]])
    advantages = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.5, -0.5]])
    mask = torch.ones(1, 6, dtype=torch.bool)
    fraction = clip_fraction(ratios, advantages, mask, clip_low=0.5, clip_high=0.5)
    # only the last two: 4 with an advantage above 0, and 0.25 with one below
    torch.testing.assert_close(fraction, torch.tensor(1 / 3))
