import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests import toy
from vagentrl.models import forward
from vagentrl.models.forward import states_before, token_logprobs
from vagentrl.rollout.collate import collate
from vagentrl.types import RolloutBatch

BANNED = torch.tensor(sorted(toy.renderer().banned_ids))
text_and_images = pytest.mark.parametrize("images", [False, True], ids=["text", "images"])


def batch(images: bool) -> RolloutBatch:
    """Long, short and truncated episodes; with images, one row has none."""
    played = [
        toy.play([toy.GO, toy.WAIT, toy.GO], seed=1, images=images),
        toy.play([toy.WAIT] * 3, seed=2, images=images, turn_limit=3),
        toy.play([toy.GO], seed=0),
        toy.play([toy.GO] * 4, seed=3, images=images),
    ]
    rollout = collate(played, toy.renderer(images), temperature=0.7, at_limit="bootstrap")
    return rollout.to("cpu")


def scored(policy: PreTrainedModel, rollout: RolloutBatch) -> tuple[Tensor, Tensor]:
    states = states_before(policy.base_model, rollout)
    logprobs, entropy = token_logprobs(policy, states, rollout, BANNED, with_entropy=True)
    assert entropy is not None
    return logprobs, entropy


def by_the_whole_model(policy: PreTrainedModel, row: RolloutBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one row as Hugging Face's own forward has them."""
    length = int(row.attention_mask.sum())
    ids = row.input_ids[:, :length]
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    vision = row.patches.model_inputs() if row.patches is not None else {}
    if vision:
        image_token = policy.config.image_token_id
        inputs |= vision | {"mm_token_type_ids": (ids == image_token).int()}  # pyright: ignore
    logits = policy(**inputs).logits[0] / row.temperature
    logits[:, BANNED] = -torch.inf
    wanted, entropies = torch.zeros(length + 1), torch.zeros(length + 1)
    for column in row.action_mask[0].nonzero().flatten().tolist():
        before = torch.distributions.Categorical(logits=logits[column - 1])
        wanted[column] = before.log_prob(ids[0, column])
        entropies[column] = before.entropy()
    return wanted, entropies


@text_and_images
def test_scores_are_those_of_the_whole_model_at_the_position_before(images: bool):
    policy, rollout = toy.model(images), batch(images)
    logprobs, entropy = scored(policy, rollout)
    for number in range(len(rollout)):
        row = rollout.select(torch.tensor([number]))
        wanted = by_the_whole_model(policy, row)
        width = row.input_ids.shape[1]
        torch.testing.assert_close(logprobs[number, :width], wanted[0])
        torch.testing.assert_close(entropy[number, :width], wanted[1])
        assert not logprobs[number, width:].any()


def test_a_vision_language_model_reads_batches_without_images():
    policy, rollout = toy.model(images=True), batch(images=False)
    row = rollout.select(torch.tensor([1]))
    logprobs = scored(policy, rollout)[0][1, : row.input_ids.shape[1]]
    torch.testing.assert_close(logprobs, by_the_whole_model(policy, row)[0])


@text_and_images
def test_padding_order_and_batch_size_change_nothing(images: bool):
    policy, rollout = toy.model(images), batch(images)
    together = scored(policy, rollout)
    order = torch.tensor([2, 0, 3, 1])
    for part in (order, order[:2], order[2:3], order[3:]):
        selected = rollout.select(part)
        width = selected.input_ids.shape[1]
        for found, whole in zip(scored(policy, selected), together, strict=True):
            torch.testing.assert_close(found, whole[part, :width])


def test_what_stands_in_the_padding_changes_nothing():
    policy, rollout = toy.model(), batch(images=False)
    noise = torch.randint(7, 300, rollout.input_ids.shape)
    other = replace(rollout, input_ids=rollout.input_ids.where(rollout.attention_mask, noise))
    torch.testing.assert_close(scored(policy, other), scored(policy, rollout))


@text_and_images
def test_a_state_has_read_everything_before_its_token(images: bool):
    policy, rollout = toy.model(images), batch(images)
    row = rollout.select(torch.tensor([1]))  # truncated: read after the end as well
    read: list[int] = []
    policy.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: read.append(inputs[0].shape[1])
    )
    states = states_before(policy.base_model, row)
    length = int(row.attention_mask.sum())
    assert states.shape == (1, length + 1, 32)
    assert read == [length]  # no token beyond the row's own: it may be as long as the context
    assert not states[0, 0].any()
    hidden: list[Tensor] = []
    policy.lm_head.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
    by_the_whole_model(policy, row)
    torch.testing.assert_close(states[:, 1:], hidden[0])


class Head(nn.Module):
    """A policy that consists of a head only: its states are the logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.head = nn.Linear(vocabulary, vocabulary, bias=False)
        nn.init.eye_(self.head.weight)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def score_states(
    states: Tensor, ids: list[int], *, temperature: float = 1.0, banned: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """One row with a token for every state, the first of which is not sampled."""
    input_ids = torch.tensor([ids])
    sampled = torch.tensor([[False] + [True] * (len(ids) - 1)])
    rollout = toy.one_turn_rows(input_ids, torch.ones_like(sampled), sampled)
    rollout = replace(rollout, temperature=temperature)
    policy: Any = Head(states.shape[-1]).to(states.dtype)
    banned_ids = torch.tensor(banned, dtype=torch.long)
    logprobs, entropy = token_logprobs(policy, states[None], rollout, banned_ids, with_entropy=True)
    assert entropy is not None
    return logprobs[0], entropy[0]


STATE = torch.tensor([0.5, 0.25, 0.25]).log()


@pytest.mark.parametrize(
    ("temperature", "banned", "chances"),
    [
        (1.0, (), [1 / 2, 1 / 4, 1 / 4]),
        (1.0, (2,), [2 / 3, 1 / 3]),  # what is left, normalised
        (0.5, (), [2 / 3, 1 / 6, 1 / 6]),  # 1/4, 1/16, 1/16, normalised
        (0.5, (0, 1), [0, 0, 1]),
    ],
)
def test_log_probs_and_entropy_by_hand(
    temperature: float, banned: tuple[int, ...], chances: list[float]
):
    token = 2 if 0 in banned else 0
    logprobs, entropy = score_states(
        torch.stack([STATE, STATE]), [1, token], temperature=temperature, banned=banned
    )
    wanted = -sum(p * math.log(p) for p in chances if p)
    torch.testing.assert_close(logprobs, torch.tensor([0.0, math.log(chances[token])]))
    torch.testing.assert_close(entropy, torch.tensor([0.0, wanted]))


def test_the_entropy_of_a_banned_token_has_a_gradient_of_zero():
    states = torch.stack([STATE, STATE]).requires_grad_()
    logprobs, entropy = score_states(states, [1, 0], banned=(2,))
    (logprobs.sum() + entropy.sum()).backward()
    assert states.grad is not None
    assert states.grad.isfinite().all()
    assert states.grad[1, 2] == 0


@text_and_images
def test_no_gradient_comes_from_tokens_that_were_observed(images: bool):
    policy, rollout = toy.model(images), batch(images)
    states = states_before(policy.base_model, rollout).detach().requires_grad_()
    logprobs, entropy = token_logprobs(policy, states, rollout, BANNED, with_entropy=True)
    assert entropy is not None
    (logprobs.sum() + entropy.sum()).backward()
    assert states.grad is not None
    assert states.grad.abs().sum(-1).gt(0).equal(rollout.action_mask)


def test_a_batch_in_which_nothing_was_sampled_scores_zero():
    policy, rollout = toy.model(), batch(images=False)
    nothing = replace(rollout, action_mask=torch.zeros_like(rollout.action_mask))
    logprobs, entropy = scored(policy, nothing)
    assert not logprobs.any()
    assert not entropy.any()


def gradients(policy: PreTrainedModel, rollout: RolloutBatch) -> list[Tensor]:
    policy.zero_grad()
    logprobs, entropy = scored(policy, rollout)
    (logprobs.sum() + 0.1 * entropy.sum()).backward()
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


@text_and_images
def test_chunks_change_neither_scores_nor_gradients(images: bool, monkeypatch: pytest.MonkeyPatch):
    policy, rollout = toy.model(images), batch(images)
    whole, whole_gradients = scored(policy, rollout), gradients(policy, rollout)
    calls: list[int] = []
    policy.lm_head.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    monkeypatch.setattr(forward, "LOGITS_PER_CHUNK", 4 * policy.lm_head.out_features)
    tokens = int(rollout.action_mask.sum())
    chunks = [4] * (tokens // 4) + [tokens % 4] * (tokens % 4 > 0)
    with torch.no_grad():
        torch.testing.assert_close(scored(policy, rollout), whole)
    assert calls == chunks
    calls.clear()
    torch.testing.assert_close(gradients(policy, rollout), whole_gradients)
    assert sorted(calls) == sorted(chunks * 2)  # once more in the backward pass, for its memory


def test_scores_are_in_float32_at_least():
    for dtype, wanted in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        assert scored(toy.model(dtype=dtype), batch(images=False))[0].dtype == wanted
