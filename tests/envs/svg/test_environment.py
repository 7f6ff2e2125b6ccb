"""The episode of SVG reconstruction: rewards, ends, splits, state, oracle, files."""

import json
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

pytest.importorskip("resvg_py")
pytest.importorskip("defusedxml")

from tests.processes import printed_in_every_process
from vagentrl.cli.warmstart import Demonstrator, demonstrate
from vagentrl.environment import Split, seed_of, split_of_state
from vagentrl.errors import ConfigError
from vagentrl.formats import FreeThink, NoThink, WorldModeling
from vagentrl.types import Reply, StepResult
from vagentrl_envs.svg import Limits, SVGReconstruction, Weights
from vagentrl_envs.svg.describing import describe, visible_shapes
from vagentrl_envs.svg.drawings import svg
from vagentrl_envs.svg.markup import clean

RED = svg('<rect x="20" y="30" width="40" height="20" fill="red"/>')
NEAR = svg('<rect x="22" y="30" width="40" height="20" fill="red"/>')
FAR = svg('<circle cx="80" cy="80" r="10" fill="blue"/>')


def start(target: str = RED, **settings: Any) -> SVGReconstruction:
    env = SVGReconstruction(size=32, **settings)
    env.start_from(target)
    return env


def write(env: SVGReconstruction, text: str) -> StepResult:
    return env.step(Reply("", actions=(text,)))


# -------------------------------------------------------------------------------------- episodes


def test_a_turn_earns_what_the_drawing_has_gained():
    env = start(success_score=1.0)
    first = write(env, NEAR)
    assert first.reward == env.score.total > 0.5
    second = write(env, FAR)
    assert second.reward == pytest.approx(env.score.total - first.reward)
    assert second.reward < 0
    third = write(env, RED)
    assert first.reward + second.reward + third.reward == pytest.approx(1)
    assert third.terminated and third.metrics["success"] == 1


def test_reaching_the_threshold_is_success_and_the_turn_limit_truncates():
    env = start(success_score=0.6)
    assert write(env, NEAR).terminated
    env = start(success_score=0.99, turn_limit=2)
    assert not write(env, NEAR).truncated
    last = write(env, NEAR)
    assert (last.terminated, last.truncated, last.reward) == (False, True, 0)
    assert last.metrics["success"] == 0 and last.metrics["effective_actions"] == 0


def test_svg_that_is_not_drawn_changes_nothing_and_is_told():
    env = start(success_score=1.0, invalid_penalty=0.25)
    write(env, NEAR)
    before = env.state()
    result = write(env, "<svg><image href='/etc/passwd'/></svg>")
    assert result.reward == -0.25 and env.state() == before
    assert "wrong: the SVG is not drawn: it draws no shape." in result.observation.text
    assert "passwd" not in result.observation.text
    malformed = env.step(Reply("", problem="no <answer>"))
    assert malformed.reward == pytest.approx(-0.1)
    assert "Your reply was wrong: no <answer>." in malformed.observation.text


def test_the_first_turn_shows_the_target_and_later_ones_the_drawing_beside_it():
    env = start()
    first = env.start_from(RED)
    assert first.text == "Target: <image>" and len(first.images) == 1
    later = write(env, NEAR).observation
    assert later.images[0].tobytes() == first.images[0].tobytes() != later.images[1].tobytes()
    assert later.text.startswith("Target: <image>\nYour drawing: <image>\nScore: ")
    parts = env.score.parts()
    assert f"structure {100 * parts['structure']:.0f}" in later.text


def test_a_fenced_answer_with_text_around_it_is_drawn():
    env = start()
    assert write(env, f"```xml\n{RED}\n```").terminated


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_oracle_writes_the_target(level: Any):
    env = SVGReconstruction(level=level, size=32)
    for index in range(5):
        env.reset(seed_of("validation", index))
        (plan,) = env.oracle() or ("",)
        result = write(env, plan)
        assert result.metrics["success"] == 1 and result.reward == pytest.approx(1)
        assert env.oracle() == ()


def test_a_rough_oracle_sketches_first():
    env = start(svg('<circle cx="35" cy="55" r="25" fill="red"/>'), rough_oracle=True)
    sketch, exact = env.oracle() or ("", "")
    assert 0 < write(env, sketch).reward < 0.9
    assert env.oracle() == (exact,) == (env.target,)
    assert write(env, exact).terminated


def test_random_play_draws_other_pictures_and_repeats_them():
    env = start()
    drawn = {env.random_actions(Random(seed))[0] for seed in range(8)}
    assert len(drawn) == 8
    assert env.random_actions(Random(3)) == env.random_actions(Random(3))
    assert all(write(env, text).reward < 0.5 for text in list(drawn)[:3])


def test_a_demonstration_can_be_cloned_with_predictions():
    env = SVGReconstruction(size=32, format=WorldModeling("structured", action_separator=None))
    shown = demonstrate(env, Demonstrator(0.5, ()), seed_of("train", 3))
    assert all(env.format.parse(reply).problem is None for reply in shown.replies)


# ------------------------------------------------------------------------------------ the targets


@pytest.mark.parametrize("level", [1, 4])
def test_no_drawing_is_in_two_splits(level: Any):
    env = SVGReconstruction(level=level)
    found = {
        split: {env.initial_state(seed_of(split, index)) for index in range(30)}
        for split in get_args(Split)
    }
    for split, drawings in found.items():
        assert len(drawings) > 20
        assert all(split_of_state(drawing) == split for drawing in drawings)


def test_levels_rise_from_one_shape_to_overlaps_strokes_and_gradients():
    targets = {}
    for level in (1, 2, 3, 4):
        env = SVGReconstruction(level=level)  # pyright: ignore[reportArgumentType]
        targets[level] = [str(env.initial_state(2 * index)) for index in range(20)]
    counts = {k: [len(visible_shapes(text)) for text in texts] for k, texts in targets.items()}
    assert set(counts[1]) == {1} and set(counts[2]) <= {2, 3}
    assert set(counts[3]) == {3, 4} and set(counts[4]) == {3, 4, 5}
    assert all("Gradient" in text and "<path" in text for text in targets[4])
    assert not any("Gradient" in text or "stroke" in text for text in targets[3])


def test_a_seed_draws_the_same_in_every_process():
    program = (
        "from vagentrl_envs.svg import SVGReconstruction\n"
        "env = SVGReconstruction(level=4, size=32)\n"
        "for seed in range(6):\n"
        "    image = env.reset(seed).images[0]\n"
        "    print(seed, env.target, image.tobytes().hex()[:400], env.action_names)\n"
    )
    assert printed_in_every_process(program).count("<svg") >= 6


def folder_of(path: Path, count: int) -> str:
    for number in range(count):
        text = (
            f'<svg viewBox="0 0 24 24"><text>x</text><circle cx="9" cy="9" r="{number + 2}"/></svg>'
        )
        (path / f"{number}.svg").write_text(text)
    (path / "twice.svg").write_text((path / "0.svg").read_text())
    (path / "notes.txt").write_text("not a drawing")
    return str(path)


def test_files_are_dealt_to_the_splits(tmp_path: Path):
    env = SVGReconstruction(files=folder_of(tmp_path, 20), size=32)
    counts = {split: env.start_count(split) for split in get_args(Split)}
    assert counts == {"train": 16, "validation": 2, "test": 2}
    found = {s: {env.initial_state(seed_of(s, k)) for k in range(20)} for s in get_args(Split)}
    assert {split: len(drawings) for split, drawings in found.items()} == counts
    assert not found["train"] & (found["validation"] | found["test"])
    assert not found["validation"] & found["test"]
    env.reset(1)
    (plan,) = env.oracle() or ("",)
    assert write(env, plan).terminated


@pytest.mark.parametrize(
    ("text", "why"),
    [("<svg><image/></svg>", "draws no shape"), (svg('<rect r="1"/>'), "single colour")],
)
def test_a_file_that_cannot_be_a_target_is_named(tmp_path: Path, text: str, why: str):
    folder_of(tmp_path, 5)
    (tmp_path / "odd.svg").write_text(text)
    with pytest.raises(ConfigError, match=rf"odd\.svg is .*{why}"):
        SVGReconstruction(files=str(tmp_path))


def test_too_few_files_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="2 different drawings in 3"):
        SVGReconstruction(files=folder_of(tmp_path, 2))


# -------------------------------------------------------------------------------------- the state


def test_the_state_tells_shapes_and_colors_as_they_look():
    drawn = clean(
        svg('<g transform="translate(10 10)"><ellipse cx="20" cy="40" rx="10" ry="5"/></g>'),
        Limits(),
    )
    state = describe(clean(RED, Limits()), drawn)
    assert state.natural == (
        "the target has a red rectangle at (40, 40), 40 wide, 20 high; "
        "the drawing has a black ellipse at (30, 50), 20 wide, 10 high"
    )
    assert json.loads(state.structured)["target"] == [
        {"shape": "rectangle", "color": "red", "x": 40, "y": 40, "width": 40, "height": 20}
    ]
    # rows 30 to 50 of 100 are rows 2.4 to 4 of 8, columns 20 to 60 are 1.6 to 4.8
    assert state.symbolic.split("\n")[3] == "..rrr...|........"


def test_an_empty_page_is_told_and_hidden_shapes_are_not():
    hidden = clean(svg('<rect width="9" height="9" display="none"/><circle r="9"/>'), Limits())
    assert [shape.shape for shape in visible_shapes(hidden)] == ["circle"]
    assert describe(hidden, None).natural.endswith("; the drawing is empty")


def test_outlines_and_gradients_have_the_color_that_most_of_them_has():
    outline = svg('<circle cx="50" cy="50" r="20" fill="none" stroke="green" stroke-width="4"/>')
    (shape,) = visible_shapes(clean(outline, Limits()))
    assert (shape.color, shape.x, shape.width) == ("green", 50, 44)


def test_settings_that_cannot_work_are_refused():
    refused: tuple[dict[str, Any], ...] = (
        {"level": 5},
        {"grid": 3},
        {"size": 4},
        {"success_score": 0},
        {"features": "folder"},
        {"weights": Weights(features=1)},
        {"limits": Limits(elements=0)},
        {"format": FreeThink()},
        {"files": "/nowhere"},
    )
    for settings in refused:
        with pytest.raises(ConfigError):
            SVGReconstruction(**settings)
    assert SVGReconstruction(format=NoThink(action_separator=None)).turn_limit == 4
