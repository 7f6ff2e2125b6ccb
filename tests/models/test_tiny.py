"""Tiny models: what their shape decides."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from tests import toy
from vagentrl.errors import ConfigError
from vagentrl.models.tiny import TinyModel, build_model


def vision_model(**shape: float) -> PreTrainedModel:
    torch.manual_seed(0)
    return build_model(TinyModel(layers=1, **shape), toy.tokenizer())  # pyright: ignore


def embedded(model: PreTrainedModel, *patches: torch.Tensor) -> torch.Tensor:
    """What the vision tower starts with, ``(N, D)``; a patch is ``(3, 2, 14, 14)``."""
    tower = model.model.visual  # pyright: ignore
    return tower.patch_embed(torch.stack([patch.flatten() for patch in patches])).detach()


def test_filters_of_contrast_see_an_object_and_not_the_brightness_of_what_is_around_it():
    light, dark = torch.full((3, 2, 14, 14), 1.5), torch.full((3, 2, 14, 14), -0.5)
    with_object = light.clone()
    with_object[1, :, 8:, 4:10] = -1.5
    for contrast, alike in ((0.8, False), (0.0, True)):
        seen = embedded(vision_model(contrast=contrast), light, dark, with_object)
        closeness = torch.cosine_similarity(seen[0], seen[2], dim=0)
        assert (closeness > 0.8) == alike
    torch.testing.assert_close(
        embedded(vision_model(contrast=0.8), light, dark), torch.zeros(2, 64), atol=1e-3, rtol=0
    )


def test_filters_of_contrast_have_the_standard_deviation_that_is_asked_for():
    weight = vision_model(contrast=0.8).model.visual.patch_embed.proj.weight  # pyright: ignore
    assert weight.std().item() == pytest.approx(0.8, rel=0.02)
    assert weight.requires_grad


def test_the_base_of_rotations_reaches_the_language_model():
    frequencies = vision_model(rope_theta=16).model.language_model.rotary_emb.inv_freq  # pyright: ignore
    # a head of 32 has 16 frequencies: 16 ** (-i / 16) for i from 0 to 15
    assert frequencies[4].item() == pytest.approx(0.5)
    assert frequencies[12].item() == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("setting", "wanted"), [({"contrast": -0.1}, "contrast is -0.1"), ({"rope_theta": 1}, "try 30")]
)
def test_a_start_that_no_model_could_have_is_refused(setting: dict[str, float], wanted: str):
    with pytest.raises(ConfigError, match=wanted):
        TinyModel(**setting)  # pyright: ignore
