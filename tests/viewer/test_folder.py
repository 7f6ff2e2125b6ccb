import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import toy
from tests.viewer.stored import name_tokens, store
from vagentrl.types import Observation, Trajectory
from vagentrl.viewer import folder as module
from vagentrl.viewer.folder import StoredFile, TrajectoryFolder, least_missed
from vagentrl.viewer.reading import FOLDER, UNFINISHED, read_run
from vagentrl.viewer.records import RowWriter, StoredSplit


def stored(split: StoredSplit, iteration: int) -> StoredFile:
    return StoredFile(Path(f"{split}-{iteration}"), split, iteration, 1, frozenset())


def names(run: Path) -> list[str]:
    return sorted(path.stem for path in (run / FOLDER).glob("*.parquet"))


def noisy(seed: int) -> Trajectory:
    """A trajectory whose image of 4 kB cannot be compressed and that no other one shows."""
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 34, 3)).astype(np.uint8)
    seen = Observation("<image>", (Image.fromarray(pixels),))
    return replace(toy.play([toy.GO], seed=4), final_observation=seen)


def size_of(run: Path) -> int:
    return sum(path.stat().st_size for path in (run / FOLDER).rglob("*") if path.is_file())


def test_training_is_thinned_evenly_before_evaluations_are():
    files = [stored("train", number) for number in range(5)]
    files += [stored("val", 0), stored("val", 4), stored("test", 4)]
    dropped = []
    while len(files) > 1:
        dropped.append(least_missed(files).path.name)
        files.remove(least_missed(files))
    # of 0 1 2 3 4 the neighbours of 1, 2 and 3 are 2 apart: the oldest goes; then of 0 2 3 4 those
    # of 2 are 3 apart and those of 3 are 2; of 0 2 4 goes the middle, of 0 4 the first
    assert dropped[:4] == ["train-1", "train-3", "train-2", "train-0"]
    # val-0 val-4 test-4: the middle; then the older; the newest training last but one
    assert dropped[4:] == ["val-4", "val-0", "train-4"]


def test_the_folder_stays_below_its_limit_and_keeps_whole_files(tmp_path: Path):
    limit = 80_000
    for iteration in range(12):
        store(tmp_path, [noisy(iteration)], iteration=iteration, max_bytes=limit)
        assert size_of(tmp_path) <= limit
    run = read_run(tmp_path)
    assert run.problems == []
    kept = [file.number for file in run.files]
    assert kept[0] == 0 and kept[-1] == 11 and 2 < len(kept) < 12
    shown = {name for file in run.files for name in file.images()}
    assert shown == {path.name for path in (tmp_path / FOLDER / "images").iterdir()}


def test_evaluations_outlive_training_iterations(tmp_path: Path):
    for iteration in range(8):
        store(tmp_path, [noisy(iteration)], iteration=iteration, max_bytes=80_000)
        if iteration % 4 == 0:
            store(tmp_path, [noisy(99)], split="val", iteration=iteration, max_bytes=80_000)
    assert {"val-000000", "val-000004"} <= set(names(tmp_path))


def test_one_folder_object_and_a_new_one_each_time_keep_the_same_files(tmp_path: Path):
    one = TrajectoryFolder(tmp_path / "one" / FOLDER, 60_000)
    for iteration in range(8):
        writer = RowWriter(name_tokens)
        writer.add(noisy(iteration), split="train", iteration=iteration, member=0)
        one.write("train", iteration, writer.rows, writer.images)
        store(tmp_path / "new", [noisy(iteration)], iteration=iteration, max_bytes=60_000)
    assert names(tmp_path / "one") == names(tmp_path / "new")
    assert one.bytes == size_of(tmp_path / "one")


def test_what_does_not_even_fit_alone_is_not_kept_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        store(tmp_path, [noisy(0)], max_bytes=1000)
    assert "does not fit into max_mb=0.001" in caplog.text
    assert size_of(tmp_path) == 0


def test_an_iteration_that_is_written_again_replaces_its_file(tmp_path: Path):
    store(tmp_path, [noisy(0)] * 3)
    store(tmp_path, [noisy(1)])
    [file] = read_run(tmp_path).files
    assert len(file.rows(0)) == 1
    assert len(list((tmp_path / FOLDER / "images").iterdir())) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet
from PIL import Image
from vagentrl.types import Observation, Trajectory
from vagentrl.viewer.folder import TrajectoryFolder
from vagentrl.viewer.records import RowWriter
folder = TrajectoryFolder(Path(sys.argv[1]), 1e9)
def store(iteration):
    writer, seen = RowWriter(lambda ids: []), Image.new("RGB", (2, 2 + iteration))
    played = Trajectory("toy", 4, 0, (), "terminated", Observation("<image>", (seen,)))
    writer.add(played, split="train", iteration=iteration, member=0)
    folder.write("train", iteration, writer.rows, writer.images)
store(0)
write = pyarrow.parquet.write_table
def half(table, path, **settings):
    write(table, path, **settings)
    os.truncate(path, path.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)
pyarrow.parquet.write_table = half
store(1)
"""


def test_a_killed_writer_leaves_what_was_complete_and_the_next_one_cleans_up(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / FOLDER)], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = read_run(tmp_path)
    assert [file.number for file in run.files] == [0]
    [problem] = run.problems
    assert problem.startswith(f"train-000001.parquet{UNFINISHED} is left out: it was being written")
    assert len(list((tmp_path / FOLDER / "images").iterdir())) == 2
    store(tmp_path, [noisy(0)], iteration=2)
    assert read_run(tmp_path).problems == []
    # the first file's and the new one's: no file shows the picture of the killed one
    assert len(list((tmp_path / FOLDER / "images").iterdir())) == 2


def test_files_of_others_stay_where_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / FOLDER).mkdir()
    torn = tmp_path / FOLDER / "train-000000.parquet"
    torn.write_bytes(b"PAR1 half a file")
    with caplog.at_level(logging.WARNING):
        store(tmp_path, [noisy(0)], iteration=1, max_bytes=1000)
    assert torn.exists()
    assert "train-000000.parquet does not count towards max_mb: it is torn" in caplog.text


def test_rows_are_stored_in_parts_that_are_read_by_themselves(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4, group_id=n) for n in range(19)])
    [file] = read_run(tmp_path).files
    assert module.ROWS_PER_GROUP == 8
    assert [len(file.rows(part)) for part in range(file.groups)] == [8, 8, 3]
    facts = file.facts()
    assert [fact["part"] for fact in facts] == [0] * 8 + [1] * 8 + [2] * 3
    assert [fact["group"] for fact in facts] == list(range(19))
    assert {fact["length"] for fact in facts} == {1}
