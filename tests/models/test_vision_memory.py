from typing import Any

import pytest
import torch
from torch import Tensor

from tests import toy
from tests.engines.policies import qwen2_5_vl, qwen2_vl, qwen3_vl
from vagentrl.models.vision_memory import remember_images


def frozen(policy: Any) -> Any:
    return policy.base_model.visual.requires_grad_(False)


def inputs(*left: int) -> tuple[Tensor, Tensor]:
    vision = toy.renderer(images=True).encode_images([toy.picture(n) for n in left])
    shown = vision.model_inputs()
    return shown["pixel_values"], shown["image_grid_thw"]


def counted(tower: Any) -> list[int]:
    """The images of each call of the tower itself."""
    calls: list[int] = []
    encode = tower.forward

    def forward(pixel_values: Tensor, grid_thw: Tensor, **settings: Any) -> Any:
        calls.append(len(grid_thw))
        return encode(pixel_values, grid_thw, **settings)

    tower.forward = forward
    return calls


@pytest.mark.parametrize("policy", [qwen2_vl, qwen2_5_vl, qwen3_vl])
def test_what_is_remembered_is_what_would_be_encoded(policy: Any):
    tower = frozen(policy())
    patches, grid = inputs(3, 1, 3, 2)
    wanted = tower(patches, grid)
    calls = counted(tower)
    remember_images(tower)
    for _ in range(2):
        found = tower(patches, grid)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found.pooler_output, wanted.pooler_output)
        deep = zip(
            getattr(found, "deepstack_features", None) or (),
            getattr(wanted, "deepstack_features", None) or (),
            strict=True,
        )
        for mine, its in deep:
            torch.testing.assert_close(mine, its)
    assert calls == [1, 1, 1]  # 3, 1 and 2 left, one by one and once


def test_an_image_has_the_same_features_to_the_bit_whatever_is_shown_with_it():
    alone, together = (frozen(qwen2_5_vl()) for _ in range(2))
    together.load_state_dict(alone.state_dict())
    for tower in (alone, together):
        remember_images(tower)
    first = alone(*inputs(1)).pooler_output
    among = together(*inputs(3, 1, 2)).pooler_output
    assert torch.equal(among[4 : 4 + len(first)], first)  # 3 left takes 4 places


def test_other_weights_are_noticed():
    tower = frozen(qwen2_5_vl())
    remember_images(tower)
    before = tower(*inputs(1)).pooler_output
    tower.load_state_dict({name: 2 * w for name, w in tower.state_dict().items()})
    assert not torch.equal(tower(*inputs(1)).pooler_output, before)


def test_the_images_unused_for_longest_are_forgotten():
    tower = frozen(qwen2_5_vl())
    one = tower(*inputs(1)).pooler_output
    calls = counted(tower)
    remember_images(tower, limit=5 * one[:1].numel() * one.element_size())  # 5 places
    tower(*inputs(1))  # 2 places
    tower(*inputs(0))  # 1
    tower(*inputs(1))  # known
    tower(*inputs(2))  # 3: 0 left has to go
    assert len(calls) == 3
    tower(*inputs(1))
    assert len(calls) == 3
    tower(*inputs(0))
    assert len(calls) == 4


def test_features_that_sampling_remembered_can_be_learned_from():
    tower = frozen(qwen2_5_vl())
    remember_images(tower)
    with torch.inference_mode():
        tower(*inputs(1))
    features = tower(*inputs(1)).pooler_output
    weight = torch.ones(features.shape[-1], requires_grad=True)
    (features * weight).sum().backward()
    assert weight.grad is not None


def test_the_names_of_the_weights_stay_as_they_are():
    policy = qwen2_5_vl()
    names = list(policy.state_dict())
    remember_images(frozen(policy))
    assert list(policy.state_dict()) == names
