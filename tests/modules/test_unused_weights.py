"""Gradients of 0 for what a loss leaves out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests import toy
from tests.engines.policies import qwen2_5_vl, qwen2_vl, qwen3_vl
from vagentrl.modules.unused_weights import touch, vision_in_every_pass


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype))


def test_the_loss_keeps_its_value_and_its_gradients_and_the_rest_get_0():
    used, unused, half = weight(2), weight(3, 4), weight(5, dtype=torch.bfloat16)
    loss = (used * torch.tensor([2.0, 3.0])).sum()
    touched = touch(loss, [used, unused, half])
    assert touched.item() == 5
    touched.backward()
    assert used.grad is not None and used.grad.tolist() == [2, 3]
    for left_out in (unused, half):
        assert left_out.grad is not None and left_out.grad.dtype == left_out.dtype
        assert left_out.grad.shape == left_out.shape and not left_out.grad.any()


def test_a_gradient_of_0_is_one_number_in_the_backward_pass():
    used, unused = weight(2), weight(1000, 1000)
    sizes: list[int] = []
    unused.register_hook(lambda gradient: sizes.append(gradient.untyped_storage().nbytes()))
    touch(used.sum(), [used, unused]).backward()
    assert sizes == [4]


def test_weights_that_the_loss_depends_on_get_its_gradient_alone():
    used, read = weight(2, 2), weight(2, 2)
    arrived: list[Tensor] = []
    for each in (used, read):
        each.register_hook(arrived.append)
    recomputed: Tensor = checkpoint(lambda x: x @ used, read, use_reentrant=False)  # pyright: ignore
    loss = recomputed.square().sum()
    touched = touch(loss, [used, read])
    assert touched is loss  # nothing is left out
    touched.backward()
    assert len(arrived) == 2


def test_what_is_left_out_stays_0_in_a_loss_that_is_not_finite():
    used, unused = weight(1), weight(2)
    touch((used * torch.nan).sum(), [unused]).backward()
    assert unused.grad is not None and unused.grad.tolist() == [0, 0]


def test_gradients_of_micro_batches_add_up():
    one, other = weight(1), weight(1)
    for used in (one, other, one):
        touch(used.sum(), [one, other]).backward()
    assert one.grad is not None and other.grad is not None
    assert [one.grad.item(), other.grad.item()] == [2, 1]


def inputs(policy: Any, *left: int) -> dict[str, Tensor]:
    """A few tokens of text, each after a toy picture if any are given."""
    if not left:
        return {"input_ids": torch.tensor([[7, 8, 9, 10, 11]])}
    vision = toy.renderer(images=True).encode_images([toy.picture(n) for n in left])
    shown, image = vision.model_inputs(), policy.config.image_token_id
    counts = (shown["image_grid_thw"].prod(-1) // 4).tolist()  # patches to a token
    ids = torch.tensor([[token for count in counts for token in [image] * count + [7]]])
    return {"input_ids": ids, "mm_token_type_ids": (ids == image).int(), **shown}


def gradients(policy: Any, *left: int) -> dict[str, Tensor]:
    """The gradients of a backbone after a pass, in the order in which they were complete."""
    backbone, found = policy.base_model, {}
    backbone.zero_grad()
    names = {weight: name for name, weight in backbone.named_parameters()}
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda w: found.update({names[w]: w.grad}))
        for weight in names
    ]
    states = backbone(**inputs(policy, *left)).last_hidden_state
    states.mul(torch.linspace(-1, 1, states.shape[-1])).sum().backward()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("policy", [qwen2_vl, qwen2_5_vl, qwen3_vl])
def test_gradients_come_in_one_order_whether_a_pass_has_images_or_not(policy: Any):
    model = policy()
    with vision_in_every_pass([model.base_model]):
        with_images, without = gradients(model, 2, 1), gradients(model)
    assert list(with_images) == list(without)
    alone = gradients(model)  # the hooks are gone
    assert any(with_images[n].any() for n in without if n.startswith("visual."))
    for name, gradient in without.items():
        if name.startswith("visual."):
            assert not gradient.any() and name not in alone
        else:
            torch.testing.assert_close(gradient, alone[name], rtol=0, atol=0)


def test_a_tower_that_learns_runs_once_in_every_pass_of_the_block_and_a_frozen_one_does_not():
    model: Any = qwen2_5_vl()
    tower, calls = model.base_model.visual, []
    tower.register_forward_hook(lambda *_: calls.append(1))
    tower.requires_grad_(False)
    with vision_in_every_pass([model.base_model]):
        model.base_model(**inputs(model))
    assert calls == []
    tower.requires_grad_(True)
    with vision_in_every_pass([model.base_model]):
        for left in ((), (1,), ()):
            model.base_model(**inputs(model, *left))
    assert calls == [1, 1, 1]
