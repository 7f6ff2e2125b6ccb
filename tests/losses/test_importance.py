import logging
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.batches import Turns, corrected, ragged_turns, train_batch, turn_ids_of
from vagentrl.errors import ConfigError, ShapeError
from vagentrl.losses import (
    GSPO,
    Aggregation,
    ImportanceMask,
    PPOClip,
    Reinforce,
    TruncatedImportance,
    importance_ratio,
)
from vagentrl.losses.importance import Level
from vagentrl.rollout.loader import MinibatchLoader
from vagentrl.types import TrainBatch

# two turns of two tokens with an observed token between them; a second row of the same trajectory
# with a turn of one token
TURNS = torch.tensor([[0, 0, -1, 1, 1], [-1, 2, -1, -1, -1]])
SAMPLED = torch.full((2, 5), -2.0)
RATIOS = torch.tensor([[2.0, 3.0, 99.0, 0.5, 1.0], [99.0, 0.25, 99.0, 99.0, 99.0]])
OLD = SAMPLED + RATIOS.log()
ADVANTAGES = torch.tensor([[1.0, -1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
BATCH = train_batch(
    OLD, ADVANTAGES, turn_ids=TURNS, sampled_with=SAMPLED, trajectory_ids=torch.tensor([0, 0])
)
MASK = BATCH.rollout.action_mask


def weights(importance: TruncatedImportance, batch: TrainBatch = BATCH) -> Tensor:
    """The importance weights of the sampled tokens, all with the same token weight."""
    counts = batch.rollout.action_mask.float()
    found = importance.weights(batch.rollout, batch.scores, counts)
    return found[batch.rollout.action_mask]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("token", 2.5), [2.0, 2.5, 0.5, 1.0, 0.25]),
        (("turn", 2.5), [2.5, 2.5, 0.5, 0.5, 0.25]),  # 2 * 3 = 6 ; 0.5 * 1 ; 0.25
        (("row", 2.5), [2.5, 2.5, 2.5, 2.5, 0.25]),  # 2 * 3 * 0.5 * 1 = 3 ; 0.25
        (("trajectory", 2.5), [0.75] * 5),  # 3 * 0.25
        (("token", 2.5, 0.75), [2.0, 2.5, 0.75, 1.0, 0.75]),  # a floor of 0.75
        (("token", None), [2.0, 3.0, 0.5, 1.0, 0.25]),
        (("turn", None, None, True), [6**0.5, 6**0.5, 0.5**0.5, 0.5**0.5, 0.25]),
        (("row", None, None, True), [3 ** (1 / 4)] * 4 + [0.25]),
        (("trajectory", None, None, True), [0.75 ** (1 / 5)] * 5),
        (("token", 1.0, 1.0), [1.0] * 5),
    ],
)
def test_weights_are_ratios_between_floor_and_cap(settings: Any, expected: list[float]):
    torch.testing.assert_close(weights(TruncatedImportance(*settings)), torch.tensor(expected))


def test_the_ratio_of_a_sequence_is_a_product_unless_said_otherwise():
    batch = BATCH.rollout
    ratio = importance_ratio(OLD, SAMPLED, MASK, TURNS, batch.trajectory_ids, level="turn")
    torch.testing.assert_close(ratio[MASK], torch.tensor([6.0, 6.0, 0.5, 0.5, 0.25]))


ALL_KEPT = TruncatedImportance(cap=1.0, floor=1.0)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        # token ratios 2, 3, 0.5, 1, 0.25; turn products 6, 0.5, 0.25; row products 3, 0.25
        ([ImportanceMask("token", low=0.4, high=2.5)], [1, 0, 1, 1, 0]),
        ([ImportanceMask("token", low=0.4)], [1, 1, 1, 1, 0]),
        ([ImportanceMask("token", high=2.5)], [1, 0, 1, 1, 1]),
        ([ImportanceMask("turn", low=0.4, high=5.0)], [0, 0, 1, 1, 0]),
        ([ImportanceMask("row", high=2.0)], [0, 0, 0, 0, 1]),
        ([ImportanceMask("trajectory", low=0.7, high=1.5)], [1, 1, 1, 1, 1]),  # 0.75
        ([ImportanceMask("trajectory", low=0.8)], [0, 0, 0, 0, 0]),
        # geometric means of the turns: 2.45, 0.71, 0.25
        ([ImportanceMask("turn", low=0.7, high=2.5, geometric=True)], [1, 1, 1, 1, 0]),
        ([ImportanceMask("trajectory", low=0.9, geometric=True)], [1, 1, 1, 1, 1]),  # 0.944
        ([ImportanceMask("token", high=2.5), ImportanceMask("turn", low=0.6)], [1, 0, 0, 0, 0]),
    ],
)
def test_masks_leave_out_what_is_out_of_range(masks: list[ImportanceMask], expected: list[int]):
    found = weights(replace(ALL_KEPT, masks=tuple(masks)))
    torch.testing.assert_close(found, torch.tensor(expected).float())


def test_what_is_masked_weighs_0_and_the_rest_its_limited_ratio():
    importance = TruncatedImportance(cap=2.5, masks=(ImportanceMask("token", low=0.4),))
    torch.testing.assert_close(weights(importance), torch.tensor([2.0, 2.5, 0.5, 1.0, 0.0]))


def test_normalized_weights_have_a_mean_of_1_by_what_tokens_count():
    importance = TruncatedImportance(masks=(ImportanceMask("token", high=2.5),), normalize=True)
    # weights 2, 0, 0.5, 1, 0.25: their mean is 0.75
    torch.testing.assert_close(weights(importance), torch.tensor([8 / 3, 0.0, 2 / 3, 4 / 3, 1 / 3]))
    rollout = BATCH.rollout
    counts = Aggregation("turn_mean")(rollout.action_mask, TURNS, rollout.trajectory_ids)
    found = importance.weights(rollout, BATCH.scores, counts)
    # means of the turns 1, 0.75 and 0.25: their mean is 2 / 3
    expected = torch.tensor([3.0, 0.0, 0.75, 1.5, 0.375])
    torch.testing.assert_close(found[MASK], expected)


def test_where_all_is_masked_nothing_is_learned_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
):
    nothing = TruncatedImportance(masks=(ImportanceMask("trajectory", low=0.8),), normalize=True)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(weights(nothing), torch.zeros(5))
    assert "every sampled token of the batch is masked" in caplog.text
    caplog.clear()
    weights(TruncatedImportance(masks=(ImportanceMask(high=2.5),)))
    assert not caplog.text


@given(
    ragged_turns,
    st.sampled_from(["token", "turn", "row", "trajectory"]),
    st.booleans(),
    st.randoms(),
)
def test_neither_the_order_of_rows_nor_padding_changes_a_weight(
    rows: Turns, level: Level, normalize: bool, random: Random
):
    turns, trajectories = turn_ids_of(rows)
    differences = torch.randn(turns.shape, dtype=torch.float64)
    masks = (ImportanceMask(level, 0.5, 2.0, geometric=level != "token"),)
    importance = TruncatedImportance(level, cap=3.0, masks=masks, normalize=normalize)

    def found(turns: Tensor, differences: Tensor, trajectories: Tensor) -> Tensor:
        batch = train_batch(
            differences,
            differences,
            turn_ids=turns,
            sampled_with=torch.zeros_like(differences),
            trajectory_ids=trajectories,
        )
        counts = Aggregation("turn_mean")(turns >= 0, turns, trajectories)
        return importance.weights(batch.rollout, batch.scores, counts)

    order = list(range(len(rows)))
    random.shuffle(order)
    padded = torch.nn.functional.pad(turns[order], (0, 3, 0, 1), value=-1)
    others = torch.nn.functional.pad(differences[order], (0, 3, 0, 1), value=7.0)
    other = found(padded, others, torch.cat([trajectories[order], torch.tensor([99])]))
    wanted = found(turns, differences, trajectories)[order]
    # the mean that `normalize` divides by is one of float32 counts
    torch.testing.assert_close(other[: len(rows), : turns.shape[1]], wanted, rtol=1e-6, atol=1e-6)
    assert not other[len(rows) :].any() and not other[:, turns.shape[1] :].any()


@given(ragged_turns, st.sampled_from(["turn", "row", "trajectory"]), st.booleans())
def test_a_sequence_is_kept_whole_or_left_out_whole(rows: Turns, level: Level, geometric: bool):
    turns, trajectories = turn_ids_of(rows)
    batch = train_batch(
        0.5 * torch.randn(turns.shape),
        torch.zeros(turns.shape),
        turn_ids=turns,
        sampled_with=torch.zeros(turns.shape),
        trajectory_ids=trajectories,
    )
    mask = ImportanceMask(level, 0.9, 1.1, geometric)
    kept = replace(ALL_KEPT, masks=(mask,)).kept(batch.rollout, batch.scores)
    of_row = torch.arange(len(rows)) if level == "row" else trajectories
    sequences: dict[Any, set[bool]] = {}
    for row, column in (turns >= 0).nonzero().tolist():
        turn = int(turns[row, column]) if level == "turn" else 0
        sequences.setdefault((int(of_row[row]), turn), set()).add(bool(kept[row, column]))
    assert all(len(whether) == 1 for whether in sequences.values())


# ------------------------------------------------------------------------------- in the loss


def test_a_loss_is_multiplied_by_the_weights_and_they_carry_no_gradient():
    loss = Reinforce(TruncatedImportance(cap=2.5, masks=(ImportanceMask(low=0.4),)))
    logprobs = torch.full((2, 5), -1.0, requires_grad=True)
    old = OLD.clone().requires_grad_()
    batch = corrected(train_batch(old, ADVANTAGES, turn_ids=TURNS, sampled_with=SAMPLED), loss)
    total = (loss(logprobs, batch) * MASK).sum()
    [gradient] = torch.autograd.grad(total, logprobs)
    expected = torch.tensor([[2.0, 2.5, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(gradient, -ADVANTAGES * expected)
    assert torch.autograd.grad(total, old, allow_unused=True) == (None,)


def test_a_batch_without_importance_weights_is_refused():
    with pytest.raises(ShapeError, match=r"PPOClip has importance set, but Scores\.importance"):
        PPOClip(importance=TruncatedImportance())(OLD, BATCH)


LOSSES = [
    PPOClip(
        importance=TruncatedImportance("trajectory", masks=(ImportanceMask("turn", 0.5, 2.0),))
    ),
    GSPO(
        0.2,
        0.3,
        importance=TruncatedImportance(
            "turn",
            geometric=True,
            masks=(ImportanceMask("trajectory", 0.9, 1.1, geometric=True),),
            normalize=True,
        ),
    ),
]


@pytest.mark.parametrize("loss", LOSSES, ids=["product", "geometric"])
@pytest.mark.parametrize("mode", ["token_mean", "turn_mean", "trajectory_mean"])
def test_micro_batches_of_two_ranks_add_up_to_the_batch(loss: Any, mode: Any):
    # a trajectory of two rows, of which micro-batches of one row see one each, and three others
    rows: Turns = [(0, [2, 3]), (0, [4]), (1, [1, 1, 2]), (2, [5]), (3, [2, 2])]
    turns, _ = turn_ids_of([(min(t, 2), lengths) for t, lengths in rows])
    trajectories = torch.tensor([trajectory for trajectory, _ in rows])
    noise = torch.randn(3, *turns.shape, dtype=torch.float64, generator=torch.manual_seed(1))
    batch = train_batch(
        -1 + 0.3 * noise[0],
        noise[1],
        turn_ids=turns,
        sampled_with=torch.full_like(noise[0], -1.0),
        trajectory_ids=trajectories,
    )
    aggregation = Aggregation(mode)
    counts = aggregation(turns >= 0, turns, trajectories)
    weights = loss.importance.weights(batch.rollout, batch.scores, counts)
    scores = replace(batch.scores, importance=weights)
    assert (weights[turns >= 0] == 0).any() and (weights > 0).any()
    # every token has its own input id, and so its own parameter
    ids = torch.arange(turns.numel()).view(turns.shape)
    rollout = replace(batch.rollout, input_ids=ids)

    def gradient(parts: list[TrainBatch]) -> Tensor:
        parameters = (-1 + 0.3 * noise[2]).flatten().requires_grad_()
        for part in parts:
            logprobs = parameters[part.rollout.input_ids]
            (part.weights * loss(logprobs, part)).sum().backward()
        assert parameters.grad is not None
        return parameters.grad

    def serve(micro_batch_size: int, rank: int = 0, ranks: int = 1) -> list[TrainBatch]:
        return list(
            MinibatchLoader(
                rollout,
                scores,
                batch.credit,
                aggregation,
                minibatch_size=5,
                micro_batch_size=micro_batch_size,
                passes=1,
                seed=0,
                ranks=ranks,
                rank=rank,
            )
        )

    whole = gradient(serve(5))
    assert whole.any() and not whole[(weights == 0).flatten()].any()
    torch.testing.assert_close(gradient([*serve(1, 0, 2), *serve(1, 1, 2)]), whole)


# --------------------------------------------------------------------------------- exactness


def expectation(sampler: Tensor, loss: Tensor, logits: Tensor) -> Tensor:
    """Gradient of the expected loss; rows are outcomes, each with its probability."""
    return torch.autograd.grad((sampler * loss).sum(), logits, retain_graph=True)[0]


def test_a_bandit_sampled_by_another_policy_gets_the_gradient_of_its_own():
    """Both actions are enumerated; without the weight the gradient is that of another policy."""
    logits = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)[:, None]  # one row per action
    sampler = torch.tensor([[0.4], [0.6]], dtype=torch.float64)
    rewards = torch.tensor([[1.0], [0.2]], dtype=torch.float64)
    batch = train_batch(logprobs.detach(), rewards, sampled_with=sampler.log())
    [truth] = torch.autograd.grad(-(logprobs.exp() * rewards).sum(), logits, retain_graph=True)
    loss = PPOClip(importance=TruncatedImportance(cap=10.0))
    found = expectation(sampler, loss(logprobs, corrected(batch, loss)), logits)
    torch.testing.assert_close(found, truth)
    assert not torch.allclose(expectation(sampler, PPOClip()(logprobs, batch), logits), truth)


def test_a_mask_takes_its_actions_out_of_the_expectation():
    """The result is the gradient of the current policy over the unmasked actions."""
    logits = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)[:, None]
    sampler = torch.tensor([[0.4], [0.1], [0.5]], dtype=torch.float64)
    # ratios of about 1.08, 2.14 and 0.71: the mask leaves the second action out
    rewards = torch.tensor([[1.0], [3.0], [0.2]], dtype=torch.float64)
    batch = train_batch(logprobs.detach(), rewards, sampled_with=sampler.log())
    loss = Reinforce(TruncatedImportance(cap=None, masks=(ImportanceMask("row", 0.5, 2.0),)))
    kept = torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)
    objective = -(kept * rewards * logprobs.exp()).sum()
    [truth] = torch.autograd.grad(objective, logits, retain_graph=True)
    found = expectation(sampler, loss(logprobs, corrected(batch, loss)), logits)
    torch.testing.assert_close(found, truth)


@pytest.mark.parametrize(("level", "exact"), [("trajectory", True), ("row", False)])
def test_the_product_over_a_trajectory_is_exact_also_when_its_turns_are_rows(
    level: Level, exact: bool
):
    """Two turns of one token, each in a row of its own as with a window: all four episodes."""
    logits = torch.tensor([[0.3, -0.4], [0.2, 0.5], [-0.6, 0.1]], dtype=torch.float64)
    logits.requires_grad_()  # of the first action, and of the second after each first one
    other = torch.tensor([[0.4, 0.6], [0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    policy = logits.log_softmax(-1)
    episodes = list(product((0, 1), (0, 1)))
    chosen = [(state, action) for a, b in episodes for state, action in ((0, a), (1 + a, b))]
    logprobs = torch.stack([policy[place] for place in chosen])[:, None]  # a row for each turn
    sampled = torch.stack([other[place] for place in chosen])[:, None].log()
    rewards = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    batch = train_batch(
        logprobs.detach(),
        rewards.repeat_interleave(2)[:, None],
        turn_ids=torch.tensor([0, 1] * 4)[:, None],
        sampled_with=sampled,
        trajectory_ids=torch.arange(4).repeat_interleave(2),
    )
    chances = policy.exp()
    likelihoods = torch.stack([chances[0, a] * chances[1 + a, b] for a, b in episodes])
    [truth] = torch.autograd.grad(-(likelihoods * rewards).sum(), logits, retain_graph=True)
    loss = Reinforce(TruncatedImportance(level, cap=None))
    sampler = sampled.view(4, 2).sum(1).exp().repeat_interleave(2)[:, None]
    found = expectation(sampler, loss(logprobs, corrected(batch, loss)), logits)
    assert torch.allclose(found, truth) == exact


# ----------------------------------------------------------------------------------- metrics


def test_metrics_tell_how_far_engine_and_trainer_are_apart():
    masks = (ImportanceMask(low=0.4, high=2.5),)
    importance = TruncatedImportance(cap=1.8, floor=0.6, masks=masks)
    metrics = importance.metrics(BATCH.rollout, BATCH.scores)
    # ratios 2, 3, 0.5, 1 and 0.25; weights 1.8, 0, 0.6, 1 and 0: mean 3.4 / 5, mean square 4.6 / 5
    expected = {
        "importance_weight": 0.68,
        "importance_capped": 0.2,
        "importance_floored": 0.2,
        "importance_masked": 0.4,
        "importance_sample_size": 0.68**2 / 0.92,
    }
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected)


def test_without_limits_nothing_is_capped_floored_or_masked():
    metrics = TruncatedImportance(cap=None).metrics(BATCH.rollout, BATCH.scores)
    for name in ("capped", "floored", "masked"):
        assert metrics[f"importance_{name}"] == 0


def test_where_engine_and_trainer_agree_the_narrowest_limits_change_nothing():
    importance = TruncatedImportance(
        cap=1.0, floor=1.0, masks=(ImportanceMask(low=1.0), ImportanceMask("turn", high=1.0))
    )
    batch = train_batch(OLD, ADVANTAGES, turn_ids=TURNS)
    counts = MASK.float()
    torch.testing.assert_close(
        importance.weights(batch.rollout, batch.scores, counts)[MASK], torch.ones(5)
    )
    assert {
        name: float(value)
        for name, value in importance.metrics(batch.rollout, batch.scores).items()
    } == {
        "importance_weight": 1,
        "importance_capped": 0,
        "importance_floored": 0,
        "importance_masked": 0,
        "importance_sample_size": 1,
    }


# --------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TruncatedImportance(cap=0.5), r"cap is 0\.5"),
        (lambda: TruncatedImportance(floor=1.5), r"floor is 1\.5"),
        (lambda: TruncatedImportance(floor=0.0), r"floor is 0\.0"),
        (
            lambda: TruncatedImportance(geometric=True),
            r"^TruncatedImportance has geometric true and",
        ),
        (lambda: ImportanceMask(), r"neither low nor high"),
        (lambda: ImportanceMask(low=1.1, high=2.0), r"low is 1\.1"),
        (lambda: ImportanceMask(low=0.5, high=0.9), r"high is 0\.9"),
        (lambda: ImportanceMask(high=2.0, geometric=True), r"ImportanceMask has geometric true"),
    ],
)
def test_limits_that_cannot_work_are_refused(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
