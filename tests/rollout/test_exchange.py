"""Pictures stay with the rank that played them, and travel to the rank that learns the row."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.processes import run_ranks
from tests.rollout import exchange_rank
from vagentrl.errors import ShapeError, VagentError
from vagentrl.pictures import RemotePicture, digest
from vagentrl.rollout.exchange import bring, with_pixels
from vagentrl.types import Pictures


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks have seen."""
    folder = tmp_path_factory.mktemp("exchange")
    run_ranks("tests.rollout.exchange_rank", folder)  # a fork might have a process group
    return [torch.load(folder / f"rank_{number}.pt", weights_only=False) for number in "01"]


def test_all_ranks_have_the_same_rows_and_each_the_pixels_that_it_played(
    ranks: list[dict[str, Any]],
):
    alone = exchange_rank.batch(exchange_rank.played())
    assert isinstance(alone.vision, Pictures)
    for seen in ranks:
        for name, tensor in vars(seen["batch"]).items():
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(tensor, getattr(alone, name), equal_nan=True)
        assert seen["rows"] == alone.vision.rows
        assert seen["sizes"] == [image.size for image in alone.vision.images]
    # Episodes 0, 2 and 4 are rank 0's. A picture that both ranks have seen, both have.
    own = [set(chain(*(alone.vision.rows[row] for row in rows))) for rows in ((0, 2, 4), (1, 3))]
    assert [set(seen["own"]) for seen in ranks] == own


def test_only_the_pixels_of_the_rows_that_a_rank_reads_are_brought(ranks: list[dict[str, Any]]):
    rows = ranks[0]["rows"]
    for number, seen in enumerate(ranks):
        assert set(seen["row 1"]) == set(seen["own"]) | set(rows[number])


def test_each_row_is_learned_once_with_the_patches_that_one_process_gives_it(
    ranks: list[dict[str, Any]],
):
    def by_tokens(parts: list[Any]) -> dict[tuple[int, ...], Any]:
        return {tuple(ids[ids > 0].tolist()): inputs for ids, counts, inputs, _ in parts if counts}

    alone = by_tokens(exchange_rank.learned(exchange_rank.batch(exchange_rank.played()), 1, 0))
    shares = [by_tokens(seen["learned"]) for seen in ranks]
    assert len(alone) == len(exchange_rank.PLAYED) == sum(map(len, shares))
    for inputs, wanted in ((share[key], alone[key]) for share in shares for key in share):
        torch.testing.assert_close(inputs, wanted, rtol=0, atol=0)
    # 5 rows are minibatches of 3 and 2, each of 2 micro-batches of 1 row a rank: 3 of 8 fill up,
    # with a row whose pictures have to be there too
    assert [len(seen["learned"]) for seen in ranks] == [4, 4]


def test_pixels_of_whole_episodes_come_to_the_rank_that_asks(ranks: list[dict[str, Any]]):
    wanted = exchange_rank.pixels(exchange_rank.played())
    assert ranks[0]["with pixels"] == wanted
    mine = [None not in of_episode for of_episode in ranks[1]["with pixels"]]
    assert mine == [number % 2 == 1 for number in range(len(wanted))]  # as they were dealt


def test_parcels_reach_the_rank_that_they_are_for(ranks: list[dict[str, Any]]):
    assert [seen["parcels"] for seen in ranks] == [[b"", b""], [b"from 0", b"from 1"]]
    assert [seen["over a line"] for seen in ranks] == [[0, 1]] * 2


def test_what_is_on_the_cpu_goes_over_one_more_group_where_the_first_is_for_gpus(
    ranks: list[dict[str, Any]],
):
    assert [seen["beside NCCL"] for seen in ranks] == [([[0, 1], [0, 1]], 1)] * 2


def test_what_fails_on_one_rank_fails_on_all_and_they_can_go_on(ranks: list[dict[str, Any]]):
    for seen in ranks:
        assert "rank 1 was asked for the pixels of a picture of" in seen["lost"]
        assert seen["no room"] == "OSError: rank 1 has no room"
        assert seen["afterwards"] == [0, 1]


def test_a_stand_in_equals_its_picture_and_says_where_the_pixels_are():
    picture = Image.new("RGB", (6, 4), "red")
    remote = RemotePicture(picture.size, digest(picture), rank=3)
    assert picture == remote and remote == picture and (picture,) == (remote,)
    assert remote != Image.new("RGB", (6, 4), "blue") and remote != "red"
    for use in (np.asarray, lambda image: image.resize((2, 2)), Image.Image.tobytes):
        with pytest.raises(VagentError, match=r"6 x 4 are with rank 3, .*with_pixels brings"):
            use(remote)


def test_a_single_process_exchanges_nothing():
    picture, trajectories = Image.new("RGB", (4, 4)), exchange_rank.played()
    assert bring([picture], [0])[0] is picture
    assert with_pixels(trajectories, here=True)[0] is trajectories[0]


def test_a_model_does_not_get_pixels():
    with pytest.raises(ShapeError, match=r"rows are still pixels, .* rollout\.to\(device\)"):
        assert exchange_rank.batch(exchange_rank.played()).patches
