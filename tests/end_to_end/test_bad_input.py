"""Bad input ends in one clear message, or is counted and shown while the run goes on."""

import logging
from pathlib import Path

import pytest

from tests import runs
from vagentrl.cli.main import main

SIXTEEN = ("--data.groups=4", "--data.group_size=4")
ONE_ITERATION = ("--trainer.max_epochs=1", "--trainer.limit_val_batches=0")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["--model.policy=/no/such/folder"], "there is no model folder '/no/such/folder'"),
        (["--data.env.init_args.images=true"], "shows an image but the model reads text only"),
        (["--data.context_length=20"], "but the context is 20 tokens long"),
        (["--data.groups=0"], "data.groups is 0"),
        (
            ["--data.val_envs={train: tests.toy.Countdown}"],
            "data.val_envs names an environment 'train'",
        ),
        (["--data.env=tests.end_to_end.environments.AlwaysRaising"], "RuntimeError: no water"),
        (
            ["--model.policy_loss=vagentrl.losses.PPOClip", "--model.policy_loss.clip_low=0.3"],
            "clip_low is 0.3 and clip_high 0.2",
        ),
        (
            [
                "--trainer.callbacks=vagentrl.callbacks.CriticWarmup",
                "--model.advantage=vagentrl.advantages.GroupRelative",
            ],
            "CriticWarmup is set but model.advantage (GroupRelative) uses no critic",
        ),
    ],
    ids=["model", "text-only", "context", "groups", "val-envs", "all-fail", "clip", "warmup"],
)
def test_what_cannot_work_ends_with_one_message(
    overrides: list[str], said: str, run_dir: Path, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *runs.arguments(*overrides)])
    message = str(ended.value.code)  # what Python prints, and leaves with status 1
    assert message.startswith("vagentrl: ")
    assert said in message
    printed = capfd.readouterr().err
    assert "Traceback" not in printed and said not in printed


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("Raising", [], "RuntimeError: the pipe burst"),
        ("Hanging", ["--data.timeout_s=1"], "did not answer reset within 1 s"),
    ],
)
def test_an_environment_that_breaks_is_counted_and_shown_and_the_run_goes_on(
    name: str, settings: list[str], why: str, run_dir: Path, caplog: pytest.LogCaptureFixture
):
    env = f"--data.env=tests.end_to_end.environments.{name}"
    with caplog.at_level(logging.WARNING, "vagentrl.datamodule"):
        run = runs.fit(env, *SIXTEEN, *settings, *ONE_ITERATION)
    failed = runs.events(run).Scalars("rollout/failed")[0].value
    summary = runs.summary(run)
    assert 0 < failed < 1
    assert summary["failed_episodes"] == round(failed * 16)
    assert summary["iterations"] == 1
    assert why in caplog.text


def test_replies_without_an_end_are_counted(run_dir: Path):
    run = runs.fit("--data.sampling.max_tokens=1", *ONE_ITERATION)
    assert runs.events(run).Scalars("rollout/unfinished_replies")[0].value > 0.5
    assert runs.summary(run)["iterations"] == 1
