"""Which episodes are collected, and which of them are learned from."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import runs
from vagentrl.cli.trainer import VagentCLI
from vagentrl.errors import ConfigError
from vagentrl.types import RolloutBatch, Trajectory

LUCKY = "--data.env=tests.end_to_end.environments.Lucky"
QUICK = ("--trainer.limit_val_batches=0",)


def scalars(run: VagentCLI, name: str) -> list[float]:
    return [event.value for event in runs.events(run).Scalars(name)]


def played(run: VagentCLI) -> list[Trajectory]:
    return run.datamodule.trajectories


def test_a_fixed_number_of_turns_is_played_whatever_the_length_of_episodes(run_dir: Path):
    run = runs.fit(*QUICK, "--data.turns=3", "--data.env.init_args.turn_limit=2")
    # 4 slots of 3 turns; an episode of 2 turns is over, the next is cut after 1
    pieces = [(len(t.turns), t.earlier_turns, t.stop) for t in played(run)]
    # the second batch continues that episode with its second turn, then plays a whole one
    assert pieces == [(1, 1, "truncated"), (2, 0, "truncated")] * 4
    assert scalars(run, "rollout/turns") == [2.0, 2.0]
    assert all(t.end is not None for t in played(run))


@pytest.mark.parametrize(
    ("settings", "bootstrapped"),
    [
        (["--data.at_limit=end"], False),
        (["--data.at_limit=bootstrap"], True),
        (["--data.at_limit=end", "--data.turns=1"], True),  # cut before the limit
    ],
)
def test_what_follows_a_limit_is_a_setting_and_what_follows_a_cut_is_not(
    settings: list[str], bootstrapped: bool, run_dir: Path
):
    rollouts: list[RolloutBatch] = []
    run = runs.prepare(*QUICK, *settings, "--trainer.max_epochs=1")
    assess = run.model.assess
    run.model.assess = lambda rollout, earlier: rollouts.append(rollout) or assess(rollout, earlier)
    run.trainer.fit(run.model, run.datamodule)
    [rollout] = rollouts
    assert len(rollout.bootstrap_index) == 4
    assert (rollout.bootstrap_index >= 0).all() == bootstrapped
    assert (rollout.bootstrap_index >= 0).any() == bootstrapped
    stop = "cut" if "--data.turns=1" in settings else "truncated"
    assert {trajectory.stop for trajectory in played(run)} == {stop}


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (["--model.advantage.turn_gamma=1", "--data.at_limit=bootstrap"], True),
        (["--model.advantage.turn_gamma=1", "--data.at_limit=end"], False),
        (["--data.at_limit=bootstrap"], False),  # turn_gamma is 0.95
    ],
)
def test_an_undiscounted_task_without_end_is_warned_of(
    settings: list[str], warned: bool, run_dir: Path, caplog: pytest.LogCaptureFixture
):
    runs.fit(*QUICK, "--trainer.max_epochs=1", *settings)
    assert ("BiLevelGAE with turn_gamma 1" in caplog.text) == warned


def test_an_episode_in_progress_starts_a_row_with_its_whole_context(run_dir: Path):
    run = runs.fit(*QUICK, "--data.turns=1", "--data.env.init_args.turn_limit=9")
    for trajectory in played(run):
        [turn] = trajectory.turns
        assert (trajectory.stop, trajectory.earlier_turns) == ("cut", 1)
        assert turn.prompt.whole
        assert trajectory.end is not None
        assert not trajectory.end.whole
        shown = run.datamodule.renderer.tokenizer.decode(turn.prompt.ids)
        assert shown.count("left, luck") == 2  # the first observation and this one


def test_a_lane_whose_environment_fails_goes_on_with_its_next_episode(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    moody = "--data.env=tests.end_to_end.environments.Raising"
    run = runs.fit(*QUICK, moody, "--data.turns=4")
    failed = [t for t in played(run) if t.error is not None]
    assert failed
    assert "episodes failed; the first: EnvError" in caplog.text
    assert sum(len(t.turns) for t in played(run)) + len(failed) == 4 * 4


def test_groups_without_signal_are_dropped_before_they_are_scored(run_dir: Path):
    rows: list[int] = []
    run = runs.prepare(
        *QUICK, LUCKY, "--data.filter=TopFraction", "--data.filter.fraction=0.25",
        "--data.groups=8", "--trainer.max_epochs=1",
    )  # fmt: skip
    assess = run.model.assess
    run.model.assess = lambda rollout, earlier: (
        rows.append(len(rollout)) or assess(rollout, earlier)
    )
    run.trainer.fit(run.model, run.datamodule)
    assert rows == [4]  # 2 of 8 groups, with 2 members each
    assert run.trainer.callback_metrics["rollout/kept_groups"] == 0.25
    assert run.trainer.callback_metrics["rollout/group_std"] > 0


def test_when_no_group_has_signal_nothing_changes_and_the_run_goes_on(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    alike = "--data.env.init_args.turn_limit=1"  # no episode earns a reward in one turn
    settings = (*QUICK, alike, "--data.sampling.max_tokens=1", "--data.filter=DynamicSampling")
    decay = "--model.optimizer.weight_decay=0.5"
    before = runs.prepare(*settings)
    before.model.build(frozenset())
    with caplog.at_level(logging.WARNING):
        run = runs.fit(*settings, decay, "--data.filter.rounds=2")
    assert run.model.iteration == 2
    assert runs.fingerprint(run.model.actor) == runs.fingerprint(before.model.actor)
    assert "DynamicSampling kept none of the groups" in caplog.text
    assert scalars(run, "rollout/kept_groups") == [0.0, 0.0]
    assert scalars(run, "rollout/episodes") == [8, 8]  # two rounds of 2 x 2


def test_dynamic_sampling_plays_more_groups_until_the_batch_is_full(run_dir: Path):
    dynamic = ("--data.filter=DynamicSampling", "--data.filter.rounds=9", "--data.groups=4")
    run = runs.fit(*QUICK, LUCKY, *dynamic, "--trainer.max_epochs=1")
    spread: dict[int, set[float]] = {}
    for trajectory in played(run):
        spread.setdefault(trajectory.group_id, set()).add(trajectory.total_reward)
    with_signal = sum(len(returns) > 1 for returns in spread.values())
    rounds = len(spread) // 4
    assert 1 < rounds < 9
    assert with_signal >= 4 > sum(len(spread[group]) > 1 for group in range(4 * (rounds - 1)))
    assert scalars(run, "rollout/kept_groups") == [pytest.approx(4 / len(spread))]


def test_an_episode_of_400_turns_costs_no_more_than_a_short_one(run_dir: Path):
    run = runs.fit(
        *QUICK, "--data.context=Window", "--data.context.turns=2", "--data.turns=200",
        "--data.env.init_args.turn_limit=1000", "--data.sampling.max_tokens=1",
        "--data.groups=1", "--model.score_batch_size=64", "--data.micro_batch_size=32",
        "--data.minibatch_size=512",
    )  # fmt: skip
    first, second = played(run)
    longest = max(len(turn.prompt.ids) for turn in first.turns[:5])
    for trajectory in (first, second):
        assert (trajectory.stop, trajectory.earlier_turns, len(trajectory.turns)) == (
            "cut",
            200,
            200,
        )
        assert max(len(turn.prompt.ids) for turn in trajectory.turns) == longest
        assert trajectory.end is not None and trajectory.end.whole
    for slot in run.datamodule.source.slots:
        assert len(slot.state_dict()["replies"]) == 400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--data.filter=TopFraction", "--data.group_size=1"], "data.group_size is 1 and data.fil"),
        (["--data.filter=Nucleus", "--data.turns=2"], "data.turns is 2 and data.filter is Nucleus"),
        (["--data.micro_batch_tokens=64"], "a pass is limited by its tokens or by its rows"),
        (
            ["--data.micro_batch_size=null", "--data.micro_batch_tokens=0"],
            "data.micro_batch_tokens is 0; it must be at least 1",
        ),
    ],
)
def test_settings_that_cannot_work_together_are_refused_at_once(
    settings: list[str], message: str, run_dir: Path, capsys: Any
):
    with pytest.raises((ConfigError, SystemExit)) as refused:
        runs.prepare(*settings)
    assert message in f"{refused.value} {capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--data.group_size=1"], "data.group_size is 1 and model.advantage is GroupRelative"),
        (["--data.turns=2"], "data.turns is 2 and model.advantage is GroupRelative"),
        (["--data.at_limit=bootstrap"], "data.at_limit is 'bootstrap' and model.advantage is Gro"),
    ],
)
def test_an_estimator_that_cannot_work_with_the_batch_is_refused(
    settings: list[str], message: str, run_dir: Path
):
    with pytest.raises(ConfigError, match=message):
        runs.fit(*QUICK, "--model.advantage=GroupRelative", *settings)


def test_an_estimator_that_continues_episodes_refuses_an_environment_that_cannot_replay(
    run_dir: Path,
):
    unrepeatable = "--data.env=tests.end_to_end.environments.Unrepeatable"
    with pytest.raises(ConfigError, match="VineTurn, which continues episodes from their turns"):
        runs.fit(*QUICK, "--model.advantage=VineTurn", unrepeatable)


def test_continuations_are_played_for_what_the_filter_kept_and_reach_the_batch(run_dir: Path):
    rollouts: list[RolloutBatch] = []
    run = runs.prepare(
        *QUICK,
        LUCKY,
        "--data.env.init_args.turn_limit=4",
        "--trainer.max_epochs=1",
        "--model.advantage=VineTurn",
        "--model.advantage.every=1",
        "--model.advantage.continuations=3",
        "--data.filter=TopFraction",
        "--data.filter.fraction=0.5",
        "--data.groups=4",
    )
    assess = run.model.assess
    run.model.assess = lambda rollout, earlier: rollouts.append(rollout) or assess(rollout, earlier)
    run.trainer.fit(run.model, run.datamodule)
    [rollout], report = rollouts, run.datamodule.report
    assert 0 < len(rollout.group_ids) < len(played(run))
    assert rollout.continued_values is not None
    is_later = rollout.action_mask & (rollout.turn_ids > 0)
    assert torch.equal(~rollout.continued_values.isnan(), is_later)
    later_turns = (rollout.turn_ids.amax(-1)).sum()
    assert report["rollout/continuations"] == 3 * later_turns > 0
    of_episodes = sum(len(turn.reply_ids) for t in played(run) for turn in t.turns)
    of_continuations = report["rollout/continuation_tokens"]
    assert report["rollout/sampled_tokens"] == of_episodes + of_continuations
    assert report["time/continue"] > 0
