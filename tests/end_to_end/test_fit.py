"""``vagentrl fit`` from the first episode to the last file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests import runs
from vagentrl.cli.trainer import VagentCLI
from vagentrl.engines.vllm.weights import weights_of
from vagentrl.environment import seed_of
from vagentrl.models.load import load_model

ROOT = Path(__file__).parents[2]

GROUP_RELATIVE = (
    "--model.advantage", "vagentrl.advantages.GroupRelative", "--trainer.callbacks", "[]"
)  # fmt: skip
PICTURES = "--trainer.callbacks+=vagentrl.callbacks.TrajectoryPictures"


def test_the_recipe_with_pictures_runs_from_the_shell_and_says_nothing_needless(run_dir: Path):
    command = [
        *(Path(sys.executable).parent / "vagentrl", "fit"),
        *("--config", ROOT / "configs/sokoban_vlm.yaml", "--model.policy", runs.checkpoint(True)),
        *("--trainer.max_epochs=2", "--data.groups=2", "--data.val_episodes=2"),
        *("--data.env.init_args.turn_limit=2", "--data.sampling.max_tokens=4"),
    ]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=run_dir, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = (
        "Seed set to 1", "GPU available", "TPU available", "iteration 0/2", "iteration 1/2",
        "iteration 2/2", "Run summary", "----", "held-out success before",
        "held-out success after", "iterations", "episodes", "seconds", "written to runs/",
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line]
    assert not [line for line in said if not line.startswith(expected)]
    assert done.stdout == ""
    written = {path.name for path in run_dir.glob("runs/sokoban_vlm/version_0/*")}
    assert written >= {
        "summary.json", "learning_curve.png", "log.jsonl", "config.yaml", "checkpoints"
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> VagentCLI:
    """A run with images, its own critic, a reference and KL in the reward."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        save_dir = f"--trainer.logger.init_args.save_dir={os.getcwd()}"
        return runs.fit(save_dir, PICTURES, "--trainer.max_epochs=3", images=True)


def test_the_summary_holds_success_before_and_after_with_intervals(finished: VagentCLI):
    summary = runs.summary(finished)
    for when in ("before", "after"):
        low, high = summary[f"val_success_{when}_95"]
        assert 0 <= low <= summary[f"val_success_{when}"] <= high <= 1
    assert (summary["iterations"], summary["episodes"], summary["failed_episodes"]) == (3, 12, 0)


def test_the_run_is_evaluated_at_both_ends_and_every_nth_iteration_between(finished: VagentCLI):
    # every second iteration, and the third is the last
    assert [m["iteration"] for m in runs.summary(finished)["evaluations"]] == [0, 2, 3]


def test_the_seconds_of_the_stages_add_up_to_no_more_than_the_total(finished: VagentCLI):
    seconds = runs.summary(finished)["seconds"]
    total = seconds.pop("total")
    assert set(seconds) == {"sync", "generate", "environment", "score", "update", "evaluate"}
    assert all(value >= 0 for value in seconds.values())
    assert sum(seconds.values()) <= total


def test_the_learning_curve_is_a_picture(finished: VagentCLI):
    with Image.open(runs.folder(finished) / "learning_curve.png") as curve:
        assert curve.width > curve.height > 300


def test_every_scalar_has_a_stable_name_and_the_iteration_as_its_x_axis(finished: VagentCLI):
    events = runs.events(finished)
    steps = {tag: [e.step for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    groups = {"train", "val", "rollout", "optim", "time", "hparams"}
    assert {tag.split("/")[0] for tag in steps} == groups
    for tag, seen in steps.items():
        evaluated = tag.startswith(("val/", "hparams/")) or tag == "time/evaluate"
        assert seen == ([0, 2, 3] if evaluated else [1, 2, 3]), tag
    assert steps.keys() >= {
        "val/success_rate", "val/success_rate_low", "val/success_rate_high", "val/return",
        "val/turns", "rollout/success_rate", "rollout/return", "rollout/failed", "rollout/kl",
        "rollout/unfinished_replies", "rollout/tokens_per_s", "train/policy_loss",
        "train/value_loss", "train/entropy", "train/clip_fraction", "optim/actor_lr",
        "optim/critic_lr", "optim/actor_grad_norm", "optim/critic_grad_norm", "time/sync",
        "time/generate", "time/environment", "time/score", "time/update",
    }  # fmt: skip


def test_episodes_are_drawn_for_tensorboard(finished: VagentCLI):
    events = runs.events(finished)
    steps = {tag: [e.step for e in events.Images(tag)] for tag in events.Tags()["images"]}
    for number in range(3):
        assert steps[f"val/episode_{number}"] == [0, 2, 3]
        assert steps[f"rollout/episode_{number}"] == [0]
    assert steps["histograms/values_against_returns"] == [1]


def test_the_actor_and_the_critic_learn_and_the_reference_does_not(finished: VagentCLI):
    fresh = runs.prepare(images=True).model
    fresh.build(frozenset())
    agent = finished.model
    assert runs.fingerprint(agent.actor) != runs.fingerprint(fresh.actor)
    assert runs.fingerprint(agent.critic) != runs.fingerprint(fresh.critic)
    assert runs.fingerprint(agent.reference) == runs.fingerprint(fresh.actor)


def test_validate_scores_a_checkpoint_as_its_run_scored_it_last(finished: VagentCLI, run_dir: Path):
    last = runs.folder(finished) / "checkpoints" / "last.ckpt"
    again = VagentCLI(["validate", *runs.arguments("--ckpt_path", str(last), images=True)])
    scored = {k: float(v) for k, v in again.trainer.callback_metrics.items() if "val/" in k}
    evaluated = runs.summary(finished)["evaluations"][-1]
    assert scored == pytest.approx({k: v for k, v in evaluated.items() if "val/" in k}, abs=1e-6)
    assert scored


def test_test_plays_the_test_split_and_reports_it_as_such(finished: VagentCLI, run_dir: Path):
    last = runs.folder(finished) / "checkpoints" / "last.ckpt"
    settings = ("--ckpt_path", str(last), PICTURES)
    tested = VagentCLI(["test", *runs.arguments(*settings, images=True)])
    played = tested.datamodule.evaluated["train"]
    assert [t.seed for t in played] == [seed_of("test", index) for index in range(4)]
    metrics = tested.trainer.callback_metrics
    assert {name.partition("/")[0] for name in metrics} == {"test", "time", "step"}
    assert float(metrics["test/return"]) == pytest.approx(sum(t.total_reward for t in played) / 4)
    tags = runs.events(tested).Tags()
    assert set(tags["images"]) == {f"test/episode_{number}" for number in range(3)}
    texts = {f"test/transcript_{number}/text_summary" for number in range(3)}
    assert set(tags["tensors"]) == texts  # no boards without scalars of a training


def test_an_evaluation_plays_a_state_again_only_with_other_luck(run_dir: Path):
    run = runs.fit("--data.env=tests.end_to_end.environments.Told", "--trainer.max_epochs=1")
    played = run.datamodule.evaluated["train"]
    assert [t.seed for t in played] == [1] * 4  # all seeds have the same initial state
    assert len({t.transition_seed for t in played}) == 4
    assert float(run.trainer.callback_metrics["val/distinct_states"]) == 1


def test_the_saved_configuration_makes_the_same_run_again(finished: VagentCLI, run_dir: Path):
    again = VagentCLI(["fit", "--config", str(runs.folder(finished) / "config.yaml")])
    assert runs.fingerprint(again.model) == runs.fingerprint(finished.model)


def test_another_seed_makes_another_run(finished: VagentCLI, run_dir: Path):
    saved = str(runs.folder(finished) / "config.yaml")
    again = VagentCLI(["fit", "--config", saved, "--seed_everything=2"])
    assert runs.fingerprint(again.model.actor) != runs.fingerprint(finished.model.actor)


def test_a_value_head_on_the_actor_is_enough_of_a_critic(run_dir: Path):
    shared = runs.fit("--model.critic=shared", images=True)
    assert shared.model.critic.backbone is None
    assert "train/value_loss" in runs.events(shared).Tags()["scalars"]


def test_group_relative_credit_needs_neither_critic_nor_reference(run_dir: Path):
    plain = runs.fit(*GROUP_RELATIVE)
    assert plain.model.critic is None and plain.model.reference is None
    tags = runs.events(plain).Tags()["scalars"]
    assert "train/policy_loss" in tags
    assert not {"train/value_loss", "rollout/kl", "optim/critic_lr"} & set(tags)


def test_other_environments_are_evaluated_under_their_names(run_dir: Path):
    run = runs.fit(
        "--data.val_envs={longer: {class_path: tests.toy.Countdown, init_args: {turn_limit: 3}}}",
        "--trainer.callbacks=vagentrl.callbacks.TrajectoryPictures",
        "--trainer.max_epochs=1",
    )
    events = runs.events(run)
    assert [e.value for e in events.Scalars("val/turns")] == [2, 2]
    assert [e.value for e in events.Scalars("val/longer/turns")] == [3, 3]
    assert "val/longer/episode_0" in events.Tags()["images"]


@pytest.mark.parametrize(
    "override",
    ["--trainer.logger=false", "--trainer.fast_dev_run=true", "--trainer.limit_val_batches=0"],
)
def test_what_lightning_can_leave_out_may_be_left_out(override: str, run_dir: Path):
    left_out = runs.fit(override, "--trainer.callbacks=[]")
    assert left_out.trainer.state.finished


def test_with_an_adapter_nothing_else_learns_and_the_reference_is_the_start(run_dir: Path):
    cli = runs.fit("--model.lora.rank=2", "--model.optimizer.actor_lr=0.01", images=True)
    start = load_model(runs.checkpoint(images=True))
    weights = dict(weights_of(cli.model.actor.policy))
    for name, weight in start.named_parameters():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0)
    kl = [event.value for event in runs.events(cli).Scalars("rollout/kl")]
    assert kl[0] == 0  # a new adapter does not change the model
    assert kl[1] != 0
    saved = torch.load(runs.folder(cli) / "checkpoints" / "last.ckpt", weights_only=False)
    assert all("lora_" in name or "value_head" in name for name in saved["state_dict"])
