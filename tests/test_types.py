import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from tests import toy
from vagentrl.errors import ShapeError
from vagentrl.rollout.collate import collate
from vagentrl.types import (
    Credit,
    Observation,
    Prompt,
    Reply,
    RolloutBatch,
    Scores,
    TrainBatch,
    Trajectory,
    Turn,
    VisionInputs,
)

PICTURE = Image.new("RGB", (28, 28))


def turn(reward: float, success: float = 0.0) -> Turn:
    return Turn(
        Observation("now"),
        Prompt((1, 2)),
        (3,),
        (-0.1,),
        Reply("go"),
        reward,
        "stop",
        {"success": success},
    )


def episode(*turns: Turn) -> Trajectory:
    return Trajectory("toy", 0, 0, turns, "terminated")


def store(grids: list[tuple[int, int, int]], rows: list[tuple[int, ...]]) -> VisionInputs:
    """Images whose patches are all different numbers."""
    grid = torch.tensor(grids)
    patches = torch.arange(int(grid.prod(-1).sum()))
    return VisionInputs(patches[:, None].double(), grid, tuple(rows))


def naive(vision: VisionInputs) -> tuple[Tensor, Tensor]:
    """The showings one after the other, image by image."""
    images = vision.pixel_values.split(vision.image_grid_thw.prod(-1).tolist())
    shown = [image for row in vision.rows for image in row]
    return torch.cat([images[i] for i in shown]), torch.stack(
        [vision.image_grid_thw[i] for i in shown]
    )


@st.composite
def visions(draw: st.DrawFn) -> VisionInputs:
    side = st.integers(1, 4)
    grids = draw(st.lists(st.tuples(st.integers(1, 2), side, side), min_size=1, max_size=5))
    image = st.integers(0, len(grids) - 1)
    rows = draw(st.lists(st.lists(image, max_size=4).map(tuple), min_size=1, max_size=5))
    return store(grids, rows)


def test_an_observation_needs_a_placeholder_for_every_image():
    assert Observation("a <image> and a <image>", (PICTURE, PICTURE)).images == (PICTURE, PICTURE)
    with pytest.raises(ShapeError, match="1 <image> placeholders but 0 images"):
        Observation("look: <image>")
    with pytest.raises(ShapeError, match="0 <image> placeholders but 1 images"):
        Observation("look", (PICTURE,))


def test_a_turn_needs_a_token_and_a_log_prob_for_each():
    with pytest.raises(ShapeError, match="0 tokens and 0 log-probs"):
        replace(turn(0.0), reply_ids=(), reply_logprobs=(), policy_version=0)
    with pytest.raises(ShapeError, match="2 tokens and 1 log-probs"):
        replace(turn(0.0), reply_ids=(3, 4))


def test_values_that_travel_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        turn(0.0).reward = 1.0  # pyright: ignore


def test_the_return_of_an_episode_is_the_sum_of_its_rewards():
    assert episode(turn(1.0), turn(-0.25), turn(-0.25)).total_reward == 0.5


def test_what_is_learned_from_counts_the_bonus_and_the_return_does_not():
    played = episode(turn(1.0), replace(turn(-0.25), bonus=0.5))
    assert (played.total_reward, played.learned_reward) == (0.75, 1.25)


def test_an_episode_succeeds_by_its_last_turn():
    assert episode(turn(0.0), turn(0.0, success=1.0)).success
    assert not episode(turn(0.0, success=1.0), turn(0.0)).success
    assert not episode().success


def test_pixels_and_grid_must_count_the_same_patches():
    with pytest.raises(ShapeError, match="counts 6 patches but pixel_values holds 5"):
        VisionInputs(torch.zeros(5, 3), torch.tensor([[1, 2, 3]]), ((0,),))


def test_model_inputs_show_an_image_wherever_a_row_does():
    # image 0 has 2 patches (0, 1), image 1 has 3 (2, 3, 4)
    vision = store([(1, 1, 2), (1, 3, 1)], [(1, 0), (), (1,)])
    inputs = vision.model_inputs()
    assert inputs["pixel_values"].flatten().tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert inputs["image_grid_thw"].tolist() == [[1, 3, 1], [1, 1, 2], [1, 3, 1]]


@given(visions(), st.data())
def test_model_inputs_are_the_showings_one_after_the_other(
    vision: VisionInputs, data: st.DataObject
):
    rows = st.integers(0, len(vision.rows) - 1)
    chosen = vision.select(data.draw(st.lists(rows, max_size=6)))
    inputs = chosen.model_inputs()
    if not any(chosen.rows):
        assert inputs == {}
        return
    pixels, grid = naive(chosen)
    torch.testing.assert_close(inputs["pixel_values"], pixels, rtol=0, atol=0)
    torch.testing.assert_close(inputs["image_grid_thw"], grid)


def test_images_that_are_shown_once_and_in_order_are_not_copied():
    vision = store([(1, 1, 2), (1, 3, 1)], [(0,), (1,)])
    assert vision.model_inputs()["pixel_values"] is vision.pixel_values


def batch() -> RolloutBatch:
    played = [
        toy.play([toy.GO] * 2, seed=1, images=True, group_id=5),
        toy.play([toy.WAIT] * 5, seed=2, images=True, group_id=5),
        toy.play([toy.GO], seed=0, images=True, group_id=6),
    ]
    return collate(played, toy.renderer(images=True), temperature=0.7)


def test_selected_rows_end_one_column_after_the_longest_of_them():
    whole = batch()
    lengths = whole.attention_mask.sum(-1).tolist()
    part = whole.select(torch.tensor([2, 0]))
    assert part.input_ids.shape == part.rewards.shape == (2, lengths[0] + 1)
    assert lengths[2] < lengths[0] < lengths[1]
    for row, old in enumerate([2, 0]):
        ids = whole.input_ids[old, : lengths[old]].tolist()
        assert part.input_ids[row, : lengths[old]].tolist() == ids
    assert part.trajectory_ids.tolist() == [2, 0]
    assert part.temperature == 0.7


def test_selection_keeps_what_is_about_whole_trajectories():
    part = batch().select(torch.tensor([1]))
    assert part.group_ids.tolist() == [5, 5, 6]
    assert part.bootstrap_index.tolist() == batch().bootstrap_index.tolist()


def test_selected_rows_keep_their_images():
    whole = batch()
    assert whole.vision is not None
    part = whole.select(torch.tensor([2, 1, 2])).vision
    assert part is not None
    assert part.rows == tuple(whole.vision.rows[row] for row in (2, 1, 2))


def test_a_batch_of_no_rows_can_be_selected():
    assert len(batch().select(torch.tensor([], dtype=torch.long))) == 0


def test_every_tensor_moves_with_the_batch():
    # a device without contents: the images, whose patches are counted, stay behind
    moved = replace(batch(), vision=None).to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, Tensor)]
    assert len(tensors) == 11
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_tensors_that_do_not_line_up_are_named():
    whole = batch()
    with pytest.raises(ShapeError, match=r"rewards \(3, 4\) does not line up with input_ids"):
        replace(whole, rewards=torch.zeros(3, 4))
    with pytest.raises(ShapeError, match=r"values \(1, 2\) does not line up with old_logprobs"):
        Scores(torch.zeros(1, 3), values=torch.zeros(1, 2))
    with pytest.raises(ShapeError, match="returns"):
        Credit(torch.zeros(1, 3), torch.zeros(1, 2))


def test_a_training_batch_selects_everything_alike():
    whole = batch()
    shape = whole.rewards.shape
    numbers = torch.arange(shape.numel(), dtype=torch.float32).view(shape)
    train = TrainBatch(
        whole, Scores(numbers, numbers + 1, None), Credit(numbers + 2, numbers + 3), numbers + 4
    )
    rows = torch.tensor([2, 0])
    part = train.select(rows)
    width = part.rollout.input_ids.shape[1]
    wanted = numbers[rows][:, :width]
    for offset, found in enumerate(
        [
            part.scores.old_logprobs,
            part.scores.ref_logprobs,
            part.credit.advantages,
            part.credit.returns,
            part.weights,
        ]
    ):
        torch.testing.assert_close(found, wanted + offset)
    assert part.scores.values is None


def test_types_do_not_import_torch():
    code = "import sys, vagentrl.types, vagentrl.environment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
