"""Single episodes are added, replaced and joined."""

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import toy
from tests.viewer.stored import name_tokens, store
from vagentrl.viewer import episodes
from vagentrl.viewer.episodes import JOINED, EpisodeFolder
from vagentrl.viewer.reading import BRANCHES, FOLDER, read_run
from vagentrl.viewer.records import Provenance, RowWriter
from vagentrl.viewer.site import Site


def add(
    folder: EpisodeFolder,
    episode: str,
    *,
    replies: tuple[str, ...] = (toy.GO,),
    policy: str = "p",
    origin: str | None = None,
    images: bool = False,
) -> None:
    writer = RowWriter(name_tokens)
    played = toy.play(replies, seed=4, images=images)
    turn = None if origin is None else 1
    writer.add(
        played,
        split="test",
        iteration=0,
        member=0,
        provenance=Provenance(policy, episode, origin, turn),
    )
    folder.add(writer.rows[0], writer.images)


def shown(run: Path) -> dict[str, int]:
    """The number of turns of each episode that the page shows; each must be shown once."""
    columns = json.loads(Site(read_run(run)).data("index"))["columns"]
    assert len(set(columns["episode"])) == len(columns["episode"])
    return dict(zip(columns["episode"], columns["length"], strict=True))


def test_small_files_are_joined_and_nothing_is_lost_or_doubled(tmp_path: Path):
    folder = EpisodeFolder(tmp_path / FOLDER)
    for number in range(JOINED + 3):
        add(folder, str(number), images=True)
    assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == 1 + 3
    assert shown(tmp_path) == {str(number): 1 for number in range(JOINED + 3)}
    folder.close()
    assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == 2
    assert len(shown(tmp_path)) == JOINED + 3
    assert len(list((tmp_path / FOLDER / "images").iterdir())) == 2


def test_an_episode_that_is_added_again_replaces_the_former(tmp_path: Path):
    first = EpisodeFolder(tmp_path / FOLDER)
    add(first, "a")
    add(first, "b")
    first.close()
    again = EpisodeFolder(tmp_path / FOLDER)
    add(again, "a", replies=(toy.WAIT, toy.GO))
    assert shown(tmp_path) == {"b": 1, "a": 2}
    add(again, "c")
    again.close()  # joined with the one before
    assert shown(tmp_path) == {"b": 1, "a": 2, "c": 1}
    row = Site(read_run(tmp_path)).row("a")
    assert [turn["reply"] for turn in row["turns"]] == [toy.WAIT, toy.GO]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.viewer.test_episodes import add
from vagentrl.viewer import episodes
episodes.JOINED = 4
folder = episodes.EpisodeFolder(Path(sys.argv[1]))
unlink = Path.unlink
def killed(path):
    unlink(path)
    os.kill(os.getpid(), signal.SIGKILL)
Path.unlink = killed
for number in range(4):
    add(folder, str(number))
"""


def test_a_kill_while_files_are_joined_neither_loses_nor_doubles_an_episode(tmp_path: Path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / FOLDER)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert len(list((tmp_path / FOLDER).glob("*.parquet"))) == 3  # all in one, and two of the small
    assert shown(tmp_path) == {str(number): 1 for number in range(4)}


def test_two_processes_never_write_the_same_file(tmp_path: Path):
    one, other = EpisodeFolder(tmp_path / FOLDER), EpisodeFolder(tmp_path / FOLDER)
    for number in range(5):
        add(one, f"one {number}")
        add(other, f"other {number}")
    (tmp_path / FOLDER / "episodes-000011.parquet.unfinished").touch()  # another is at it
    add(one, "one 5")
    one.close()
    other.close()
    assert len(shown(tmp_path)) == 11


def test_a_full_folder_takes_nothing_more_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = EpisodeFolder(tmp_path / FOLDER, max_bytes=1000)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            add(folder, str(number))
    assert shown(tmp_path) == {"0": 1}
    assert [record.msg[:10] for record in caplog.records] == ["%s holds %"]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = EpisodeFolder(tmp_path / FOLDER)
    add(folder, "a")

    def full(table: object, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(episodes, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        add(folder, "b")
    assert read_run(tmp_path).problems == []
    assert shown(tmp_path) == {"a": 1}


def test_branches_stand_beside_the_run_and_name_their_origin(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4), toy.play([toy.GO], seed=8)])
    branches = EpisodeFolder(tmp_path / BRANCHES, "branches")
    add(branches, "x", origin="train-000000/1", policy="person", images=True)
    add(branches, "y", origin="gone")
    site = Site(read_run(tmp_path))
    index = json.loads(site.data("index"))
    columns, names = index["columns"], index["names"]
    assert columns["episode"] == ["train-000000/0", "train-000000/1", "x", "y"]
    assert columns["origin"] == [None, None, 1, -1]
    assert columns["originTurn"] == [None, None, 1, 1]
    assert [names["policy"][number] for number in columns["policy"]] == [None, None, "person", "p"]
    for image in site.images():
        assert site.image(image).startswith(b"\x89PNG")
    assert site.row("x")["policy"] == "person"
