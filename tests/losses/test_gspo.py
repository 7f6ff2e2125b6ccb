import pytest
import torch

from tests.losses.batches import train_batch
from vagentrl.errors import ConfigError
from vagentrl.losses import GSPO, Aggregation, gspo, ppo_clip, sequence_ratio

# two turns in one row with an observed token between them, and a turn of one token
TURNS = torch.tensor([[0, 0, -1, 1, 1], [-1, 3, -1, -1, -1]])
MASK = TURNS >= 0
RATIOS = torch.tensor([[2.0, 8.0, 99.0, 1.0, 0.25], [99.0, 3.0, 99.0, 99.0, 99.0]])
OLD = torch.full((2, 5), -4.0)
NEW = OLD + RATIOS.log()
# geometric means: turn 0 sqrt(2 * 8) = 4, turn 1 sqrt(1 * 0.25) = 0.5, turn 3 itself: 3
TURN_RATIOS = torch.tensor([[4.0, 4.0, 0.0, 0.5, 0.5], [0.0, 3.0, 0.0, 0.0, 0.0]])


def test_the_ratio_of_a_turn_is_the_geometric_mean_of_its_tokens():
    ratio = sequence_ratio(NEW, OLD, MASK, TURNS)
    torch.testing.assert_close(ratio * MASK, TURN_RATIOS)


def test_the_ratio_of_a_row_spans_its_turns():
    ratio = sequence_ratio(NEW, OLD, MASK, TURNS, sequence="row")
    # (2 * 8 * 1 * 0.25) ** (1 / 4) = 4 ** (1 / 4) = 1.41421
    expected = MASK * torch.tensor([[1.41421356], [3.0]])
    torch.testing.assert_close(ratio * MASK, expected)


def test_whole_turns_are_clipped():
    advantages = torch.tensor([[1.0, -1.0, 0.0, 2.0, -2.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    logprobs = NEW.clone().requires_grad_()
    loss = gspo(logprobs, OLD, advantages, MASK, TURNS, clip_low=0.2, clip_high=0.5) * MASK
    # turn 0 (4): good -min(4, 1.5) = -1.5, bad max(4, 1.5) = 4
    # turn 1 (0.5): good -2 min(0.5, 0.8) = -1, bad 2 max(0.5, 0.8) = 1.6 ; turn 3: -1.5
    expected = torch.tensor([[-1.5, 4.0, 0.0, -1.0, 1.6], [0.0, -1.5, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(loss.detach(), expected)
    loss.sum().backward()
    # -advantage * ratio of the turn where it is not clipped
    expected = torch.tensor([[0.0, 4.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(logprobs.grad, expected)


def test_the_mean_over_a_sequence_has_the_gradient_of_the_sequences_own_objective():
    old, new = -torch.rand(2, 1, 5, dtype=torch.float64)
    new.requires_grad_()
    mask, turns = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.long)
    advantages = torch.full((1, 5), 2.0, dtype=torch.float64)
    per_token = gspo(new, old, advantages, mask, turns, clip_low=0.9, clip_high=9.0)
    whole = -2.0 * (new - old).mean().exp()  # eq. 5: the ratio itself, differentiated
    torch.testing.assert_close(per_token.mean(), whole)
    [expected] = torch.autograd.grad(whole, new)
    torch.testing.assert_close(torch.autograd.grad(per_token.mean(), new)[0], expected)


def test_with_turn_mean_the_loss_is_the_papers_with_turns_for_sequences():
    """Eq. 5: the mean over sequences, here turns, of the clipped ratio times the advantage."""
    per_turn = torch.tensor([[1.0, 1.0, 0.0, -2.0, -2.0], [0.0, 3.0, 0.0, 0.0, 0.0]])
    logprobs = NEW.clone().requires_grad_()
    batch = train_batch(OLD, per_turn, turn_ids=TURNS)
    weights = Aggregation("turn_mean")(MASK, TURNS, batch.rollout.trajectory_ids)
    loss = (weights * GSPO(clip_low=0.6, clip_high=4.0)(logprobs, batch)).sum()
    # ratios 4, 0.5 and 3, all inside [0.4, 5]: -(1 * 4 - 2 * 0.5 + 3 * 3) / 3 = -4
    torch.testing.assert_close(loss, torch.tensor(-4.0))
    loss.backward()
    # each turn's gradient is -(advantage * ratio / 3) / length at each of its tokens
    first, second, third = -4 / 6, 1 / 6, -3.0
    expected = torch.tensor([[first, first, 0.0, second, second], [0.0, third, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(logprobs.grad, expected)


def test_turns_of_one_token_are_ppo():
    turns = torch.arange(5).expand(2, 5).contiguous()
    mask = torch.ones(2, 5, dtype=torch.bool)
    logprobs = torch.stack([NEW, NEW]).requires_grad_()
    advantages = torch.randn(2, 5)
    one = gspo(logprobs[0], OLD, advantages, mask, turns, clip_low=0.2, clip_high=0.5)
    other = ppo_clip(logprobs[1], OLD, advantages, clip_low=0.2, clip_high=0.5)
    torch.testing.assert_close(one, other)
    (one + other).sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad[0], logprobs.grad[1])


def test_the_clip_fraction_counts_the_tokens_of_clipped_turns():
    loss = GSPO(0.2, 0.5)
    metrics = loss.metrics(NEW, train_batch(OLD, torch.ones(2, 5), turn_ids=TURNS))
    # all are good: turns 0 and 3 are above 1.5, three of five tokens
    torch.testing.assert_close(metrics["clip_fraction"], torch.tensor(0.6))


def test_the_tokens_of_a_row_are_clipped_together():
    loss, batch = GSPO(0.2, 0.5, sequence="row"), train_batch(OLD, torch.ones(2, 5), turn_ids=TURNS)
    # the ratios of the rows are 4 ** (1 / 4) = 1.41421, and 3, which is clipped to 1.5
    expected = MASK * torch.tensor([[-1.41421356], [-1.5]])
    torch.testing.assert_close(loss(NEW, batch) * MASK, expected)
    torch.testing.assert_close(loss.metrics(NEW, batch)["clip_fraction"], torch.tensor(0.2))


def test_a_clip_range_that_cannot_work_names_both_settings():
    with pytest.raises(ConfigError, match=r"clip_low is 0\.2 and clip_high 0\.0004"):
        GSPO(clip_low=0.2)
