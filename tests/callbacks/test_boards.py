from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # pyright: ignore

from tests import runs
from vagentrl.advantages import BiLevelGAE, GroupRelative
from vagentrl.callbacks import Boards, KLControl
from vagentrl.callbacks.board_layout import BOARDS, boards_of, layout
from vagentrl.callbacks.hyperparameters import described
from vagentrl.cli.trainer import VagentCLI
from vagentrl.contexts import Window
from vagentrl.errors import ConfigError
from vagentrl.losses import PPOClip, TruncatedImportance
from vagentrl.types import TrainBatch

TITLES = ["Learning", "Echo trap", "Optimisation", "Rollout", "Engine agreement", "Time"]


class Batches(Callback):
    """Keeps the whole batch of every iteration."""

    def __init__(self) -> None:
        self.seen: list[TrainBatch] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader: Any = trainer.train_dataloader
        self.seen.append(loader.whole)


@pytest.fixture(scope="module")
def kept() -> Batches:
    return Batches()


@pytest.fixture(scope="module")
def finished(kept: Batches, tmp_path_factory: pytest.TempPathFactory) -> VagentCLI:
    """Three iterations with a critic, and with histograms in the first and in the third."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("boards"))
        save_dir = f"--trainer.logger.init_args.save_dir={Path.cwd()}"
        run = runs.prepare(save_dir, "--trainer.max_epochs=3", "--model.optimizer.actor_lr=0.0")
        callbacks = runs.callbacks(run)
        (boards,) = (callback for callback in callbacks if isinstance(callback, Boards))
        boards.every_n_iterations, boards.episodes = 2, 1
        callbacks.append(kept)
        run.trainer.fit(run.model, run.datamodule)
        return run


# ----------------------------------------------------------------------------------- the layout


def test_a_run_has_one_layout_with_the_six_boards(finished: VagentCLI):
    [event] = runs.events(finished).Tensors("custom_scalars__config__")
    written = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])  # pyright: ignore
    assert [category.title for category in written.category] == TITLES == list(BOARDS)
    interval = written.category[0].chart[0].margin.series[0]
    assert (interval.value, interval.lower, interval.upper) == (
        "val/success_rate", "val/success_rate_low", "val/success_rate_high"
    )  # fmt: skip
    assert list(written.category[0].chart[1].multiline.tag) == [
        "^(?:(rollout|val|test)/success_rate)$"
    ]


def test_a_chart_shows_whole_names_only():
    assert boards_of("val/success_rate") == ["Learning"]
    assert boards_of("val/success_rate_of_something") == []
    assert boards_of("rollout/group_std") == ["Echo trap", "Rollout"]
    assert boards_of("echo_trap/anything") == ["Echo trap"]
    assert boards_of("rollout/luck") == []
    titles = [title for charts in layout().values() for title in charts]
    assert len(titles) == sum(map(len, BOARDS.values()))  # a title names one chart of its board


# ---------------------------------------------------------------------------------- histograms


def test_histograms_hold_the_sampled_tokens_of_the_whole_batch(finished: VagentCLI, kept: Batches):
    events = runs.events(finished)
    for name in ("advantages", "values", "returns"):
        written = events.Histograms(f"histograms/{name}")
        assert [event.step for event in written] == [1, 3]
        for event, batch in zip(written, (kept.seen[0], kept.seen[2]), strict=True):
            column = {
                "advantages": batch.credit.advantages,
                "values": batch.scores.values,
                "returns": batch.credit.returns,
            }[name]
            assert column is not None
            tokens, told = column[batch.rollout.action_mask], event.histogram_value
            # two groups of two episodes of two turns, each cut off after four tokens
            assert told.num == len(tokens) == 32
            assert told.sum == pytest.approx(float(tokens.sum()), abs=1e-5)
            assert (told.min, told.max) == pytest.approx((float(tokens.min()), float(tokens.max())))


def test_ratios_are_1_where_the_actor_does_not_move(finished: VagentCLI):
    for event in runs.events(finished).Histograms("histograms/ratios"):
        told = event.histogram_value
        assert told.num == 32
        assert (told.min, told.max) == pytest.approx((1, 1), abs=1e-5)


def test_values_are_drawn_against_returns_where_there_is_a_critic(
    finished: VagentCLI, run_dir: Path
):
    tag = "histograms/values_against_returns"
    assert [event.step for event in runs.events(finished).Images(tag)] == [1, 3]
    plain = runs.fit(
        "--model.advantage=GroupRelative", "--trainer.callbacks=[]", "--trainer.max_epochs=1"
    )
    tags = runs.events(plain).Tags()
    assert tags["images"] == []
    assert set(tags["histograms"]) == {"histograms/advantages", "histograms/ratios"}


def test_of_many_tokens_an_evenly_spaced_part_counts():
    part = Boards(most_tokens=4)._part
    assert part(torch.arange(4)).tolist() == [0, 1, 2, 3]
    assert part(torch.arange(9)).tolist() == [0, 3, 6]  # every second one would be five
    assert part(torch.arange(0)).tolist() == []


# ------------------------------------------------------------------------------------ episodes


def test_episodes_are_written_as_text(finished: VagentCLI):
    events = runs.events(finished)
    for where, steps in (("rollout", [1, 3]), ("val", [0, 2, 3])):
        written = events.Tensors(f"{where}/transcript_0/text_summary")
        assert [event.step for event in written] == steps
        text = written[-1].tensor_proto.string_val[0].decode()
        assert text.startswith("**environment train, seed ") and "**turn 2**" in text
    assert f"{where}/transcript_1/text_summary" not in events.Tags()["tensors"]


# -------------------------------------------------------------------------------------- hparams


def hparams(run: VagentCLI) -> dict[str, Any]:
    content = runs.events(run).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = HParamsPluginData.FromString(content).session_start_info
    return {
        name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()
    }


def test_runs_are_compared_by_their_settings(finished: VagentCLI):
    told = hparams(finished)
    assert told["advantage"] == "BiLevelGAE" and told["kl"] == "KLControl(coefficient=0.1)"
    assert (told["groups"], told["critic_lr"], told["critic"]) == (2, 1e-3, "own")
    assert (told["lora_rank"], told["turns"], told["seed"]) == (0, 0, 1)


def test_every_run_has_the_same_settings_of_the_same_types(finished: VagentCLI, run_dir: Path):
    lora = ("--model.lora.rank=2", "--data.turns=3", "--model.advantage=MaskedGAE")
    other = runs.fit(*lora, "--trainer.callbacks=[]", "--trainer.max_epochs=1")
    one, two = hparams(finished), hparams(other)
    assert {name: type(value) for name, value in one.items()} == {
        name: type(value) for name, value in two.items()
    }
    assert (two["kl"], two["lora_rank"], two["turns"]) == ("none", 2, 3)


def evaluated(*rates: float, settings: tuple[str, ...] = ()) -> VagentCLI:
    """A run that is evaluated after every iteration, with these results."""
    run, left = runs.prepare("--trainer.check_val_every_n_epoch=1", *settings), list(rates)

    def evaluate(*given: object, **settings: object) -> dict[str, float]:
        rate = left.pop(0)
        ends = {"val/success_rate_low": 0.0, "val/success_rate_high": 1.0}
        return {"val/success_rate": rate, **ends}

    run.datamodule.evaluate = evaluate
    run.trainer.fit(run.model, run.datamodule, ckpt_path=run.config.ckpt_path)
    assert left == []
    return run


def scalars(run: VagentCLI, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 6)) for event in runs.events(run).Scalars(tag)]


def test_the_last_and_the_best_success_are_kept_and_go_on_after_a_break(run_dir: Path):
    run = evaluated(0.25, 0.75, 0.5)
    assert scalars(run, "hparams/success_rate") == [(0, 0.25), (1, 0.75), (2, 0.5)]
    assert scalars(run, "hparams/best_success_rate") == [(0, 0.25), (1, 0.75), (2, 0.75)]
    path = runs.folder(run) / "checkpoints" / "last.ckpt"
    # in the same folder, where TensorBoard reads only the last layout
    here = ("--trainer.logger.init_args.version=0", "--trainer.max_epochs=3")
    resumed = evaluated(0.5, settings=("--ckpt_path", str(path), *here))
    assert runs.folder(resumed) == runs.folder(run)
    assert scalars(resumed, "hparams/best_success_rate")[-1] == (3, 0.75)
    layouts = [
        event.tensor_proto.string_val[0]
        for event in runs.events(resumed).Tensors("custom_scalars__config__")
    ]
    assert len(set(layouts)) == 1


def test_a_part_is_described_by_what_differs_from_its_defaults():
    assert described(PPOClip()) == "PPOClip"
    assert described(PPOClip(clip_high=0.28)) == "PPOClip(clip_high=0.28)"
    assert described(Window(turns=3, thoughts="strip")) == "Window(turns=3, thoughts=strip)"
    assert described(KLControl(target=0.1)) == "KLControl(target=0.1)"
    assert described(GroupRelative(scale=None)) == "GroupRelative(scale=None)"
    assert described(BiLevelGAE()) == "BiLevelGAE"
    weighed = described(PPOClip(importance=TruncatedImportance()))
    assert weighed == "PPOClip(importance=TruncatedImportance)"


# ---------------------------------------------------------------------- what may be left out


@pytest.mark.parametrize(
    "setting",
    ["--trainer.logger=false", "--trainer.fast_dev_run=true"],
)
def test_nothing_breaks_without_loggers(setting: str, run_dir: Path):
    assert runs.fit(setting, "--trainer.max_epochs=1").trainer.state.finished


def test_an_iteration_that_learns_nothing_has_no_histograms(run_dir: Path):
    run = runs.fit(
        "--data.filter=DynamicSampling", "--data.env.init_args.turn_limit=1",
        "--trainer.max_epochs=1",
    )  # fmt: skip
    tags = runs.events(run).Tags()
    assert tags["histograms"] == []
    assert "rollout/transcript_0/text_summary" in tags["tensors"]


def test_the_learned_weights_are_the_same_without_the_callback(run_dir: Path):
    once = ("--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    shown = runs.fit(*once)
    bare = runs.prepare(*once)
    callbacks = runs.callbacks(bare)
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, Boards)]
    bare.trainer.fit(bare.model, bare.datamodule)
    assert runs.fingerprint(shown.model) == runs.fingerprint(bare.model)


@pytest.mark.parametrize(
    "settings", [{"every_n_iterations": 0}, {"episodes": -1}, {"most_tokens": 0}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int]):
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"Boards\.{name} is"):
        Boards(**settings)
