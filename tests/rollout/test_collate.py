from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import toy
from vagentrl.errors import ShapeError
from vagentrl.rollout.collate import collate
from vagentrl.types import (
    AtLimit,
    Observation,
    Pictures,
    Prompt,
    Reply,
    RolloutBatch,
    Trajectory,
    Turn,
)


def batch(
    *trajectories: Trajectory, images: bool = False, at_limit: AtLimit = "bootstrap"
) -> RolloutBatch:
    return collate(trajectories, toy.renderer(images), temperature=0.7, at_limit=at_limit)


def turn(prompt: tuple[int, ...], reply: tuple[int, ...], reward: float, version: int = 0) -> Turn:
    logprobs = tuple(-0.125 * id for id in reply)
    return Turn(
        Observation("now"),
        Prompt(prompt),
        reply,
        logprobs,
        Reply(""),
        reward,
        "stop",
        policy_version=version,
    )


def after(trajectory: Trajectory) -> tuple[int, ...]:
    """The tokens of the final observation."""
    assert trajectory.end is not None
    return trajectory.end.ids


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    seed = draw(st.integers(0, 3))
    replies: list[str] = []
    for _ in range(5):  # until all is counted down
        if replies.count(toy.GO) <= seed:
            replies.append(draw(st.sampled_from([toy.GO, toy.WAIT])))
    return toy.play(replies, seed=seed, images=draw(st.booleans()))


def test_a_row_by_hand():
    # two turns: prompts 11 12 13 and 14, replies 21 22 and 23 24; rewards on 22 and 24; the weights
    # changed between the turns
    turns = (turn((11, 12, 13), (21, 22), -0.5, version=7), turn((14,), (23, 24), 2.0, version=8))
    played = Trajectory("toy", 3, 8, turns, "terminated", Observation("the end"))
    rows = batch(played)
    X = -1
    # one column more than tokens: where the value after the last one would be
    assert rows.input_ids.tolist() == [[11, 12, 13, 21, 22, 14, 23, 24, 0]]
    assert rows.attention_mask.int().tolist() == [[1, 1, 1, 1, 1, 1, 1, 1, 0]]
    assert rows.action_mask.int().tolist() == [[0, 0, 0, 1, 1, 0, 1, 1, 0]]
    assert rows.turn_ids.tolist() == [[X, X, X, 0, 0, X, 1, 1, X]]
    assert rows.state_ids.tolist() == [[X, X, X, 0, 0, X, 0, 0, X]]  # it saw "now" both times
    assert rows.rewards.tolist() == [[0, 0, 0, 0, -0.5, 0, 0, 2.0, 0]]
    assert rows.rollout_logprobs.tolist() == [
        [0, 0, 0, -0.125 * 21, -0.125 * 22, 0, -0.125 * 23, -0.125 * 24, 0]
    ]
    assert rows.bootstrap_index.tolist() == [-1]
    assert rows.trajectory_ids.tolist() == [0]
    assert rows.group_ids.tolist() == [8]
    assert rows.policy_version.tolist() == [[X, X, X, 7, 7, X, 8, 8, X]]
    assert rows.temperature == 0.7
    assert rows.vision is None


def test_a_bonus_is_learned_from_beside_the_reward():
    paid = replace(turn((11,), (21, 22), -0.5), bonus=0.25)
    rows = batch(Trajectory("toy", 3, 8, (paid,), "terminated"))
    assert rows.rewards.tolist() == [[0, 0, -0.25, 0]]


def test_turns_share_a_state_where_their_group_saw_the_same():
    def seen(group: int, *texts: str) -> Trajectory:
        turns = (replace(turn((11,), (21,), 0.0), observation=Observation(t)) for t in texts)
        return Trajectory("toy", 3, group, tuple(turns), "terminated")

    half = "half of a surrogate pair: \ud83d"
    rows = batch(seen(8, "here", half, "here"), seen(8, half), seen(9, "here"))
    states = [row[row >= 0].tolist() for row in rows.state_ids]
    assert states == [[0, 1, 0], [1], [2]]


def test_turns_that_differ_in_the_hint_alone_saw_the_same_state():
    told, plain = turn((11, 12, 30, 31), (21,), 0.0), turn((11, 12), (22,), 1.0)
    told = replace(told, observation=replace(told.observation, hint="Hint: Go."))
    rows = batch(*(Trajectory("toy", 3, 8, (t,), "terminated") for t in (told, plain)))
    assert rows.state_ids.tolist() == [[-1, -1, -1, -1, 0, -1], [-1, -1, 0, -1, -1, -1]]
    # the hint's tokens, 30 and 31, are prompt
    assert rows.action_mask.int().tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]]
    assert rows.rewards.tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


@settings(max_examples=30)
@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_rows_are_what_was_prompted_and_sampled(played: list[Trajectory]):
    rows = batch(*played, images=True)
    for number, trajectory in enumerate(played):
        turns = trajectory.turns
        wanted = [id for turn in turns for id in (*turn.prompt.ids, *turn.reply_ids)]
        if trajectory.stop == "truncated":
            wanted += after(trajectory)
        real = rows.attention_mask[number]
        assert rows.input_ids[number, real].tolist() == wanted
        assert real.tolist() == sorted(real.tolist(), reverse=True)  # padding is on the right
        sampled = rows.action_mask[number]
        replies = [id for turn in turns for id in turn.reply_ids]
        assert rows.input_ids[number, sampled].tolist() == replies
        logprobs = [logprob for turn in turns for logprob in turn.reply_logprobs]
        assert rows.rollout_logprobs[number, sampled].tolist() == pytest.approx(logprobs)
        assert not rows.rollout_logprobs[number, ~sampled].any()
        for place, turn in enumerate(turns):
            at = rows.turn_ids[number] == place
            assert rows.input_ids[number, at].tolist() == list(turn.reply_ids)
            assert rows.rewards[number, at].tolist() == [0] * (int(at.sum()) - 1) + [turn.reward]
        assert (rows.turn_ids[number, ~sampled] == -1).all()
        assert not rows.rewards[number, ~sampled].any()


@settings(max_examples=30)
@given(st.lists(trajectories(), min_size=1, max_size=4))
def test_only_what_did_not_terminate_is_bootstrapped_after_its_final_observation(
    played: list[Trajectory],
):
    rows = batch(*played, images=True)
    width = rows.input_ids.shape[1]
    lengths = rows.attention_mask.sum(-1).tolist()
    for number, trajectory in enumerate(played):
        column = number * width + lengths[number]
        wanted = -1 if trajectory.stop == "terminated" else column
        assert rows.bootstrap_index[number] == wanted
    assert width == max(lengths) + 1


def test_without_room_for_a_final_observation_the_value_is_read_before_the_last_token():
    played = replace(toy.play([toy.WAIT] * 5), end=None)
    length = sum(len(turn.prompt.ids) + len(turn.reply_ids) for turn in played.turns)
    rows = batch(played)
    assert rows.attention_mask.sum() == length
    assert rows.bootstrap_index.tolist() == [length - 1]
    assert rows.action_mask[0, length - 1]


@pytest.mark.parametrize("at_limit", ["end", "bootstrap"])
def test_a_cut_trajectory_is_always_bootstrapped(at_limit: AtLimit):
    played = toy.play([toy.WAIT] * 5)
    cut = batch(replace(played, stop="cut"), at_limit=at_limit)
    assert cut.bootstrap_index.tolist() == batch(played).bootstrap_index.tolist()


@pytest.mark.parametrize("fits", [True, False])
def test_where_the_limit_is_the_end_a_truncated_trajectory_ends_with_its_last_reply(fits: bool):
    played = toy.play([toy.WAIT] * 5)
    rows = batch(played if fits else replace(played, end=None), at_limit="end")
    assert rows.bootstrap_index.tolist() == [-1]
    sampled = sum(len(turn.prompt.ids) + len(turn.reply_ids) for turn in played.turns)
    assert rows.attention_mask.sum() == sampled  # nothing is read of what it saw last


def test_a_limit_is_the_end_unless_said_otherwise():
    played = toy.play([toy.WAIT] * 2, seed=2, turn_limit=2)
    assert played.stop == "truncated"
    assert collate([played], toy.renderer(), temperature=1.0).bootstrap_index.tolist() == [-1]


def test_each_distinct_image_is_stored_once():
    # shows 4 3 2 1 left; 4 left, five times and at the end; 1 left
    played = [
        toy.play([toy.GO] * 4, images=True),
        toy.play([toy.WAIT] * 5, images=True),
        toy.play([toy.GO], seed=0, images=True),
    ]
    rows = batch(*played, images=True)
    assert isinstance(rows.vision, Pictures)
    assert rows.vision.rows == ((0, 1, 2, 3), (0, 0, 0, 0, 0, 0), (3,))
    # the picture is a row of squares, one more than are left
    assert [image.width for image in rows.vision.images] == [
        28 * (left + 1) for left in (4, 3, 2, 1)
    ]
    vision = rows.to("cpu").patches
    assert vision is not None
    assert vision.rows == ((0, 1, 2, 3), (0, 0, 0, 0, 0, 0), (3,))
    # 14-pixel patches: (28 * (left + 1)) x 28 pixels are 2 x 2 (left + 1) patches
    assert vision.image_grid_thw.tolist() == [[1, 2, 10], [1, 2, 8], [1, 2, 6], [1, 2, 4]]
    assert len(vision.pixel_values) == 20 + 16 + 12 + 8


@settings(max_examples=30)
@given(st.lists(trajectories(), min_size=1, max_size=5), st.data())
def test_image_rows_survive_shuffling_and_splitting(played: list[Trajectory], data: st.DataObject):
    rows = batch(*played, images=True)
    order = torch.tensor(data.draw(st.permutations(range(len(played)))))
    shuffled = rows.select(order)
    for part in torch.arange(len(order)).tensor_split(data.draw(st.integers(1, len(played)))):
        if not len(part):
            continue
        found = shuffled.select(part).to("cpu").patches
        images = [image for number in order[part] for image in shown(played[number])]
        if not images:
            assert found is None
            continue
        assert found is not None
        wanted = toy.renderer(images=True).encode_images(images).model_inputs()
        inputs = found.model_inputs()
        torch.testing.assert_close(inputs["pixel_values"], wanted["pixel_values"], rtol=0, atol=0)
        torch.testing.assert_close(inputs["image_grid_thw"], wanted["image_grid_thw"])


def shown(trajectory: Trajectory) -> list:
    """Every image of the row, in reading order."""
    prompts = [turn.prompt for turn in trajectory.turns]
    if trajectory.end is not None:
        prompts.append(trajectory.end)
    return [image for prompt in prompts for image in prompt.images]


def test_what_cannot_be_learned_from_is_refused():
    played = toy.play([toy.GO] * 4)
    with pytest.raises(ShapeError, match="there are no trajectories"):
        batch()
    with pytest.raises(ShapeError, match=r"trajectory 1 \(seed 3, failed\) has 4 turns"):
        batch(played, replace(played, stop="failed", error="EnvError: broken"))
    with pytest.raises(ShapeError, match=r"trajectory 0 \(seed 3, terminated\) has 0 turns"):
        batch(replace(played, turns=()))
