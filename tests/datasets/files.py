"""Writes files of rows, in every kind that is read."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vagentrl.datasets import TaskFiles
from vagentrl.environment import Split
from vagentrl.interactions import Task

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Rows = Sequence[Mapping[str, Any]]


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows of the plain form, each with a question of its own."""
    return [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(start, start + count)]


def verl_row(question: str, truth: str, **interaction: Any) -> dict[str, Any]:
    """A row as verl's scripts for its data sets write it."""
    return {
        "data_source": "sums",
        "agent_name": "tool_agent",
        "prompt": [
            {"role": "system", "content": "You add numbers."},
            {"role": "user", "content": question},
        ],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": 0, "interaction_kwargs": interaction},
    }


def json_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write a JSON Lines file; a row that is a string is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def parquet(path: Path, rows: Rows, **settings: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, **settings)
    return path


def saved(folder: Path, rows: Rows) -> Path:
    """Write what `datasets.Dataset.save_to_disk` writes, in two Arrow streams."""
    import pyarrow

    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(list(rows))
    half = len(rows) // 2
    names = [f"data-0000{part}-of-00002.arrow" for part in range(2)]
    for name, part in zip(names, (table.slice(0, half), table.slice(half)), strict=True):
        with pyarrow.OSFile(str(folder / name), "wb") as sink:
            writer = pyarrow.ipc.new_stream(sink, table.schema)
            writer.write_table(part, max_chunksize=3)
            writer.close()
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def tasks_of(tasks: TaskFiles, split: Split) -> list[Task]:
    return [tasks.task(split, index) for index in range(tasks.count(split))]


def asked(tasks: TaskFiles, split: Split) -> list[str]:
    """The last message of every task of a split."""
    return [task.messages[-1]["content"] for task in tasks_of(tasks, split)]


def all_asked(tasks: TaskFiles) -> list[str]:
    return [question for split in SPLITS for question in asked(tasks, split)]
