"""The score of a drawing: its parts, its zero and its one."""

from pathlib import Path

import numpy as np
import pytest

from vagentrl.errors import ConfigError
from vagentrl_envs.svg.score import Scorer, Weights


def page(side: int = 64) -> np.ndarray:
    return np.ones((side, side, 3))


def square(left: int, top: int, side: int = 24, color: tuple[float, ...] = (1, 0, 0)) -> np.ndarray:
    picture = page()
    picture[top : top + side, left : left + side] = color
    return picture


TARGET = square(10, 20)


def test_the_target_itself_scores_one_in_every_part():
    score = Scorer(TARGET, Weights()).score(TARGET)
    assert score.parts() == pytest.approx({"structure": 1, "edges": 1, "color": 1})
    assert score.total == pytest.approx(1)


@pytest.mark.parametrize("target", [TARGET, square(2, 2, 60), square(30, 30, 2)])
@pytest.mark.parametrize("color", [(1, 1, 1), (0, 0, 0), (1, 0, 0), (0.5, 0.5, 0.5)])
def test_a_sheet_of_one_color_scores_nothing(target: np.ndarray, color: tuple[float, ...]):
    sheet = np.broadcast_to(np.array(color, float), target.shape)
    assert Scorer(target, Weights()).score(sheet).total < 0.02
    mean = np.broadcast_to(target.mean((0, 1)), target.shape)
    assert Scorer(target, Weights()).score(mean).total < 0.02


def test_the_nearer_a_shape_is_the_more_it_earns():
    scorer = Scorer(TARGET, Weights())
    totals = [scorer.score(square(10 + off, 20)).total for off in (0, 2, 4, 8, 16, 30)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[3] > totals[5]


def test_another_color_costs_color_and_keeps_edges_that_are_as_dark():
    # luminance of (1, 0, 0) is 0.299, as of this grey
    score = Scorer(TARGET, Weights()).score(square(10, 20, color=(0.299,) * 3))
    assert (score.structure, score.edges) == pytest.approx((1, 1))
    # its error in a pixel of the square is (0.701 + 0.299 + 0.299) / 3; white's is 2 / 3
    assert score.color == pytest.approx(1 - 1.299 / 2)


def test_weights_are_divided_by_their_sum():
    drawing = square(14, 20)
    parts = Scorer(TARGET, Weights()).score(drawing)
    only = Scorer(TARGET, Weights(structure=0, edges=5, color=0)).score(drawing)
    both = Scorer(TARGET, Weights(structure=0, edges=1, color=3)).score(drawing)
    assert only.total == pytest.approx(parts.edges)
    assert both.total == pytest.approx((parts.edges + 3 * parts.color) / 4)


def test_features_count_above_those_of_an_empty_page():
    def features(picture: np.ndarray) -> np.ndarray:
        return np.array([1.0, 10 * picture.std((0, 1)).max()])

    scorer = Scorer(TARGET, Weights(features=1.0), features)
    assert scorer.score(TARGET).features == pytest.approx(1)
    assert scorer.score(page()).features == 0
    assert 0 < (scorer.score(square(10, 20, 12)).features or 0) < 1


def test_a_target_of_a_single_color_is_refused():
    with pytest.raises(ConfigError, match="single colour"):
        Scorer(page() * 0.3, Weights())


def test_weights_that_cannot_be_used_are_refused():
    with pytest.raises(ConfigError, match="weights"):
        Weights(structure=-1)
    with pytest.raises(ConfigError, match="weights"):
        Weights(structure=0, edges=0, color=0)


def test_a_vision_model_in_a_folder_gives_features(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    from vagentrl_envs.svg.features import load_features

    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Dinov2Config(**settings, image_size=28, patch_size=14)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    features = load_features(str(tmp_path), side=28)
    assert features(TARGET).shape == (16,)
    np.testing.assert_array_equal(features(TARGET), features(TARGET))
    assert not np.allclose(features(TARGET), features(page()))
    scorer = Scorer(TARGET, Weights(features=1.0), features)
    assert scorer.score(TARGET).features == pytest.approx(1, abs=1e-5)
    assert scorer.score(page()).features == pytest.approx(0, abs=1e-5)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    from vagentrl_envs.svg.features import load_features

    with pytest.raises(ConfigError, match=r"config\.json"):
        load_features(str(tmp_path))
