"""The cache may be old, damaged or missing; files may change; processes share what is there."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.datasets.files import all_asked, asked, json_lines, parquet, saved, sums
from vagentrl.datasets import TaskFiles, task_files
from vagentrl.errors import ConfigError, RowError

WANTED = sorted(f"{n} + 1?" for n in range(30))


def forget() -> None:
    """Do what another process does: know no index but those on disk."""
    task_files._SHARED.clear()


def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every pass over the files."""
    passes: list[int] = []
    build = task_files.build_index

    def counting(*arguments, **named):
        passes.append(1)
        return build(*arguments, **named)

    monkeypatch.setattr(task_files, "build_index", counting)
    return passes


def test_files_are_read_once_for_every_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passes = scans(monkeypatch)
    path = str(json_lines(tmp_path / "rows.jsonl", sums(30)))
    for _ in range(2):
        for _ in range(3):
            assert sorted(all_asked(TaskFiles(path))) == WANTED
        forget()
    assert len(passes) == 1
    TaskFiles(path, validation_share=0.2).count("train")  # another division
    assert len(passes) == 2


def test_a_file_that_changed_between_runs_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    passes = scans(monkeypatch)
    path = json_lines(tmp_path / "rows.jsonl", sums(10))
    assert len(all_asked(TaskFiles(str(path)))) == 10
    json_lines(path, sums(30))
    assert sorted(all_asked(TaskFiles(str(path)))) == WANTED
    assert len(passes) == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nonsense(path: Path) -> None:
    path.write_bytes(b'{"counts": [1, 2]}\n')


def foreign(path: Path) -> None:
    path.write_bytes(b'[1, "two"]\n\xff')


@pytest.mark.parametrize("damage", [cut, flip, empty, nonsense, foreign])
def test_a_damaged_index_is_made_again(
    damage: Callable[[Path], None], tmp_path: Path, own_cache: Path
):
    path = str(json_lines(tmp_path / "rows.jsonl", sums(30)))
    TaskFiles(path).count("train")
    (index,) = own_cache.glob("*.index")
    whole = index.read_bytes()
    forget()
    damage(index)
    assert sorted(all_asked(TaskFiles(path))) == WANTED
    assert index.read_bytes() == whole


@pytest.mark.parametrize("kind", ["gz", "parquet"])
def test_an_unpacked_copy_that_was_cut_off_is_made_again(
    kind: str, tmp_path: Path, own_cache: Path
):
    if kind == "gz":
        path = json_lines(tmp_path / "rows.jsonl.gz", sums(30))
    else:
        pytest.importorskip("pyarrow")
        path = parquet(tmp_path / "rows.parquet", sums(30))
    TaskFiles(str(path)).count("train")
    (copy,) = (each for each in own_cache.iterdir() if each.suffix != ".index")
    forget()
    copy.write_bytes(copy.read_bytes()[:100])
    assert sorted(all_asked(TaskFiles(str(path)))) == WANTED


def test_only_the_newest_unpacked_copy_is_kept(tmp_path: Path, own_cache: Path):
    for count in (10, 20, 30):
        path = json_lines(tmp_path / "rows.jsonl.gz", sums(count))
        assert len(all_asked(TaskFiles(str(path)))) == count
    assert len(list(own_cache.glob("*.jsonl"))) == 1
    assert not list(own_cache.glob("*.part"))


def test_without_a_cache_that_can_be_written_to_rows_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("not a folder")
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        path = json_lines(tmp_path / name, sums(30))
        tasks = TaskFiles(str(path), cache=str(tmp_path / "file/cache"))
        assert sorted(all_asked(tasks)) == WANTED
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    forget()
    assert sorted(all_asked(TaskFiles(str(tmp_path / "rows.jsonl")))) == WANTED


def test_an_index_that_cannot_be_written_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vagentrl.datasets.index.write_whole", full)
    path = str(json_lines(tmp_path / "rows.jsonl", sums(30)))
    assert sorted(all_asked(TaskFiles(path))) == WANTED
    monkeypatch.setattr("vagentrl.datasets.cache.write_whole", full)
    zipped = str(json_lines(tmp_path / "rows.jsonl.gz", sums(30)))
    with pytest.raises(ConfigError, match=r"No space left .* set cache to a folder with enough"):
        TaskFiles(zipped).count("train")


def test_nothing_is_written_beside_the_users_files(tmp_path: Path):
    pytest.importorskip("pyarrow")
    (tmp_path / "mine").mkdir()
    json_lines(tmp_path / "mine/a.jsonl", sums(5))
    json_lines(tmp_path / "mine/b.jsonl.gz", sums(5, start=5))
    parquet(tmp_path / "mine/c.parquet", sums(5, start=10))
    assert len(all_asked(TaskFiles(str(tmp_path / "mine")))) == 15
    assert {each.name for each in (tmp_path / "mine").iterdir()} == {
        "a.jsonl", "b.jsonl.gz", "c.parquet"
    }  # fmt: skip


# ----------------------------------------------------------------------- files that change


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"other" * 100)
    os.replace(new, path)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "saved"])
@pytest.mark.parametrize("change", [truncate, replace, Path.unlink])
def test_a_file_that_changes_during_a_run_is_told(
    kind: str, change: Callable[[Path], None], tmp_path: Path
):
    path = tmp_path / f"rows.{kind}"
    if kind in ("parquet", "saved"):
        pytest.importorskip("pyarrow")
        path = (parquet if kind == "parquet" else saved)(path, sums(30))
    else:
        json_lines(path, sums(30))
    tasks = TaskFiles(str(path), validation_share=0, test_share=0)
    assert tasks.task("train", 29).number in (29, 14)
    change(path / "data-00001-of-00002.arrow" if kind == "saved" else path)
    with pytest.raises(RowError, match=r"has changed since this run|cannot be read any more"):
        tasks.task("train", 29)


def test_other_rows_of_the_same_size_and_time_are_told(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl", sums(9))
    tasks = TaskFiles(str(path), validation_share=0, test_share=0)
    tasks.count("train")
    status = path.stat()
    json_lines(path, [{"prompt": f"{n} + 1!", "answer": n + 1} for n in range(9)])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    with pytest.raises(RowError, match="line 3: the row is not the one that was indexed"):
        tasks.task("train", 2)


# ------------------------------------------------------------------- threads and processes


def ask(tasks: TaskFiles) -> list[str]:
    return asked(tasks, "train")


def test_another_process_gets_the_same_tasks(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl.gz", sums(200))
    tasks = TaskFiles(str(path))
    wanted = ask(tasks)
    assert len(pickle.dumps(tasks)) < 2000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ask, (tasks,)) == wanted


def test_another_process_refuses_a_file_that_changed_before_it_started(tmp_path: Path):
    path = json_lines(tmp_path / "rows.jsonl", sums(30))
    tasks = TaskFiles(str(path))
    tasks.count("train")
    sent = pickle.dumps(tasks)
    json_lines(path, sums(31))
    with pytest.raises(RowError, match="have changed since this run"):
        pickle.loads(sent).count("train")


def test_threads_share_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passes = scans(monkeypatch)
    path = str(json_lines(tmp_path / "rows.jsonl", sums(300)))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, [TaskFiles(path) for _ in range(32)]))
    assert all(each == found[0] for each in found)
    assert len(passes) == 1


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_rows_of_text_are_read_without_torch(name: str, tmp_path: Path):
    path = tmp_path / name
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        parquet(path, sums(30))
    else:
        json_lines(path, sums(30))
    program = (
        "import json, sys; from vagentrl.datasets import TaskFiles; "
        f"tasks = TaskFiles({str(path)!r}); print(json.dumps(tasks.task('train', 0).messages)); "
        "assert not {'torch', 'transformers', 'lightning', 'qwen_vl_utils'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [asdict(TaskFiles(str(path)))]


def asdict(tasks: TaskFiles) -> dict[str, str]:
    return dict(tasks.task("train", 0).messages[0])


# ----------------------------------------------------------------------------------- memory


def peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_memory_grows_by_the_index_and_not_by_the_rows(kind: str, tmp_path: Path):
    text = "word " * 800  # 4 kB of each row
    rows = ({"prompt": f"{n} {text}", "answer": n} for n in range(6000))  # 24 MB
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        path = parquet(tmp_path / "rows.parquet", list(rows))
    else:
        path = json_lines(tmp_path / "rows.jsonl", rows)
    tasks = TaskFiles(str(path))
    assert peak_mb(lambda: tasks.count("train")) < 6  # about 100 bytes a row, and a few rows
    assert peak_mb(lambda: [tasks.task("train", n) for n in range(0, 4500, 50)]) < 2
