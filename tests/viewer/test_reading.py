import shutil
from pathlib import Path

import pytest

from tests import toy
from tests.viewer.stored import store
from vagentrl.errors import ConfigError
from vagentrl.viewer.reading import FOLDER, UnreadableFile, read_run
from vagentrl.viewer.records import FORMAT_KEY, schema
from vagentrl.viewer.site import Site

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def foreign(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"seed": [1]}), path)


def of_another_version(path: Path) -> None:
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.replace_schema_metadata({FORMAT_KEY: b"99"}), path)


def with_other_fields(path: Path) -> None:
    table = pyarrow.parquet.read_table(path).drop_columns(["turns"])
    pyarrow.parquet.write_table(table, path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (torn, "is left out: torn, or no Parquet file"),
        (foreign, "is left out: not written by vagentrl's TrajectoryStore"),
        (
            of_another_version,
            "is left out: has version '99' of the format, but this vagentrl reads",
        ),
        (with_other_fields, "is left out: has other fields than its version says"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_file_is_named_and_the_others_are_shown(harm, said: str, tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4)])
    store(tmp_path, [toy.play([toy.GO], seed=4)], iteration=1)
    harm(tmp_path / FOLDER / "train-000000.parquet")
    run = read_run(tmp_path)
    assert [file.number for file in run.files] == [1]
    [problem] = run.problems
    assert problem.startswith(f"train-000000.parquet {said}")
    assert Site(run).trajectories == 1


def test_files_of_the_first_version_are_read(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4)])
    path = tmp_path / FOLDER / "train-000000.parquet"
    names = ["policy", "episode", "origin", "origin_turn"]
    table = pyarrow.parquet.read_table(path).drop_columns(names)
    pyarrow.parquet.write_table(table.replace_schema_metadata({FORMAT_KEY: b"1"}), path)
    run = read_run(tmp_path)
    assert run.problems == []
    [row] = run.files[0].facts()
    assert [row[name] for name in names] == [None] * 4
    assert Site(run).row("train-000000/0")["seed"] == 4


def test_a_file_under_another_name_is_no_iteration(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4)])
    folder = tmp_path / FOLDER
    shutil.copy(folder / "train-000000.parquet", folder / "copy.parquet")
    assert len(read_run(tmp_path).files) == 1


def test_damage_inside_a_file_costs_that_part_only(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4, group_id=n) for n in range(16)])
    path = tmp_path / FOLDER / "train-000000.parquet"
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(20)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    [file] = read_run(tmp_path).files
    assert len(file.rows(0)) == 8
    with pytest.raises(UnreadableFile, match="is damaged"):
        file.rows(1)
    site = Site(read_run(tmp_path))
    assert site.trajectories == 16
    assert '{"problem":"train-000000.parquet is damaged' in site.data("train-000000-1")


def test_a_run_without_trajectories_says_what_to_add(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"add the callback vagentrl\.callbacks\.TrajectoryStore"):
        read_run(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere"):
        read_run(tmp_path / "nowhere")


def test_a_folder_of_several_runs_names_them(tmp_path: Path):
    for name in ("version_0", "version_1"):
        store(tmp_path / name, [toy.play([toy.GO], seed=4)])
    with pytest.raises(ConfigError, match=r"holds several runs.*version_0, .*version_1$"):
        read_run(tmp_path)


def test_the_folder_of_trajectories_itself_will_do(tmp_path: Path):
    store(tmp_path, [toy.play([toy.GO], seed=4)])
    assert len(read_run(tmp_path / FOLDER).files) == 1


def test_an_empty_folder_is_an_empty_run(tmp_path: Path):
    (tmp_path / FOLDER).mkdir()
    site = Site(read_run(tmp_path))
    assert (site.trajectories, site.problems, site.names) == (0, [], ["index"])


def test_the_fields_are_those_that_the_documentation_lists():
    page = (Path(__file__).parents[2] / "docs/viewer.md").read_text()
    section = page.partition("## The files")[2].partition("\n## ")[0]
    turn = schema().field("turns").type.value_type
    for name in [*schema().names, *(field.name for field in turn)]:
        assert f"`{name}`" in section, name
