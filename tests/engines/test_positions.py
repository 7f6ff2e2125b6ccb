import random

import pytest
import torch

from tests.engines.policies import IMAGE, VISION_POLICIES, Conversation, patches
from vagentrl.engines.positions import image_spans, mrope_positions
from vagentrl.errors import ShapeError


def test_an_image_lies_on_a_grid_and_text_goes_on_after_its_longer_side():
    ids = [5, 6, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, 7, 8]
    # 2 rows of 3, from position 2 on; then 2 + max(2, 3) = 5
    time = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6]
    height = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6]
    width = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    assert mrope_positions(ids, IMAGE, [(1, 2, 3)], 1).tolist() == [time, height, width]
    assert mrope_positions(ids, IMAGE, [(1, 4, 6)], 2).tolist() == [time, height, width]
    assert image_spans(ids, IMAGE, [(1, 2, 3)], 1) == [(2, 8)]


def test_text_alone_counts_up_on_every_axis():
    assert mrope_positions([4, 5, 6], IMAGE, [], 2).tolist() == [[0, 1, 2]] * 3


def test_images_without_text_between_them_are_told_apart_by_their_grids():
    spans = image_spans([IMAGE] * 6, IMAGE, [(1, 1, 2), (1, 2, 2)], 1)
    assert spans == [(0, 2), (2, 6)]


@pytest.mark.parametrize("build", VISION_POLICIES)
def test_positions_equal_the_models_own(build):
    policy = build()
    merge = policy.config.vision_config.spatial_merge_size
    for seed in range(20):
        conversation = Conversation(policy, seed)
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 5)):
            conversation.say(rng.randrange(3)).show().say(rng.randrange(9))
        grids = patches(conversation.images).image_grid_thw
        row = torch.tensor([conversation.ids])
        wanted, _ = policy.model.get_rope_index(
            row, image_grid_thw=grids, mm_token_type_ids=(row == IMAGE).int()
        )
        found = mrope_positions(
            conversation.ids, IMAGE, [(1, h, w) for _, h, w in grids.tolist()], merge
        )
        assert found.tolist() == wanted[:, 0].tolist()


def test_one_image_token_too_many_is_an_error():
    with pytest.raises(ShapeError, match="1 images need 4 image tokens but the context holds 5"):
        image_spans([IMAGE] * 5, IMAGE, [(1, 4, 4)], 2)
