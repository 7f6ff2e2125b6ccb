"""A resumed run gives the same result as an uninterrupted one."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer

from tests import runs
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI

ADAPTIVE = (
    "--trainer.callbacks=vagentrl.callbacks.KLControl",
    "--trainer.callbacks.target=0.01",
    "--trainer.callbacks.horizon=10",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.save_last=true",
)
ENDLESS = ("--data.env.init_args.turn_limit=7",)


def last_checkpoint(cli: VagentCLI) -> str:
    return str(runs.folder(cli) / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        # Lightning then saves within the epoch, after the evaluation
        (*ADAPTIVE, "--trainer.callbacks.save_on_train_epoch_end=false"),
        ("--model.critic=shared", "--data.passes=2"),
        (*ENDLESS, "--data.turns=3"),  # episodes of 7 turns go on from batch to batch
        (*ENDLESS, "--data.turns=3", "--data.context=Window", "--data.context.turns=1"),
        ("--model.lora.rank=2",),
    ],
    ids=["after-the-epoch", "within-the-epoch", "shared-critic", "turns", "window", "lora"],
)
def test_two_and_two_iterations_are_four_bit_by_bit(settings: tuple[str, ...], run_dir: Path):
    every = "--trainer.check_val_every_n_epoch=1"
    whole = runs.fit(*settings, every, "--trainer.max_epochs=4", images=True)
    half = runs.fit(*settings, every, "--trainer.max_epochs=2", images=True)
    path = ("--ckpt_path", last_checkpoint(half))
    resumed = runs.fit(*settings, every, "--trainer.max_epochs=4", *path, images=True)
    assert runs.fingerprint(half.model) != runs.fingerprint(whole.model)
    assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)
    assert resumed.model.iteration == 4


def test_a_resumed_run_keeps_the_history(run_dir: Path):
    half = runs.fit()
    resumed = runs.fit("--trainer.max_epochs=3", "--ckpt_path", last_checkpoint(half))
    before, after = runs.summary(half), runs.summary(resumed)
    assert [m["iteration"] for m in after["evaluations"]] == [0, 2, 3]
    assert after["evaluations"][:2] == before["evaluations"]
    assert (after["iterations"], after["episodes"]) == (3, 12)
    assert (
        after["seconds"]["total"] > before["seconds"]["total"] * 0.9
    )  # the checkpoint was saved before the run ended


def test_the_adapted_coefficient_survives_and_a_fixed_one_is_as_configured(run_dir: Path):
    half = runs.fit(*ADAPTIVE)
    path = ("--ckpt_path", last_checkpoint(half))
    resumed = runs.fit(*ADAPTIVE, "--trainer.max_epochs=3", *path)
    seen = [
        e.value
        for run in (half, resumed)
        for e in runs.events(run).Scalars("rollout/kl_coefficient")
    ]
    # no divergence in the first iteration: the error is clipped to -0.2, of 4 episodes of 10
    assert seen[0] == pytest.approx(0.001)
    assert seen[1] == pytest.approx(0.001 * (1 - 0.2 * 4 / 10))
    assert seen[2] != seen[1]


def test_a_checkpoint_holds_no_copy_of_the_reference(run_dir: Path):
    saved = torch.load(last_checkpoint(runs.fit()), weights_only=True)["state_dict"]
    assert {name.split(".")[0] for name in saved} == {"actor", "critic"}


def message(*settings: str) -> str:
    """The error message with which the command exits."""
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(*settings)])
    return str(ended.value.code)


class StopWithin(Callback):
    """Saves a checkpoint in the middle of the second iteration."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch == 1 and not trainer.is_last_batch:
            trainer.save_checkpoint("within.ckpt")


def test_a_checkpoint_from_within_an_iteration_is_refused(run_dir: Path):
    runs.fit("--trainer.callbacks+=tests.end_to_end.test_resume.StopWithin")
    assert "saved within iteration 1, and the rest" in message("--ckpt_path", "within.ckpt")


def test_weights_alone_are_no_checkpoint_to_go_on_from(run_dir: Path):
    runs.fit().trainer.save_checkpoint("weights.ckpt", weights_only=True)
    assert "holds weights alone" in message("--ckpt_path", "weights.ckpt")
    main(["validate", *runs.arguments("--ckpt_path", "weights.ckpt")])


GROUPS = ("--model.advantage=vagentrl.advantages.GroupRelative",)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (GROUPS, (), r"it lacks critic\.\S+ and \d+ more\. Set model\.policy"),
        (
            (),
            GROUPS,
            r"it also holds critic\.\S+ and \d+ more\. Set model\.policy, critic and lora",
        ),
        ((), ("--model.lora.rank=2",), r"it lacks actor\.\S+ and \d+ more; it also holds actor"),
        (
            (),
            ("--model.policy=tiny-sokoban-text",),
            r"it has another shape of actor\.policy\.\S+ and",
        ),
    ],
    ids=["no-critic", "critic", "lora", "policy"],
)
def test_a_checkpoint_of_other_models_is_refused_by_name(
    before: tuple[str, ...], now: tuple[str, ...], said: str, run_dir: Path
):
    saved = runs.fit(*before, "--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    assert re.search(said, message(*now, "--ckpt_path", last_checkpoint(saved)))


def test_what_is_no_checkpoint_is_refused_by_name(run_dir: Path):
    Path("there").mkdir()
    Path("there/last.ckpt").write_text("not one")
    missing = message("--ckpt_path", "there/lost.ckpt")
    assert "there is no checkpoint there/lost.ckpt; there holds last.ckpt" in missing
    assert "there/last.ckpt cannot be read as a checkpoint" in message(
        "--ckpt_path", "there/last.ckpt"
    )
    assert "there cannot be read as a checkpoint" in message("--ckpt_path", "there")


class FillTheDisk(Callback):
    """From the second iteration on, writes checkpoints to a full device."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            folder = Path(trainer.log_dir or "") / "checkpoints"
            (folder / "epoch=1-step=2.ckpt.partial").symlink_to("/dev/full")


def test_a_full_disk_ends_the_run_with_one_message_and_the_last_checkpoint_is_good(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
):
    full = "--trainer.callbacks+=tests.end_to_end.test_resume.FillTheDisk"
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(full)])
    message = str(ended.value.code)
    assert message.startswith("vagentrl: VagentError: the checkpoint runs/toy/version_0/")
    assert "No space left on device" in message
    assert "Traceback" not in capfd.readouterr().err
    good = "runs/toy/version_0/checkpoints/last.ckpt"
    assert runs.fit("--trainer.max_epochs=3", "--ckpt_path", good).model.iteration == 3
