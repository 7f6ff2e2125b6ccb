"""Rows read end to end, and shared prefixes once, give what rows read one by one give."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from tests import toy
from vagentrl.contexts import FullHistory, Window
from vagentrl.models import packing
from vagentrl.models.forward import packing_of, states_before, token_logprobs
from vagentrl.models.load import load_model
from vagentrl.models.lora import LoRA, add_adapter
from vagentrl.models.packing import Packing, allow_packing, may_pack, pack, reading_order
from vagentrl.rollout.collate import collate
from vagentrl.types import RolloutBatch, VisionInputs

text_and_images = pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
STATES, GRADIENTS = 5e-6, 3e-6  # of states up to 4, and relative to the largest gradient
IMAGE = toy.renderer(images=True).image_token_id
GRIDS = torch.tensor([[1, 2, 4], [1, 4, 2], [1, 2, 4]])  # 2 tokens each; the first and the last
PATCHES = torch.randn(24, 1176, generator=torch.Generator().manual_seed(0))  # differ in patches


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch):
    """Pack whatever it saves."""
    monkeypatch.setattr(packing, "SAVED_AT_LEAST", -100.0)


@cache
def model(images: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    policy = toy.model(images)
    allow_packing(policy)
    return policy


def batch(rows: list[list[int]], images: list[tuple[int, ...]] | None = None) -> RolloutBatch:
    """Rows of these tokens, all sampled but the first and those of images."""
    width = max(map(len, rows)) + 1
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    real = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
    sampled = real & (torch.arange(width) > 0) & (ids != IMAGE)
    vision = None if images is None else VisionInputs(PATCHES, GRIDS, tuple(images))
    return toy.one_turn_rows(ids, real, sampled, vision)


def one_by_one(policy: PreTrainedModel, rollout: RolloutBatch) -> Tensor:
    """States of each row, read alone and padded."""
    config, width = policy.config.get_text_config(), rollout.input_ids.shape[1]
    states = []
    config._attn_implementation = "sdpa"
    for number in range(len(rollout)):
        row = states_before(policy.base_model, rollout.select(torch.tensor([number])))[0]
        states.append(torch.nn.functional.pad(row, (0, 0, 0, width - len(row))))
    config._attn_implementation = packing.ATTENTION
    return torch.stack(states)


def used(rollout: RolloutBatch) -> Tensor:
    """True where a state has read tokens and no padding."""
    return rollout.attention_mask | rollout.attention_mask.roll(1, dims=1)


def gradients(policy: PreTrainedModel, states: Tensor, rollout: RolloutBatch) -> list[Tensor]:
    """Of the sampled tokens' log-probs, each with a weight, and of all the states themselves."""
    policy.zero_grad()
    device = states.device
    none_banned = torch.tensor([], dtype=torch.long, device=device)
    logprobs, _ = token_logprobs(policy, states, rollout, none_banned)
    weights = torch.linspace(-1, 2, logprobs.numel(), device=device).view(logprobs.shape)
    mean = (states[used(rollout)] * torch.linspace(-1, 1, states.shape[-1], device=device)).mean()
    ((weights * logprobs).sum() + mean).backward()
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


def assert_read_alike(policy: PreTrainedModel, rollout: RolloutBatch) -> Packing:
    """Compare rows read packed with rows read one by one: states, log-probs and gradients."""
    found = packing_of(policy.base_model, rollout)
    assert found is not None
    packed, alone = states_before(policy.base_model, rollout), one_by_one(policy, rollout)
    where = used(rollout)
    torch.testing.assert_close(packed[where], alone[where], atol=STATES, rtol=0)
    assert not packed[:, 0].any()
    here, there = (gradients(policy, states, rollout) for states in (packed, alone))
    largest = max(float(gradient.abs().max()) for gradient in there)
    torch.testing.assert_close(here, there, atol=GRADIENTS * largest, rtol=0)
    return found


tokens = st.integers(7, 12)  # so few that rows often begin alike


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(tokens, min_size=2, max_size=9), min_size=1, max_size=6))
def test_random_rows_of_text(rows: list[list[int]]):
    assert_read_alike(model(images=False), batch(rows))


pieces = st.one_of(tokens, st.sampled_from([-1, -2, -3]))  # -1 - i: image i


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(pieces, min_size=2, max_size=8), min_size=1, max_size=5))
def test_random_rows_with_images(rows: list[list[int]]):
    written = [
        [7, *(t for piece in row for t in ([7, IMAGE, IMAGE, 8] if piece < 0 else [piece])), 9]
        for row in rows
    ]
    shown = [tuple(-1 - piece for piece in row if piece < 0) for row in rows]
    assert_read_alike(model(images=True), batch(written, shown))


@text_and_images
@pytest.mark.parametrize(
    "context", [FullHistory(), Window(1), Window(2, clear_every=2)], ids=["all", "one", "two"]
)
def test_episodes_of_groups(images: bool, context: Any):
    replies = [[toy.GO, toy.WAIT, toy.GO], [toy.GO, toy.GO], [toy.WAIT, toy.GO, toy.GO], [toy.GO]]
    played = [
        toy.play(said, seed=seed, images=images, context=context, group_id=group)
        for group, seed in enumerate((1, 3))
        for said in replies
    ]
    rollout = collate(played, toy.renderer(images), temperature=0.7, at_limit="bootstrap")
    found = assert_read_alike(model(images), rollout.to("cpu"))
    assert len(found.cells) < 0.7 * rollout.input_ids.numel()


def test_a_prefix_stands_once_and_padding_never():
    # alphabetical: 5 6, 5 6 7 8, 5 6 9, 6; the sequence adds 5 6 | 7 8 | 9 | 6
    rows = torch.tensor([[6, 0, 0, 0], [5, 6, 7, 8], [5, 6, 0, 0], [5, 6, 9, 0]])
    found = pack(rows, rows > 0)
    assert rows.flatten()[found.cells].tolist() == [5, 6, 7, 8, 9, 6]
    assert found.places.tolist() == [[5, 0, 0, 0], [0, 1, 2, 3], [0, 1, 0, 0], [0, 1, 4, 0]]
    assert found.keys.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 4, 5]
    assert (found.new, found.lengths) == ((2, 2, 1, 1), (2, 4, 3, 1))
    states = torch.arange(1.0, 7.0)[:, None]
    unpacked = [[6, 0, 0, 0], [1, 2, 3, 4], [1, 2, 0, 0], [1, 2, 5, 0]]
    assert found.unpack(states)[..., 0].tolist() == unpacked


def test_what_stands_in_the_padding_is_not_a_token():
    rows = torch.tensor([[5, 6, 7], [5, 6, 7]])
    found = pack(rows, torch.tensor([[True, True, False], [True, True, True]]))
    assert len(found.cells) == 3
    assert found.new == (2, 1)


def test_equal_rows_are_read_once():
    found = assert_read_alike(model(images=False), batch([[7, 8, 9]] * 3))
    assert (len(found.cells), found.new) == (3, (3,))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=1, max_size=9))
def test_blocks_hold_every_query_once_and_pad_little(rows: list[list[int]]):
    rollout = batch(rows)
    found = pack(rollout.input_ids, rollout.attention_mask)
    asked = torch.cat([block.queries[block.is_query] for block in found.blocks])
    assert asked.tolist() == list(range(len(found.cells)))
    computed = sum(b.queries.numel() * b.keys.shape[1] for b in found.blocks)
    needed = sum(n * length for n, length in zip(found.new, found.lengths, strict=True))
    assert computed <= packing.PADDED_BLOCK * needed


def test_other_images_with_the_same_tokens_are_not_shared():
    row = [7, IMAGE, IMAGE, 8]
    policy = model(images=True)
    same = assert_read_alike(policy, batch([[*row, 9, 9], [*row, 10, 10]], [(0,), (0,)]))
    other = assert_read_alike(policy, batch([[*row, 9, 9], [*row, 10, 10]], [(0,), (2,)]))
    assert (len(same.cells), len(other.cells)) == (8, 11)  # all but the first token are new


def test_a_shared_image_is_encoded_once(monkeypatch: pytest.MonkeyPatch):
    policy, encoded = model(images=True), []
    hook = policy.get_submodule("model.visual").register_forward_pre_hook(
        lambda module, args, kwargs: encoded.append(len(args[0])), with_kwargs=True
    )
    row = [7, IMAGE, IMAGE, 8]
    states_before(policy.base_model, batch([[*row, 9], [*row, 10]], [(1,), (1,)]))
    hook.remove()
    assert encoded == [8]


def test_a_batch_without_images_is_read_by_a_vision_language_model():
    assert_read_alike(model(images=True), batch([[7, 8, 9, 9], [7, 8, 10]]))
    assert_read_alike(model(images=True), batch([[7, 8, 9, 9], [7, 8, 10]], [(), ()]))


@text_and_images
def test_with_an_adapter_and_without_it(images: bool):
    policy = toy.model(images)
    add_adapter(policy, LoRA(rank=2))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    allow_packing(policy)
    rollout = batch([[7, 8, 9, 10], [7, 8, 9, 11, 12]])
    assert_read_alike(policy, rollout)
    packed = states_before(policy.base_model, rollout)
    policy.disable_adapters()
    apart = states_before(policy.base_model, rollout)
    assert (packed - apart).abs().max() > 1e-3
    torch.testing.assert_close(
        apart[used(rollout)], one_by_one(policy, rollout)[used(rollout)], atol=STATES, rtol=0
    )


@text_and_images
def test_gradient_checkpointing_reads_a_packed_sequence_again(images: bool, tmp_path: Path):
    toy.model(images).save_pretrained(tmp_path)
    toy.tokenizer().save_pretrained(tmp_path)
    policy = load_model(str(tmp_path), gradient_checkpointing=True, packing=True)
    assert may_pack(policy.base_model)
    assert_read_alike(policy, batch([[7, 8, 9, 10], [7, 8, 9, 11, 12], [7, 8]]))
    policy.save_pretrained(tmp_path / "saved")  # how it attends is no part of a checkpoint
    assert packing.ATTENTION not in (tmp_path / "saved" / "config.json").read_text()


@pytest.mark.parametrize(("reply", "packs"), [(6, True), (7, False)])
def test_rows_are_packed_if_a_fifth_is_saved(
    reply: int, packs: bool, monkeypatch: pytest.MonkeyPatch
):
    # 2 rows of 4 + 6 tokens: 16 of 20 are read; of 4 + 7: 18 of 22, which saves less than a fifth
    monkeypatch.setattr(packing, "SAVED_AT_LEAST", 0.2)
    rollout = batch([[7, 8, 9, 10, *[11] * reply], [7, 8, 9, 10, *[12] * reply]])
    assert (packing_of(model(images=False).base_model, rollout) is not None) == packs


def test_a_model_packs_only_if_it_may():
    policy = toy.model()
    rollout = batch([[7, 8, 9]] * 4)
    assert packing_of(policy.base_model, rollout) is None
    policy.config._attn_implementation = "eager"
    allow_packing(policy)
    assert not may_pack(policy.base_model)
    policy.config._attn_implementation = "sdpa"
    policy.config.layer_types = ["sliding_attention", "full_attention"]
    allow_packing(policy)
    assert not may_pack(policy.base_model)
    policy.config.layer_types = ["full_attention"] * 2
    allow_packing(policy)
    assert packing_of(policy.base_model, rollout) is not None


def test_padded_reading_is_unchanged_where_packing_is_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "SAVED_AT_LEAST", 2.0)
    rollout = batch([[7, 8, 9], [7, 8, 10, 11]])
    alone = model(images=False)
    alone.config._attn_implementation = "sdpa"
    wanted = states_before(alone.base_model, rollout)
    alone.config._attn_implementation = packing.ATTENTION
    assert states_before(alone.base_model, rollout).equal(wanted)


def test_the_reading_order_keeps_groups_together_and_prefixes_beside_each_other():
    rollout = batch([[7, 9, 9], [7, 8, 9], [7, 9], [7, 8, 10]])
    rollout = replace(rollout, group_ids=torch.tensor([0, 1, 0, 0]))
    # group 0: 7 8 10, 7 9, 7 9 9 (rows 3, 2, 0); then group 1 (row 1)
    assert reading_order(rollout).tolist() == [3, 2, 0, 1]


@pytest.mark.gpu
@text_and_images
def test_flash_attention_on_a_gpu_reads_as_blocks_do(images: bool, monkeypatch: pytest.MonkeyPatch):
    policy: Any = toy.model(images, dtype=torch.bfloat16)
    policy.cuda()
    allow_packing(policy)
    prefix = list(range(7, 107))
    rollout = batch([prefix + [7] * 30, prefix + [8] * 40, [9] * 50]).to("cuda")
    flash = states_before(policy.base_model, rollout)
    by_flash = gradients(policy, flash, rollout)
    monkeypatch.setattr(packing, "_half_precision", lambda tensor: None)
    blocks = states_before(policy.base_model, rollout)
    torch.testing.assert_close(flash, blocks, atol=0.1, rtol=0.05)  # bfloat16: 8 bits
    for here, there in zip(by_flash, gradients(policy, blocks, rollout), strict=True):
        assert (here - there).norm() <= 0.05 * there.norm()
