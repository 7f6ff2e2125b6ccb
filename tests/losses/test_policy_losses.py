"""Properties of every policy loss, whichever way it clips."""

import pytest
import torch
from torch import Tensor

from tests.losses.batches import corrected, train_batch
from vagentrl.losses import (
    CISPO,
    GSPO,
    Aggregation,
    ImportanceMask,
    PolicyLoss,
    PPOClip,
    Reinforce,
    TruncatedImportance,
)
from vagentrl.types import TrainBatch

LOSSES = [
    PPOClip(),
    PPOClip(0.2, 0.28, dual_clip=3.0),
    GSPO(),
    GSPO(0.1, 0.2, sequence="row"),
    CISPO(),
    CISPO(0.2, 0.28),
    Reinforce(),
    PPOClip(importance=TruncatedImportance()),
    GSPO(importance=TruncatedImportance("turn")),
    CISPO(importance=TruncatedImportance("row", cap=5.0)),
    Reinforce(importance=TruncatedImportance("token", cap=1.0)),
    PPOClip(importance=TruncatedImportance(masks=(ImportanceMask("token", 0.7, 1.5),))),
    GSPO(
        importance=TruncatedImportance(
            "turn", floor=0.5, geometric=True, masks=(ImportanceMask("row", 0.8, 1.3, True),)
        )
    ),
    CISPO(importance=TruncatedImportance(masks=(ImportanceMask("turn", 0.6),), normalize=True)),
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)

# two turns of two tokens with an observed one between them; a turn of one token
TURNS = torch.tensor([[-1, 0, 0, -1, 1, 1], [-1, -1, 0, -1, -1, -1]])
MASK = TURNS >= 0


def gradient(loss: PolicyLoss, logprobs: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Gradient of the loss summed over sampled tokens."""
    logprobs = logprobs.clone().requires_grad_()
    (loss(logprobs, corrected(train_batch(*args, **kwargs), loss)) * MASK).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


@every_loss
def test_the_first_step_is_the_policy_gradient(loss: PolicyLoss):
    old, advantages = -torch.rand(2, 6), torch.randn(2, 6)
    torch.testing.assert_close(
        gradient(loss, old, old, advantages, turn_ids=TURNS), -advantages * MASK
    )


@every_loss
def test_what_is_noted_about_observed_tokens_means_nothing(loss: PolicyLoss):
    new, old, sampled = -torch.rand(3, 2, 6)
    advantages = torch.randn(2, 6)
    batch = corrected(train_batch(old, advantages, turn_ids=TURNS, sampled_with=sampled), loss)
    # differences of 1e4 would overflow, and infinity times a weight of 0 is NaN
    worse = [tensor.where(MASK, -1e4) for tensor in (old, advantages, sampled)]
    other = train_batch(worse[0], worse[1], turn_ids=TURNS, sampled_with=worse[2])
    other = corrected(other, loss)
    torch.testing.assert_close(loss(new, other)[MASK], loss(new, batch)[MASK])
    torch.testing.assert_close(loss.metrics(new, other), loss.metrics(new, batch))
    assert loss(new, other).isfinite().all()
    grads = [gradient(loss, new, o, a, turn_ids=TURNS, sampled_with=s)
             for o, a, s in ((old, advantages, sampled), worse)]  # fmt: skip
    torch.testing.assert_close(*grads)


@every_loss
def test_each_row_has_its_own_loss(loss: PolicyLoss):
    """This allows any split of the rows into micro-batches."""
    new, old, sampled = -torch.rand(3, 2, 6)
    batch = train_batch(old, torch.randn(2, 6), turn_ids=TURNS, sampled_with=sampled)
    batch = corrected(batch, loss)
    for row in (0, 1):
        part = batch.select(torch.tensor([row]))
        torch.testing.assert_close(loss(new[[row]], part), loss(new, batch)[[row]])


@every_loss
def test_nothing_sampled_is_no_reason_to_fail(loss: PolicyLoss):
    turns = torch.full((2, 6), -1)
    batch = corrected(train_batch(-torch.rand(2, 6), torch.zeros(2, 6), turn_ids=turns), loss)
    assert loss(-torch.rand(2, 6), batch).isfinite().all()
    assert all(metric.isfinite() for metric in loss.metrics(-torch.rand(2, 6), batch).values())


def test_the_defaults_are_the_documented_ones():
    ppo, gspo, cispo = PPOClip(), GSPO(), CISPO()
    assert (ppo.clip_low, ppo.clip_high, ppo.dual_clip) == (0.2, 0.2, None)
    assert (gspo.clip_low, gspo.clip_high, gspo.sequence) == (3e-4, 4e-4, "turn")
    assert (cispo.clip_low, cispo.clip_high) == (None, 0.28)
    assert [loss.importance for loss in (ppo, gspo, cispo, Reinforce())] == [None] * 4
    assert (Aggregation().mode, Aggregation().constant_length) == ("token_mean", None)
    importance = TruncatedImportance()
    assert (importance.level, importance.cap, importance.floor) == ("token", 2.0, None)
    assert (importance.geometric, importance.masks, importance.normalize) == (False, (), False)
    mask = ImportanceMask(low=0.5)
    assert (mask.level, mask.high, mask.geometric) == ("token", None, False)


class Plain(PolicyLoss):
    """Does not call its base's `__init__`."""

    def __init__(self) -> None: ...

    def per_token(self, logprobs: Tensor, batch: TrainBatch) -> Tensor:
        return 2 * logprobs


def test_a_loss_of_ones_own_needs_no_importance():
    logprobs = -torch.rand(2, 6)
    batch = train_batch(logprobs, logprobs, turn_ids=TURNS)
    torch.testing.assert_close(Plain()(logprobs, batch), 2 * logprobs)


def test_every_loss_keeps_its_importance():
    importance = TruncatedImportance(cap=3.0)
    for loss in (PPOClip, GSPO, CISPO, Reinforce):
        assert loss(importance=importance).importance is importance


@every_loss
def test_log_probs_that_are_not_finite_are_not_the_losss_mistake(loss: PolicyLoss):
    """The step is skipped then; refusing the loss would end the run."""
    batch = corrected(train_batch(-torch.rand(2, 6), torch.ones(2, 6), turn_ids=TURNS), loss)
    assert loss(torch.full((2, 6), torch.nan), batch)[MASK].isnan().all()


def test_the_tokens_of_a_row_may_share_a_ratio():
    assert GSPO(sequence="row").sequence == "row"


def test_only_the_plain_policy_gradient_is_for_one_update():
    assert [loss.reusable for loss in (PPOClip(), GSPO(), CISPO(), Reinforce())] == [
        True, True, True, False,
    ]  # fmt: skip
