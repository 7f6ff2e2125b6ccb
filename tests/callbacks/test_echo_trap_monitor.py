"""The monitor in tiny runs."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from tests import runs
from vagentrl.callbacks import EchoTrapMonitor
from vagentrl.callbacks.echo_trap.detector import Detector, Trouble, Verdict
from vagentrl.callbacks.echo_trap.vitals import Vitals
from vagentrl.cli.trainer import VagentCLI
from vagentrl.errors import ConfigError

MONITOR = "--trainer.callbacks+=EchoTrapMonitor"
UNEVALUATED = "--trainer.limit_val_batches=0"


class AlarmAt(Detector):
    """Raises an alarm in one iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def observe(self, vitals: Vitals) -> Verdict:
        super().observe(vitals)
        trouble = Trouble("variety", ("token entropy 1 → 0.5",), 1, vitals.iteration)
        now = vitals.iteration == self.iteration
        return Verdict((trouble,) * now, now, now, (trouble,) * now)


def prepare(monitor: EchoTrapMonitor, *settings: str, iterations: int = 4) -> VagentCLI:
    run = runs.prepare(f"--trainer.max_epochs={iterations}", UNEVALUATED, *settings)
    runs.callbacks(run).insert(0, monitor)
    return run


def fit(run: VagentCLI, **settings: Any) -> VagentCLI:
    run.trainer.fit(run.model, run.datamodule, **settings)
    return run


def scalars(run: VagentCLI, name: str) -> list[float]:
    return [event.value for event in runs.events(run).Scalars(name)]


def logged(run: VagentCLI) -> set[str]:
    return set(runs.events(run).Tags()["scalars"])


def test_a_run_with_the_monitor_logs_what_it_saw(run_dir: Path):
    run = runs.fit(MONITOR, "--trainer.callbacks.cross_score_every=2", "--trainer.max_epochs=3")
    every = {"no_signal", "failed_alike", "distinct_1", "similarity", "template_share", "alarm"}
    for name in every:
        assert len(scalars(run, f"echo_trap/{name}")) == 3
    # scored in the first iteration and in the third
    assert len(scalars(run, "echo_trap/mutual_information")) == 2
    assert not any(
        "entropy" in name or "group_std" in name for name in logged(run) if "echo" in name
    )


def test_without_cross_scoring_nothing_is_scored(run_dir: Path):
    run = runs.fit(MONITOR, UNEVALUATED, "--trainer.max_epochs=1")
    assert not {"echo_trap/mutual_information", "time/cross_score"} & logged(run)


def test_watching_changes_nothing(run_dir: Path):
    alone = runs.fit("--trainer.max_epochs=2", UNEVALUATED)
    watched = fit(prepare(EchoTrapMonitor(cross_score_every=1), iterations=2))
    assert runs.fingerprint(watched.model) == runs.fingerprint(alone.model)


def test_an_alarm_is_told_in_words_with_numbers(run_dir: Path, caplog: pytest.LogCaptureFixture):
    monitor = EchoTrapMonitor()
    monitor.detector = AlarmAt(2)
    with caplog.at_level(logging.WARNING, "vagentrl.callbacks.echo_trap.monitor"):
        run = fit(prepare(monitor))
    (text,) = [r.getMessage() for r in caplog.records if "echo trap" in r.getMessage()]
    assert text.startswith("iteration 2: the run may be collapsing into the echo trap: replies ")
    assert "token entropy 1 → 0.5; since iteration 2" in text
    assert scalars(run, "echo_trap/alarm") == [0, 1, 0, 0]
    assert scalars(run, "echo_trap/variety") == [0, 1, 0, 0]
    assert run.model.iteration == 4


def test_an_alarm_stops_the_run_if_asked(run_dir: Path):
    monitor = EchoTrapMonitor("stop")
    monitor.detector = AlarmAt(2)
    assert fit(prepare(monitor)).model.iteration == 2


SCHEDULE = ("--model.optimizer.final_lr_scale=0.4",)
# 1e-3 falls linearly to 0.4e-3
RATES = [1e-3, 0.8e-3, 0.6e-3, 0.4e-3]


def test_an_alarm_lowers_the_rate_of_the_actor_for_the_rest_of_the_run(run_dir: Path):
    monitor = EchoTrapMonitor("lower_lr", lr_factor=0.1)
    monitor.detector = AlarmAt(2)
    run = fit(prepare(monitor, *SCHEDULE))
    lowered = [*RATES[:2], 0.1 * RATES[2], 0.1 * RATES[3]]
    assert scalars(run, "optim/actor_lr") == pytest.approx(lowered)
    assert scalars(run, "optim/critic_lr") == pytest.approx(RATES)
    groups = {group["name"]: group["lr"] for group in run.trainer.optimizers[0].param_groups}
    assert groups["actor"] == pytest.approx(lowered[-1])


class Watched(EchoTrapMonitor):
    """Keeps the trained weights and the optimizer's moments after every iteration."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        moments = [
            tensor.clone()
            for state in trainer.optimizers[0].state.values()
            for tensor in state.values()
        ]
        weights = [weight.detach().clone() for weight in pl_module.parameters()]
        self.after = [*getattr(self, "after", []), weights + moments]


class TroubleFrom(Detector):
    """Shows trouble from an iteration on, and raises alarms in some."""

    def __init__(self, first: int, *alarms: int) -> None:
        super().__init__()
        self.first, self.alarms = first, alarms

    def observe(self, vitals: Vitals) -> Verdict:
        super().observe(vitals)
        now = vitals.iteration in self.alarms
        troubles = (Trouble("signal", ("spread",), 1, self.first),)
        return Verdict(troubles * (vitals.iteration >= self.first), now, now, troubles * now)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_alarm_goes_back_to_the_weights_before_any_trouble(run_dir: Path):
    monitor = Watched("roll_back", lr_factor=0.5)
    monitor.detector = TroubleFrom(3, 4)
    run = fit(prepare(monitor, iterations=5))
    assert same(monitor.after[3], monitor.after[1])  # trouble began in iteration 3
    assert not same(monitor.after[2], monitor.after[1])
    assert not same(monitor.after[4], monitor.after[3])  # it goes on from there
    assert run.model.iteration == 5
    assert run.model.actor_lr_scale == 0.5
    assert [v["iteration"] for v in monitor.detector.state_dict()["recent"]] == [5]


def test_a_run_can_go_back_to_the_same_weights_again(run_dir: Path):
    monitor = Watched("roll_back", lr_factor=0.5)
    monitor.detector = TroubleFrom(1, 2, 4)
    run = fit(prepare(monitor))
    assert same(monitor.after[3], monitor.after[1])
    assert not same(monitor.after[2], monitor.after[1])
    assert run.model.actor_lr_scale == 0.25


def test_another_run_with_the_same_callback_starts_afresh(run_dir: Path):
    monitor = EchoTrapMonitor("lower_lr", lr_factor=0.5)
    monitor.detector = AlarmAt(1)
    first = fit(prepare(monitor, iterations=2))
    assert first.model.actor_lr_scale == 0.5
    second = fit(prepare(monitor, iterations=2))
    assert second.model.actor_lr_scale == 1
    assert [v["iteration"] for v in monitor.detector.state_dict()["recent"]] == [1, 2]


def as_text(monitor: EchoTrapMonitor) -> str:
    return repr(monitor.state_dict())  # NaN would not equal itself


@pytest.mark.parametrize("half", [1, 2, 3])
def test_a_resumed_run_goes_on_with_baselines_warnings_and_rate(half: int, run_dir: Path):
    def monitored() -> EchoTrapMonitor:
        monitor = EchoTrapMonitor("lower_lr", lr_factor=0.1)
        monitor.detector = AlarmAt(2)
        return monitor

    whole = monitored()
    expected = fit(prepare(whole, *SCHEDULE))
    # the schedule needs the number of iterations of the whole run, so the half one is cut off
    first = prepare(monitored(), *SCHEDULE)
    runs.callbacks(first).insert(0, StopAfter(half))
    fit(first)
    path = str(runs.folder(first) / "checkpoints" / "last.ckpt")
    again = monitored()
    second = fit(prepare(again, *SCHEDULE), ckpt_path=path)
    assert runs.fingerprint(second.model) == runs.fingerprint(expected.model)
    assert as_text(again) == as_text(whole)


class StopAfter(EchoTrapMonitor):
    """Ends a run early."""

    def __init__(self, iteration: int) -> None:
        super().__init__("stop")
        self.detector = AlarmAt(iteration)

    @property
    def state_key(self) -> str:
        return "StopAfter"


def test_a_checkpoint_from_within_an_iteration_can_be_resumed(run_dir: Path):
    settings = (
        "--trainer.check_val_every_n_epoch=1",
        "--trainer.callbacks=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.save_last=true",
        "--trainer.callbacks.save_on_train_epoch_end=false",
        MONITOR,
    )
    first = runs.fit(*settings, "--trainer.max_epochs=2")
    path = str(runs.folder(first) / "checkpoints" / "last.ckpt")
    second = runs.fit(*settings, "--trainer.max_epochs=4", "--ckpt_path", path)
    (monitor,) = (c for c in runs.callbacks(second) if isinstance(c, EchoTrapMonitor))
    assert monitor.state_dict()["seen"] == 4


def test_an_iteration_in_which_nothing_was_kept_has_no_entropy(run_dir: Path):
    monitor = EchoTrapMonitor()
    none = ("--data.filter=DynamicSampling", "--data.filter.min_std=1000", "--data.filter.rounds=1")
    run = fit(prepare(monitor, *none, iterations=2))
    (first, second) = monitor.detector.state_dict()["recent"]
    assert (first["iteration"], second["iteration"]) == (1, 2)
    assert math.isnan(second["numbers"]["entropy"])
    assert second["numbers"]["distinct_1"] > 0
    assert scalars(run, "echo_trap/alarm") == [0, 0]


def test_iterations_of_a_critic_warm_up_are_not_judged(run_dir: Path):
    monitor = EchoTrapMonitor()
    warm_up = ("--trainer.callbacks+=CriticWarmup", "--trainer.callbacks.rounds=2")
    fit(prepare(monitor, *warm_up))
    recent = monitor.detector.state_dict()["recent"]
    assert [vitals["iteration"] for vitals in recent] == [3, 4]


@pytest.mark.parametrize(
    "settings",
    [
        ("--data.env=tests.end_to_end.environments.Raising",),
        ("--data.turns=3", "--data.env.init_args.turn_limit=7"),
        ("--data.group_size=1", "--model.advantage=MaskedGAE"),
    ],
    ids=["failed episodes", "persistent environments", "groups of one"],
)
def test_every_way_to_collect_episodes_can_be_watched(settings: tuple[str, ...], run_dir: Path):
    monitor = EchoTrapMonitor(cross_score_every=1)
    run = fit(prepare(monitor, *settings, iterations=2))
    assert scalars(run, "echo_trap/alarm") == [0, 0]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"action": "pray"}, "action"),
        ({"lr_factor": 1.0}, "lr_factor is 1.0; give a share above 0 and below 1"),
        ({"lr_factor": math.nan}, "lr_factor is nan"),
        ({"patience": 0}, "patience is 0; give 1 or more"),
        ({"evidence": 1}, "evidence is 1; give 2 or more"),
        ({"replies": 1}, "replies is 1; give 2 or more"),
        ({"pairs": 0}, "pairs is 0; give 1 or more"),
        ({"cross_score_every": -1}, "cross_score_every is -1; give 0 or more"),
        ({"cross_score_prompts": 1}, "cross_score_prompts is 1; give 2 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], text: str):
    with pytest.raises(ConfigError, match=text):
        EchoTrapMonitor(**settings)
