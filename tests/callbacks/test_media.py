"""Pictures, texts and histograms through the loggers' own methods."""

import csv
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger
from PIL import Image

from tests import runs
from vagentrl.callbacks import TrajectoryPictures, media
from vagentrl.callbacks.media import writers_for
from vagentrl.modules.run_folders import run_folder

CSV = "--trainer.logger={class_path: CSVLogger, init_args: {save_dir: runs, name: table}}"
PICTURE = Image.new("RGB", (3, 2), "red")


class FakeWandb(WandbLogger):
    """Weights & Biases' logger with a run that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self._log_model = False
        self._experiment = None

    @property
    def experiment(self) -> Any:
        config = SimpleNamespace(update=lambda given, **_: self.settings.update(given))
        return SimpleNamespace(config=config, log=self.kept.append)

    @property
    def save_dir(self) -> str:
        return "runs"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.kept.append({**metrics, "trainer/global_step": step})


class FakeMLflow(MLFlowLogger):
    """MLflow's logger with a client that keeps what it is given."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []
        self.experiment_calls = SimpleNamespace(
            log_image=lambda run, image, *, key, step: self.kept.append(
                ("image", run, image.shape, key, step)
            ),
            log_text=lambda run, text, path: self.kept.append(("text", run, text, path)),
        )

    @property
    def experiment(self) -> Any:
        return self.experiment_calls

    @property
    def run_id(self) -> str:
        return "run 1"


class Library:
    """Stands for the module wandb."""

    @staticmethod
    def Image(image: Any, **settings: Any) -> tuple[str, Any]:
        return ("image", image)

    @staticmethod
    def Table(columns: Any, data: Any, dataframe: Any) -> tuple[str, Any, Any]:
        return ("table", columns, data)

    @staticmethod
    def Histogram(np_histogram: Any) -> tuple[str, Any]:
        return ("histogram", np_histogram)


@pytest.fixture(autouse=True)
def unsaid():
    """What a logger leaves out is said once in a process: here once in a test."""
    media._leave_out.cache_clear()
    yield
    media._leave_out.cache_clear()


def show(logger: Logger) -> None:
    [writer] = writers_for([logger])
    writer.image("a/picture", PICTURE, 3)
    writer.text("a/text", "# words", 3)
    writer.histogram("a/histogram", np.array([0.0, 1.0, 1.0]), 3)


def test_weights_and_biases_gets_all_three(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", Library)  # pyright: ignore
    logger = FakeWandb()
    show(logger)
    picture, text, histogram = logger.kept
    assert picture == {"a/picture": [("image", PICTURE)], "trainer/global_step": 3}
    assert text == {"a/text": ("table", ["text"], [["# words"]]), "trainer/global_step": 3}
    _, (counts, edges) = histogram["a/histogram"]
    assert (counts[0], counts[-1], counts.sum(), len(edges)) == (1, 2, 3, media.BINS + 1)


def test_mlflow_gets_pictures_and_texts_and_says_once_that_histograms_are_left_out(
    caplog: pytest.LogCaptureFixture,
):
    logger = FakeMLflow()
    with caplog.at_level(logging.INFO):
        show(logger)
        show(logger)
    assert logger.kept[:2] == [
        ("image", "run 1", (2, 3, 3), "a/picture", 3),
        ("text", "run 1", "# words", "a/text/3.md"),
    ]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["MLFlowLogger takes no histograms: it gets all scalars, and these are left out"]


def test_a_logger_of_numbers_gets_all_of_them_and_the_log_says_once_what_it_leaves_out(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO):
        run = runs.fit(CSV, "--trainer.max_epochs=1", "--trainer.callbacks=TrajectoryPictures")
    assert isinstance(run.trainer.logger, CSVLogger)
    with (runs.folder(run) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = {"rollout/return": ["1"], "train/entropy": ["1"], "val/success_rate": ["0", "1"]}
    for name, expected in steps.items():
        assert [row["step"] for row in rows if row[name]] == expected
    assert {row["hparams/best_success_rate"] for row in rows} == {"", "0.0"}
    said = [record.getMessage() for record in caplog.records if "takes no" in record.getMessage()]
    assert said == [
        "CSVLogger takes no pictures, texts or histograms: it gets all scalars, and these are "
        "left out"
    ]


def test_several_loggers_get_each_what_they_take(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", Library)  # pyright: ignore
    run, logger = runs.prepare("--trainer.max_epochs=1", images=True), FakeWandb()
    run.trainer.loggers.append(logger)
    runs.callbacks(run).append(TrajectoryPictures(episodes=1))
    run.trainer.fit(run.model, run.datamodule)
    names = {name for entry in logger.kept for name in entry}
    assert names >= {
        "histograms/advantages", "histograms/ratios", "histograms/values_against_returns",
        "rollout/transcript_0", "rollout/episode_0", "val/episode_0", "rollout/return",
        "hparams/success_rate", "hparams/best_success_rate",
    }  # fmt: skip
    assert logger.settings["advantage"] == "BiLevelGAE"
    steps = [e["trainer/global_step"] for e in logger.kept if "histograms/advantages" in e]
    assert steps == [1]
    assert "rollout/episode_0" in runs.events(run).Tags()["images"]


class WithoutFolders(Logger):
    """A logger as that of Weights & Biases: it keeps no folder for each run."""

    name = "toy"  # pyright: ignore
    save_dir = "runs"  # pyright: ignore

    def __init__(self, version: str) -> None:
        super().__init__()
        self._version = version

    @property
    def version(self) -> str:
        return self._version

    def log_metrics(self, metrics: Any, step: int | None = None) -> None: ...

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...


def test_runs_of_a_logger_without_folders_do_not_overwrite_each_other(run_dir: Path):
    folders: list[Path] = []
    for version in ("a", "b"):
        logger = {"class_path": f"{__name__}.WithoutFolders", "init_args": {"version": version}}
        run = runs.fit("--trainer.max_epochs=1", f"--trainer.logger={json.dumps(logger)}")
        folders.append(run_folder(run.trainer))
    assert folders == [Path("runs/toy/a"), Path("runs/toy/b")]
    for folder in folders:
        names = {path.name for path in folder.iterdir()}
        assert names >= {"config.yaml", "log.jsonl", "summary.json", "checkpoints"}
    assert not Path("runs/config.yaml").exists()
