from collections.abc import Sequence
from dataclasses import replace

import pytest
from PIL import Image

from tests import toy
from vagentrl.callbacks import TrajectoryPictures, trajectory_pictures
from vagentrl.callbacks.trajectory_pictures import (
    FRAME_WIDTH,
    MOST_PANELS,
    MOST_WIDTH,
    caption,
    trajectory_picture,
)
from vagentrl.errors import ConfigError
from vagentrl.types import Observation, Trajectory
from vagentrl.viewer.pictures import Panel


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[Panel]]]:
    """Collects titles and panels of the pictures that are drawn."""
    asked: list[tuple[str, Sequence[Panel]]] = []

    def draw(title: str, panels: Sequence[Panel], per_row: int) -> Image.Image:
        asked.append((title, panels))
        return panels[0].frame

    monkeypatch.setattr(trajectory_pictures, "episode_picture", draw)
    return asked


def headings(trajectory: Trajectory, drawn: list[tuple[str, Sequence[Panel]]]) -> list[str]:
    trajectory_picture(trajectory)
    return [panel.heading for panel in drawn[-1][1]]


def test_the_title_tells_the_episode_from_others(drawn: list[tuple[str, Sequence[Panel]]]):
    played = toy.play([toy.WAIT, toy.GO], seed=8, group_id=5)
    trajectory_picture(played)
    failed = replace(played, stop="failed", final_observation=None, error="EnvError: no water")
    trajectory_picture(failed)
    titles = [title for title, _ in drawn]
    assert titles == [
        "environment toy, seed 8, group 5, policy version 7: terminated, success, return +0.75",
        "environment toy, seed 8, group 5, policy version 7: failed, success, return +0.75, "
        "EnvError: no water",
    ]


def test_every_turn_has_its_number_and_the_end_says_how_it_came(
    drawn: list[tuple[str, Sequence[Panel]]],
):
    played = toy.play([toy.WAIT] * 3, turn_limit=3)
    assert headings(played, drawn) == ["turn 1", "turn 2", "turn 3", "truncated"]
    assert headings(replace(played, earlier_turns=10), drawn)[0] == "turn 11"


def test_of_a_long_episode_the_middle_is_left_out(drawn: list[tuple[str, Sequence[Panel]]]):
    played = replace(toy.play([toy.WAIT] * 100, turn_limit=100), earlier_turns=4)
    shown = headings(played, drawn)
    # 101 panels, of which 48 are drawn
    assert len(shown) == MOST_PANELS == 48
    assert shown[:24] == [f"turn {number}" for number in range(5, 29)]
    assert shown[24:] == [*(f"turn {number}" for number in range(82, 105)), "truncated"]
    assert drawn[-1][0].endswith(", turns 29 to 81 not drawn")


def test_small_images_are_enlarged_by_a_whole_number_without_blurring(
    drawn: list[tuple[str, Sequence[Panel]]],
):
    frame = toy.picture(4)  # 4 left: a gradient 140 pixels wide, enlarged twice
    trajectory_picture(toy.play([toy.GO], images=True))
    shown = drawn[0][1][0].frame
    assert shown.size == (280, 56)
    for x, y in ((0, 0), (70, 13), (139, 27)):
        for dx, dy in ((0, 0), (1, 1)):
            assert shown.getpixel((2 * x + dx, 2 * y + dy)) == frame.getpixel((x, y))


def test_all_images_of_a_turn_are_shown_and_large_ones_reduced(
    drawn: list[tuple[str, Sequence[Panel]]],
):
    images = tuple(Image.new("RGB", (4 * MOST_WIDTH, 800), color) for color in ("red", "blue"))
    played = toy.play([toy.GO])
    trajectory_picture(
        replace(played, final_observation=Observation("Left <image>, right <image>", images))
    )
    frame = drawn[0][1][-1].frame
    assert frame.size == (MOST_WIDTH, 2 * 200)
    assert [frame.getpixel((9, y)) for y in (9, 391)] == [(255, 0, 0), (0, 0, 255)]


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
def test_frames_are_wide_enough_for_a_caption(
    images: bool, drawn: list[tuple[str, Sequence[Panel]]]
):
    trajectory_picture(toy.play([toy.WAIT, toy.GO], images=images))
    assert all(panel.frame.width >= FRAME_WIDTH for panel in drawn[0][1])


def test_a_caption_holds_all_that_was_read_said_and_earned():
    [turn] = toy.play([toy.GO], seed=0).turns
    assert caption(turn) == "<answer>go</answer>\nreward +1.00"
    seen = replace(turn.observation, hint="Hint: Say go.")
    reply = replace(turn.reply, problem="no answer")
    told = replace(turn, observation=seen, reply=reply, bonus=0.5, scores={"observation": 1.0})
    assert caption(told).splitlines() == [
        "[hint] Hint: Say go.",
        "<answer>go</answer>",
        "[malformed] no answer",
        "reward +1.00, bonus +0.50",
        "observation 1.00",
    ]


def test_a_caption_repeats_text_only_where_an_image_takes_its_place():
    [shown] = toy.play([toy.GO], seed=0, images=True).turns
    assert caption(shown).splitlines() == [
        "1 left, luck 0", "<answer>go</answer>", "reward +1.00"
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [{"every_n_iterations": 0}, {"episodes": 0}])
def test_settings_that_draw_nothing_are_refused(settings: dict[str, int]):
    with pytest.raises(ConfigError, match="give 1 or more"):
        TrajectoryPictures(**settings)
