import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests import runs, toy
from vagentrl.callbacks import TrajectoryStore
from vagentrl.callbacks.trajectory_store import spread, with_members
from vagentrl.cli.trainer import VagentCLI
from vagentrl.errors import ConfigError
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.site import Site

pytest.importorskip("pyarrow")

STORE = ["--trainer.callbacks+=vagentrl.callbacks.TrajectoryStore"]


class Runs(NamedTuple):
    """The same run with the callback and without, and the folder of the first."""

    stored: VagentCLI
    plain: VagentCLI
    folder: Path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    settings = ["--trainer.callbacks.every_n_iterations=1", "--trainer.callbacks.groups=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        stored = runs.fit(*STORE, *settings, "--trainer.logger.init_args.name=stored", images=True)
        plain = runs.fit("--trainer.logger.init_args.name=plain", images=True)
    return Runs(stored, plain, folder / runs.folder(stored))


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    [file] = [file for file in read_run(folder).files if file.path.stem == name]
    return [row for part in range(file.groups) for row in file.rows(part)]


def test_storing_changes_nothing_that_is_learned(both: Runs):
    assert runs.fingerprint(both.stored.model) == runs.fingerprint(both.plain.model)


def test_a_run_stores_training_and_evaluations_and_the_viewer_reads_them(both: Runs):
    run = read_run(both.folder)
    names = [file.path.stem for file in run.files]
    assert names == ["train-000000", "train-000001", "val-000000", "val-000002"]
    site = Site(run)
    # two iterations with one group of two, two evaluations of four episodes
    assert (site.trajectories, site.problems) == (12, [])
    index = json.loads(site.data("index"))
    assert index["columns"]["member"][:4] == [0, 1, 0, 1]
    assert all(site.image(name).startswith(b"\x89PNG") for name in site.images())


def test_the_stored_tokens_are_those_that_were_learned_from(both: Runs):
    data: Any = both.stored.datamodule
    whole, rows = data.assessed, rows_of(both.folder, "train-000001")
    by_seed = {trajectory.transition_seed: n for n, trajectory in enumerate(data.learned)}
    assert len(rows) == 2 and rows[0]["learned"]
    for row in rows:
        number = by_seed[row["transition_seed"]]
        [place] = (whole.rollout.trajectory_ids == number).nonzero().flatten().tolist()
        for turn_number, turn in enumerate(row["turns"]):
            where = whole.rollout.turn_ids[place] == turn_number
            for name, table in (
                ("reply_ids", whole.rollout.input_ids),
                ("logprobs", whole.rollout.rollout_logprobs),
                ("actor_logprobs", whole.scores.old_logprobs),
                ("reference_logprobs", whole.scores.ref_logprobs),
                ("values", whole.scores.values),
                ("advantages", whole.credit.advantages),
            ):
                assert turn[name] == table[place][where].tolist(), name
            # an untrained model's distribution is almost uniform over its 320 tokens
            assert turn["entropies"] == pytest.approx([5.75] * len(turn["reply_ids"]), abs=0.05)


def test_evaluated_episodes_follow_the_same_seeds_and_have_no_scores(both: Runs):
    before, after = (rows_of(both.folder, name) for name in ("val-000000", "val-000002"))
    assert [row["seed"] for row in before] == [row["seed"] for row in after]
    assert {row["learned"] for row in after} == {False}
    assert after[0]["turns"][0]["advantages"] is None
    assert after[0]["turns"][0]["logprobs"] is not None


def test_later_rounds_of_a_warm_up_do_not_store_the_same_episodes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run = runs.fit(
        *STORE,
        "--trainer.callbacks.every_n_iterations=1",
        "--trainer.callbacks.evaluation_episodes=1",
        "--trainer.callbacks+=vagentrl.callbacks.CriticWarmup",
        "--trainer.callbacks.rounds=2",
        "--trainer.max_epochs=3",
        "--trainer.limit_val_batches=0",
    )
    files = read_run(runs.folder(run)).files
    assert [file.number for file in files if file.kind == "train"] == [0, 2]


def test_groups_are_chosen_evenly_and_stay_whole():
    played = [toy.play([toy.GO], seed=4, group_id=group) for group in (0, 1, 2, 3, 4) * 2]
    numbered = with_members(played)
    assert spread(list(numbered), 2) == [("toy", 0), ("toy", 2)]  # places 0 and 5 // 2
    assert spread(list(numbered), 9) == [("toy", group) for group in range(5)]
    assert [member for member, _ in numbered["toy", 3]] == [0, 1]


def test_a_full_disk_costs_the_trajectories_and_not_the_run(
    both: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    run = both.stored
    monkeypatch.setattr("vagentrl.callbacks.trajectory_store.TrajectoryFolder", full)
    TrajectoryStore()._write(run.trainer, run.model, "val", [(0, toy.play([toy.GO]))], [None])
    assert "no trajectories are stored: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_iterations": 0}, "every_n_iterations is 0; give 1 or more"),
        ({"groups": 0}, "groups is 0; give 1 or more"),
        ({"evaluation_episodes": -1}, "evaluation_episodes is -1; give 1 or more"),
        ({"max_mb": 0}, "max_mb is 0; give megabytes above 0"),
        ({"max_mb": float("nan")}, "max_mb is nan; give megabytes above 0"),
    ],
)
def test_settings_that_store_nothing_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        TrajectoryStore(**settings)


def test_without_pyarrow_the_constructor_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'vagentrl\[viewer\]'"):
        TrajectoryStore()


def test_an_iteration_that_learns_nothing_is_stored_without_scores(both: Runs):
    """The filter may keep no group."""
    store = TrajectoryStore()
    batch: Any = both.stored.datamodule.assessed  # pyright: ignore
    assert store._scores(both.stored.model, [(0, toy.play([toy.GO]))], [], batch) == [None]  # pyright: ignore
    assert torch.is_tensor(batch.rollout.rewards)
