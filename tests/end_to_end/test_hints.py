"""Runs in which the agent is given hints."""

import time
from pathlib import Path

import pytest
import yaml

from tests import runs
from vagentrl.cli.main import main
from vagentrl.cli.trainer import VagentCLI
from vagentrl.environment import split_of
from vagentrl.errors import ChatError, ConfigError
from vagentrl.hints import Hint, HintedEnvironment, HintModel, Situation
from vagentrl.rollout.collate import collate
from vagentrl.schedules import Schedule
from vagentrl.types import Trajectory

HINTS = Path(__file__).parents[1] / "data" / "toy_hints.yaml"
BRIEF = "--trainer.limit_val_batches=0"


class Moody(HintModel):
    """Fails for some episodes, and never gives the same hint twice."""

    @property
    def replays(self) -> bool:
        return False

    def hint(self, situation: Situation) -> Hint:
        if situation.seeds[1] % 2:
            raise ChatError("no answer after 3 attempts")
        return Hint("go")


class Slow(HintModel):
    """Takes longer than the environment's timeout."""

    @property
    def waits_s(self) -> float:
        return 30.0

    def hint(self, situation: Situation) -> Hint:
        time.sleep(0.3)
        return Hint("go")


def arguments(*overrides: str) -> list[str]:
    return ["--config", str(HINTS), "--model.policy", runs.checkpoint(), *overrides]


def fit(*overrides: str) -> VagentCLI:
    return VagentCLI(["fit", *arguments(*overrides)])


def last_checkpoint(cli: VagentCLI) -> str:
    return str(runs.folder(cli) / "checkpoints" / "last.ckpt")


def played(cli: VagentCLI) -> list[Trajectory]:
    return cli.datamodule.trajectories


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> VagentCLI:
    """Two iterations, with an evaluation before and after."""
    return fit(f"--trainer.logger.init_args.save_dir={tmp_path_factory.mktemp('hints')}")


def test_settings_nest_and_can_be_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["fit", *arguments("--print_config")])
    printed = capsys.readouterr().out
    config = yaml.safe_load(
        printed[printed.index("seed_everything:") :]
    )  # libraries print before the configuration
    env = config["data"]["env"]["init_args"]
    assert env["env"]["class_path"] == "tests.toy.Countdown"
    assert env["env"]["init_args"]["turn_limit"] == 7
    assert env["hint_model"]["init_args"]["right"] == 0.7
    assert env["epsilon"] == {"start": 1.0, "end": 0.5, "iterations": 2, "shape": "linear"}
    environment = VagentCLI(arguments(), run=False).datamodule.environments["train"]()
    assert isinstance(environment, HintedEnvironment)
    assert environment.epsilon == Schedule(1.0, 0.5, 2)
    number = "--data.env.init_args.epsilon=0.25"
    environment = VagentCLI(arguments(number), run=False).datamodule.environments["train"]()
    assert isinstance(environment, HintedEnvironment)
    assert environment.epsilon == 0.25


def test_hints_are_seen_but_never_learned_nor_paid(run: VagentCLI):
    renderer = run.datamodule.renderer
    hinted = [t for t in played(run) if any(turn.observation.hint for turn in t.turns)]
    assert hinted
    for trajectory in hinted:
        for number, turn in enumerate(trajectory.turns):
            hint, written = turn.observation.hint, renderer.decode(turn.prompt.ids)
            assert hint in ("Hint: Try go.", "Hint: Try wait.", "")
            assert f"{turn.observation.text}\n{hint}" in written if hint else "Hint" not in written
            assert number == 0 or "Hints" not in written  # the note is part of the system prompt
    rows = collate(hinted, renderer, temperature=1.0)
    replies = [id for t in hinted for turn in t.turns for id in turn.reply_ids]
    assert (
        rows.input_ids[rows.action_mask].tolist() == replies
    )  # only reply tokens are learned from
    assert not rows.rewards[~rows.action_mask].any()
    paid = sum(turn.reward for t in hinted for turn in t.turns)
    assert float(rows.rewards.sum()) == pytest.approx(paid)
    # reward 1 for reaching 0, -0.25 for every other turn, and none for following a hint
    assert {turn.reward for t in hinted for turn in t.turns} <= {1.0, -0.25}


def test_the_same_state_with_another_hint_is_the_same_state(run: VagentCLI):
    trajectories = played(run)
    rows = collate(trajectories, run.datamodule.renderer, temperature=1.0)
    states: dict[tuple[int, str], set[int]] = {}
    hints: dict[tuple[int, str], set[str]] = {}
    for row, trajectory in enumerate(trajectories):
        for number, turn in enumerate(trajectory.turns):
            saw = (trajectory.group_id, turn.observation.text)
            ids = rows.state_ids[row, rows.turn_ids[row] == number].tolist()
            states.setdefault(saw, set()).update(ids)
            hints.setdefault(saw, set()).add(turn.observation.hint)
    assert all(len(ids) == 1 for ids in states.values())
    assert len(set.union(*states.values())) == len(states)
    assert max(map(len, hints.values())) > 1  # otherwise equal hints would prove nothing


def test_evaluations_are_without_hints_and_where_wanted_with(run: VagentCLI):
    plain, hinted = (run.datamodule.evaluated[name] for name in ("train", "hinted"))
    assert all(split_of(t.seed) == "validation" for t in (*plain, *hinted))
    assert {turn.observation.hint for t in plain for turn in t.turns} == {""}
    assert any(turn.observation.hint for t in hinted for turn in t.turns)
    board = runs.events(run)
    assert [e.value for e in board.Scalars("val/hints")] == [0.0, 0.0]
    told = [turn.metrics["hints"] for t in played(run) for turn in t.turns]
    assert board.Scalars("rollout/hints")[-1].value == pytest.approx(sum(told) / len(told))
    for name in (
        "hints_asked",
        "hint_failures",
        "hint_prompt_tokens",
        "hint_reply_tokens",
        "hint_cost",
        "hint_seconds",
        "explore_hints",
        "hints_followed",
    ):
        assert len(board.Scalars(f"rollout/{name}")) == 2


def test_a_model_without_an_answer_is_counted(run_dir: Path):
    run = fit("--data.env.init_args.hint_model=tests.end_to_end.test_hints.Moody", BRIEF)
    turns = [turn for t in played(run) for turn in t.turns]
    failed = [turn.metrics["hint_failures"] for turn in turns]
    assert 0 < sum(failed) < len(failed)
    value = runs.events(run).Scalars("rollout/hint_failures")[-1].value
    assert value == pytest.approx(sum(failed) / len(failed))


def test_a_model_without_an_answer_can_fail_the_episode(run_dir: Path):
    run = fit(
        "--data.env.init_args.hint_model=tests.end_to_end.test_hints.Moody",
        "--data.env.init_args.on_failure=fail_episode",
        "--data.groups=4",
        "--trainer.max_epochs=1",
        BRIEF,
    )
    errors = [t.error for t in played(run)]
    assert None in errors
    assert any(error and "ChatError: no answer after 3 attempts" in error for error in errors)


@pytest.mark.parametrize("settings", [(), ("--data.turns=3",)], ids=["episodes", "turns"])
def test_one_and_one_iteration_are_two_bit_by_bit(settings: tuple[str, ...], run_dir: Path):
    whole = fit(*settings, BRIEF, "--trainer.max_epochs=2")
    half = fit(*settings, BRIEF, "--trainer.max_epochs=1")
    path = ("--ckpt_path", last_checkpoint(half))
    resumed = fit(*settings, BRIEF, "--trainer.max_epochs=2", *path)
    told = [
        [(turn.observation, turn.reply_ids) for t in played(run) for turn in t.turns]
        for run in (whole, resumed)
    ]
    assert told[0] == told[1]
    assert any(observation.hint for observation, _ in told[0])
    assert runs.fingerprint(half.model) != runs.fingerprint(whole.model)
    assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_what_cannot_be_played_again_cannot_go_on_from_batch_to_batch(workers: str, run_dir: Path):
    moody = "--data.env.init_args.hint_model=tests.end_to_end.test_hints.Moody"
    with pytest.raises(ConfigError, match=r"set ChatHintModel\.record, or leave data\.turns"):
        fit(moody, "--data.turns=3", f"--data.workers={workers}")


def test_waiting_for_a_hint_is_not_the_environments_fault(run_dir: Path):
    run = fit(
        "--data.env.init_args.hint_model=tests.end_to_end.test_hints.Slow",
        "--data.env.init_args.hint_share=1.0",
        "--data.timeout_s=0.2",
        "--trainer.max_epochs=1",
        BRIEF,
    )
    assert [t.error for t in played(run)] == [None] * len(played(run))
    assert all(turn.observation.hint for t in played(run) for turn in t.turns)


def test_processes_give_the_same_hints_as_threads(run_dir: Path):
    once = ("--trainer.max_epochs=1", BRIEF)
    threads = fit(*once, "--data.workers=thread")
    processes = fit(*once, "--data.workers=process", "--data.max_workers=2")
    told = [[turn.observation.hint for t in played(run) for turn in t.turns] for run in
            (threads, processes)]  # fmt: skip
    assert told[0] == told[1]
    assert len(set(told[0])) > 1
    assert runs.fingerprint(threads.model) == runs.fingerprint(processes.model)
