"""Training on several environments at once, and on environments whose starts are numbered."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import runs
from tests.end_to_end.environments import Lucky
from tests.toy import TASK, Countdown
from vagentrl.cli.trainer import VagentCLI
from vagentrl.datamodule import RolloutDataModule
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError
from vagentrl.mixture import Mixture
from vagentrl.types import Reply, Trajectory

TOY = "tests.end_to_end.environments"
WORLDS = {
    "count": {"class_path": "tests.toy.Countdown", "init_args": {"turn_limit": 2}},
    "lucky": {"class_path": f"{TOY}.Lucky", "init_args": {"turn_limit": 2}},
    "rows": {"class_path": f"{TOY}.Numbered", "init_args": {"turn_limit": 2}},
}
SETTINGS = (
    "--data.env=vagentrl.Mixture",
    f"--data.env.init_args.worlds={json.dumps(WORLDS)}",
    "--data.env.init_args.weights={count: 2}",
    "--data.groups=4",
    "--data.minibatch_size=4",
)
CURRICULUM = (
    "--data.env.init_args.curriculum=vagentrl.curricula.BySuccess",
    "--data.env.init_args.curriculum.memory=0.5",
    "--data.env.init_args.weights={count: {start: 1.0, end: 0.0, iterations: 3}}",
)


@pytest.fixture(autouse=True)
def without_the_toy_environment(monkeypatch: pytest.MonkeyPatch):
    """Leaves out the setting of the single environment that all toy runs have."""
    arguments = runs.arguments

    def of_several(*overrides: str, images: bool = False) -> list[str]:
        given = arguments(*overrides, images=images)
        at = given.index("--data.env.init_args.images")
        return [*given[:at], *given[at + 2 :]]

    monkeypatch.setattr(runs, "arguments", of_several)


def test_groups_of_several_worlds_share_a_batch_and_are_never_mixed(run_dir: Path):
    batches: list[list[Trajectory]] = []
    run = runs.prepare(*SETTINGS, "--trainer.max_epochs=3")
    iterate = run.datamodule._iterate
    run.datamodule._iterate = lambda agent: [
        iterate(agent),
        batches.append(run.datamodule.trajectories),
    ][0]
    run.trainer.fit(run.model, run.datamodule)
    for batch in batches:
        groups: dict[int, set[tuple[str, int]]] = {}
        for trajectory in batch:
            groups.setdefault(trajectory.group_id, set()).add(
                (trajectory.environment, trajectory.seed)
            )
        assert [len(members) for members in groups.values()] == [1, 1, 1, 1]
        worlds = Counter(world for members in groups.values() for world, _ in members)
        assert worlds == {"count": 2, "lucky": 1, "rows": 1}
    numbered = [t.seed // 2 for batch in batches for t in batch if t.environment == "rows"]
    assert len(set(numbered)) == 3 and max(numbered) < 5


def test_each_world_has_metrics_and_so_have_all_together(run_dir: Path):
    run = runs.fit(*SETTINGS)
    events = runs.events(run)
    logged = {
        tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    for world, episodes in {"count": 4, "lucky": 2, "rows": 2}.items():
        assert logged[f"rollout/{world}/episodes"] == [episodes] * 2
        assert f"val/{world}/success_rate" in logged
    assert logged["rollout/episodes"] == [8, 8]
    assert logged["rollout/rows/epochs"] == pytest.approx([0.2, 0.4])
    assert logged["rollout/count/weight"] == [0.5, 0.5]
    assert logged["val/episodes"] == [12, 12]  # 4 of each
    rates = [logged[f"val/{world}/success_rate"] for world in WORLDS]
    means = [sum(each) / 3 for each in zip(*rates, strict=True)]
    assert logged["val/success_rate"] == pytest.approx(means)
    assert runs.summary(run)["val_success_after"] == pytest.approx(means[-1])


@pytest.mark.parametrize("settings", [CURRICULUM, (*CURRICULUM, *runs.AHEAD)], ids=["now", "ahead"])
def test_a_resumed_mixture_goes_on_exactly(settings: tuple[str, ...], run_dir: Path):
    def last(run: VagentCLI) -> list[tuple[str, int]]:
        return [(t.environment, t.seed) for t in run.datamodule.trajectories]

    every = ("--trainer.limit_val_batches=0", *SETTINGS, *settings)
    whole = runs.fit(*every, "--trainer.max_epochs=4")
    half = runs.fit(*every, "--trainer.max_epochs=2")
    checkpoint = str(runs.folder(half) / "checkpoints" / "last.ckpt")
    resumed = runs.fit(*every, "--trainer.max_epochs=4", "--ckpt_path", checkpoint)
    assert last(resumed) == last(whole) != last(half)
    assert (
        resumed.datamodule.source.draws.state_dict() == whole.datamodule.source.draws.state_dict()
    )
    if settings == CURRICULUM:  # weights that were sampled ahead are not part of a checkpoint
        assert runs.fingerprint(resumed.model) == runs.fingerprint(whole.model)


def test_a_setting_of_one_world_can_be_given_on_the_command_line(run_dir: Path):
    run = runs.prepare(*SETTINGS, "--data.env.init_args.worlds.rows.init_args.turn_limit=3")
    limits = {name: make().turn_limit for name, make in run.datamodule.environments.items()}
    assert limits == {"count": 2, "lucky": 2, "rows": 3}


def test_persistent_environments_are_divided_among_the_worlds(run_dir: Path):
    run = runs.fit(*SETTINGS, "--data.turns=2", "--trainer.limit_val_batches=0")
    worlds = Counter(slot._episodes(0).environment for slot in run.datamodule.source.slots)
    assert worlds == {"count": 4, "lucky": 2, "rows": 2}


def test_a_single_environment_with_numbered_starts_goes_through_epochs(run_dir: Path):
    env = json.dumps(WORLDS["rows"])
    run = runs.fit(f"--data.env={env}", "--trainer.limit_val_batches=0", "--trainer.max_epochs=5")
    events = [event.value for event in runs.events(run).Scalars("rollout/epochs")]
    assert events == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"weights": {"other": 1.0}}, r"Mixture\.weights names other, but the worlds are a, b"),
        ({"weights": {"a": -1.0}}, r"Mixture\.weights\['a'\] is -1\.0; give 0 or more"),
        ({"weights": {"a": float("nan")}}, r"is nan; give 0 or more"),
        ({"weights": {"a": 0.0, "b": 0.0}}, r"all weights of the Mixture are 0"),
        ({"worlds": {}}, r"Mixture\.worlds names no environment"),
        ({"worlds": {"train": Countdown, "b": Lucky}}, r"not 'train', which stands for a single"),
        ({"worlds": {"a/b": Countdown}}, r"named 'a/b'.* without a slash"),
    ],
)
def test_a_mixture_that_cannot_work_is_refused(settings: dict, match: str):
    with pytest.raises(ConfigError, match=match):
        Mixture(**{"worlds": {"a": Countdown, "b": Lucky}, **settings})


def test_a_name_is_given_to_one_environment_only():
    mixture = partial(Mixture, {"a": Countdown, "b": Lucky})
    with pytest.raises(ConfigError, match=r"data\.val_envs names an environment 'a', which is"):
        RolloutDataModule(mixture, val_envs={"a": Lucky})


def test_what_is_no_environment_is_named_with_its_world():
    anything: Any = 3
    with pytest.raises(ConfigError, match=r"data\.env\.worlds\['b'\] is 3"):
        RolloutDataModule(partial(Mixture, {"a": Countdown, "b": anything}))


def test_elsewhere_a_mixture_is_one_environment_whose_seed_decides_what_is_played():
    mixture = Mixture({"a": Countdown, "b": partial(Countdown, turn_limit=1)}, {"a": 3.0})
    limits = []
    for index in range(100):
        seed = seed_of("train", index)
        assert mixture.reset(seed).text.startswith(f"{seed % 4 + 1} left")
        limits.append(mixture.step(Reply("", actions=("wait",))).truncated)
        assert mixture.initial_state(seed) is None  # Countdown reports none
    assert 12 < sum(limits) < 40  # a quarter of them
    assert mixture.system_prompt() == TASK and mixture.replays


def test_a_curriculum_does_not_go_with_persistent_environments(run_dir: Path):
    with pytest.raises(ConfigError, match="turns is 2 and the mixture's curriculum BySuccess"):
        runs.prepare(*SETTINGS, *CURRICULUM, "--data.turns=2")
