from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vagentrl.cli.main import main
from vagentrl.cli.warmstart import Demonstrator, Stage, cloning, command, demonstrate, perception
from vagentrl.cli.warmstart.cloning import Demonstrations
from vagentrl.cli.warmstart.demonstrator import to_trajectory
from vagentrl.contexts import Context, FullHistory, Window
from vagentrl.environment import Environment
from vagentrl.errors import ConfigError
from vagentrl.formats import Grounding, NoThink
from vagentrl.mixture import Mixture
from vagentrl.models.load import checkpoint_path, load_model
from vagentrl.models.packing import may_pack
from vagentrl.models.tiny import TinyModel
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import (
    Prompt,
    RolloutBatch,
    Trajectory,
    Turn,
)
from vagentrl_envs.frozen_lake import FrozenLake


def test_perception_is_judged_on_the_episode_that_was_played_where_moves_slip():
    env = FrozenLake(
        map="8x8", slip=0.9, observation="text", turn_limit=20, format=Grounding("structured")
    )
    observation, turns = env.reset(0, transition_seed=7), []
    for number in range(6):  # the truth, but in the last turn
        state = env.state()
        reply = env.format.parse(env.format.write(["Right"], observation=state))
        if number == 5:
            reply = env.format.parse(reply.text.replace('"player"', '"nobody"'))
        turns.append(Turn(observation, Prompt((1,)), (2,), (0.0,), reply, 0.0, "stop"))
        observation = env.step(reply).observation
    played = Trajectory("lake", 0, 0, tuple(turns), "truncated", transition_seed=7)
    assert perception(env, [played]) == 5 / 6
    slipped_otherwise = perception(env, [replace(played, transition_seed=8)])
    assert slipped_otherwise is not None and slipped_otherwise < 5 / 6


def test_a_context_decides_what_the_cloned_model_sees():
    demonstration = demonstrate(LAKE(), Demonstrator(0.0, ()), seed=0)
    renderer = Renderer.from_pretrained(checkpoint_path("tiny-frozen-lake-text"))
    turns = to_trajectory(demonstration, renderer, Window(0), 512).turns
    assert len(turns) == len(demonstration.replies) > 2
    for turn, observation in zip(turns, demonstration.observations, strict=True):
        expected = renderer.first(demonstration.system_prompt, observation)
        assert turn.prompt.whole and turn.prompt.ids == expected
    whole, *later = to_trajectory(demonstration, renderer, FullHistory(), 512).turns
    assert whole.prompt.whole and not any(turn.prompt.whole for turn in later)


def test_the_context_is_part_of_the_score_and_of_the_card(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Context] = []

    def evaluate(env: object, folder: Path, seeds: object, context: Context) -> dict[str, float]:
        seen.append(context)
        return {"success_rate": 0.3}

    monkeypatch.setattr(command, "evaluate", evaluate)
    command.warmstart(
        LAKE, (), [Stage(0.1, steps=4)], "model", SMALL, Window(1), tokenizer_episodes=5
    )
    assert [context.memory for context in seen] == [1]
    assert "vagentrl.contexts.Window" in Path("model/README.md").read_text()


LAKE = partial(FrozenLake, map="4x4", observation="text", turn_limit=8, format=NoThink())
SMALL = TinyModel(images=False, vocabulary=300, layers=1)


def make(stages: list[Stage], output: str = "model", overwrite: bool = False) -> None:
    command.warmstart(
        LAKE, (), stages, output, SMALL, tokenizer_episodes=5, overwrite=overwrite, eval_episodes=2
    )


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is played for the score."""
    monkeypatch.setattr(
        command, "evaluate", lambda env, folder, seeds, context: {"success_rate": 0.3}
    )


def test_a_mixture_is_cloned_and_scored_like_a_single_environment(run_dir: Path):
    worlds: dict[str, Any] = {"lake": LAKE, "other": partial(LAKE, turn_limit=9)}
    command.warmstart(
        partial(Mixture, worlds),
        (),
        [Stage(0.1, steps=4)],
        "model",
        SMALL,
        tokenizer_episodes=5,
        eval_episodes=3,
    )
    assert "success" in Path("model/README.md").read_text()


def test_a_score_that_fails_does_not_cost_the_cloned_model(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def evaluate(*arguments: object) -> dict[str, float]:
        raise RuntimeError("no score")

    monkeypatch.setattr(command, "evaluate", evaluate)
    with pytest.raises(RuntimeError, match="no score"):
        make([Stage(0.1, steps=4)])
    assert Path("model/config.json").is_file() and Path("model/model.safetensors").is_file()


@pytest.mark.usefixtures("scored")
def test_a_stage_is_repeated_until_the_model_errs_enough(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    success = iter([0.6, 0.5, 0.3])
    seeds: list[list[int]] = []

    def clone(policy: object, demonstrations: Iterable[RolloutBatch], *others: object) -> None:
        batch = next(iter(demonstrations))
        seeds.append(batch.input_ids.sum(-1).tolist())

    monkeypatch.setattr(command, "clone", clone)
    monkeypatch.setattr(command, "success_in_training", lambda env, folder, context: next(success))
    make([Stage(0.1, steps=4), Stage(0.9, steps=4, until=0.4)])
    assert len(seeds) == 4  # the first stage once, the second until 0.3
    assert len(set(map(tuple, seeds))) == 4  # each time on other demonstrations
    assert "until=0.4" in Path("model/README.md").read_text()


@pytest.mark.usefixtures("scored")
def test_a_clone_reads_shared_prompts_once_and_its_folder_is_that_of_any_model(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    packed: list[bool] = []

    def clone(policy: nn.Module, *arguments: object) -> None:
        packed.append(may_pack(policy))

    monkeypatch.setattr(command, "clone", clone)
    make([Stage(0.1, steps=4), Stage(0.9, steps=4)])
    assert packed == [True, True]
    assert not may_pack(load_model("model"))


@pytest.mark.usefixtures("scored")
def test_a_clone_may_go_on_from_a_model(run_dir: Path, monkeypatch: pytest.MonkeyPatch):
    make([Stage(0.1, steps=4)], "first")
    monkeypatch.setattr(command, "clone", lambda *arguments: None)  # so the weights stay
    stages = [Stage(0.1, steps=4)]
    command.warmstart(LAKE, (), stages, "second", start="first", eval_episodes=2)
    before, after = (load_model(name).state_dict() for name in ("first", "second"))
    assert before.keys() == after.keys()
    assert all(after[name].equal(weight) for name, weight in before.items())
    first, second = (Path(name, "tokenizer.json").read_text() for name in ("first", "second"))
    assert first == second
    assert "from `first`" in Path("second/README.md").read_text()
    with pytest.raises(ConfigError, match="leave one of them out"):
        command.warmstart(LAKE, (), stages, "third", SMALL, start="first")


@pytest.mark.usefixtures("scored")
def test_progress_counts_optimizer_steps(run_dir: Path, capfd: pytest.CaptureFixture[str]):
    make([Stage(0.1, steps=4, batch_size=8)])  # in 8 forward passes of 4 episodes
    printed = capfd.readouterr().err
    assert "stage 1/1: 100%" in printed and "4/4" in printed and "8/8" not in printed


def test_a_step_learns_from_as_many_episodes_as_its_stage_says(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    passes: list[int] = []

    class Counting(cloning.CloneModule):
        def training_step(self, batch: RolloutBatch, batch_idx: int) -> Tensor:
            passes.append(len(batch.group_ids))
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr(cloning, "CloneModule", Counting)
    make([Stage(0.1, steps=4, batch_size=2), Stage(0.1, steps=4, batch_size=8)])
    assert passes == [2] * 4 + [4] * 8  # micro_batch_size is 4


@pytest.mark.parametrize(
    ("stage", "micro", "said"),
    [
        (Stage(0.1, steps=4, batch_size=24), 16, "stage 1 has a batch_size of 24.*try 16 or 32"),
        (Stage(0.1, steps=4), 0, "micro_batch_size is 0"),
    ],
)
def test_batches_that_cannot_be_divided_are_refused(
    run_dir: Path, stage: Stage, micro: int, said: str
):
    with pytest.raises(ConfigError, match=said):
        command.warmstart(LAKE, (), [stage], "model", SMALL, micro_batch_size=micro)
    assert not Path("model").exists()


def test_a_stage_without_episodes_is_refused():
    with pytest.raises(ConfigError, match="batch_size is 0"):
        Stage(0.1, steps=4, batch_size=0)


def test_an_interrupted_run_leaves_nothing_and_a_killed_one_no_model(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    def clone(*arguments: object) -> None:
        (aside,) = Path().iterdir()  # what a run leaves that is killed now
        with pytest.raises(ConfigError, match=r"a folder without config\.json"):
            checkpoint_path(str(aside))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "clone", clone)
    with pytest.raises(KeyboardInterrupt):
        make([Stage(0.1, steps=4)])
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("scored")
def test_a_model_is_replaced_only_if_that_is_asked_for(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "clone", lambda *arguments: None)
    make([Stage(0.1, steps=4)])
    Path("model/of_the_first").touch()
    with pytest.raises(ConfigError, match=r"model holds a model already; .* --overwrite true"):
        make([Stage(0.1, steps=4)])
    make([Stage(0.1, steps=4)], overwrite=True)
    assert not Path("model/of_the_first").exists()
    assert checkpoint_path("model") == "model"
    assert [path.name for path in Path().iterdir()] == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_things_is_never_replaced(overwrite: bool, run_dir: Path):
    Path("home").mkdir()
    Path("home/thesis.txt").touch()
    with pytest.raises(ConfigError, match="home holds other things than a model"):
        make([Stage(0.1, steps=4)], "home", overwrite)
    assert Path("home/thesis.txt").exists()
    with pytest.raises(ConfigError, match=r"home/thesis\.txt is a file"):
        make([Stage(0.1, steps=4)], "home/thesis.txt", overwrite)


def test_the_help_is_the_commands_own(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["warmstart", "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: vagentrl warmstart [--KEY VALUE ...]\n")
    assert "Build a tiny model from nothing" in printed
    assert "Lightning" not in printed


def test_each_worker_plays_other_demonstrations_and_others_in_a_repeated_stage(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    make([Stage(0.1, steps=4)])
    renderer = Renderer.from_pretrained("model")
    demonstrations = Demonstrations(
        LAKE, Demonstrator(0.5, ()), renderer, 2, FullHistory(), 512, seed=1
    )

    def play(worker_seed: int) -> list[tuple[int, ...]]:
        """Two batches of a worker; its seed is torch's, drawn anew for each stage, plus its id."""
        worker = SimpleNamespace(seed=worker_seed)
        monkeypatch.setattr(cloning, "get_worker_info", lambda: worker)
        return [tuple(row) for b in islice(demonstrations, 2) for row in b.input_ids.tolist()]

    first = play(7)
    assert play(8) != first
    assert play(7) == first


@pytest.mark.usefixtures("scored")
def test_a_clone_with_workers_learns(run_dir: Path, capfd: pytest.CaptureFixture[str]):
    stages = [Stage(0.1, steps=4, batch_size=4)]
    command.warmstart(
        LAKE, (), stages, "model", SMALL, tokenizer_episodes=5, eval_episodes=2, workers=1
    )
    assert Path("model/model.safetensors").is_file()
    assert "| workers | `1` |" in Path("model/README.md").read_text()
    assert "4/4" in capfd.readouterr().err


def test_all_environments_are_closed(run_dir: Path):
    opened: list[Environment] = []
    closed: list[Environment] = []

    class Door(FrozenLake):
        def close(self) -> None:
            closed.append(self)

    def lake() -> Environment:
        opened.append(Door(map="4x4", observation="text", turn_limit=8, format=NoThink()))
        return opened[-1]

    stages = [Stage(0.1, steps=4, batch_size=4), Stage(0.5, steps=4, batch_size=4)]
    command.warmstart(lake, (), stages, "model", SMALL, tokenizer_episodes=5, eval_episodes=2)
    assert len(opened) >= 4  # the tokenizer's, each stage's, and those of the score
    assert sorted(map(id, closed)) == sorted(map(id, opened))


def test_bad_machines_are_refused_before_work_begins(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no CUDA device here; use auto"):
        command.warmstart(LAKE, (), [Stage(0.1, steps=4)], "model", SMALL, accelerator="gpu")
    with pytest.raises(ConfigError, match="workers is -1"):
        command.warmstart(LAKE, (), [Stage(0.1, steps=4)], "model", SMALL, workers=-1)
    assert not list(Path().iterdir())


def test_a_stage_too_short_for_its_cycle_is_refused():
    with pytest.raises(ConfigError, match="steps is 3; a cycle of learning rates takes at least 4"):
        Stage(0.5, steps=3)
