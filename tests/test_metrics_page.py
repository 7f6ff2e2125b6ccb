"""The table of metrics in docs/metrics.md, against what runs log."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import claims_toy, runs
from tests.end_to_end import test_hints, test_worlds
from vagentrl.callbacks import AgentCallback, SelfPredictionReward, WorldModelReward
from vagentrl.callbacks.board_layout import BOARDS, boards_of
from vagentrl.claims import Audit, TemplatePenalty
from vagentrl.claims.claim_filters import Length
from vagentrl.cli.trainer import VagentCLI
from vagentrl.modules.agent import AgentModule
from vagentrl.types import TrainBatch

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
TABLE = PAGE.read_text().partition("## Every metric")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in row.split("|")]
    for row in re.findall(r"(?m)^\| (`.+?) \|$", TABLE)
    if row.count("|") == 4
]
"""Cells of each row: name, meaning, unit, when, board."""
SINGLE = runs.arguments

# What a word in capitals stands for in the runs below.
NAME = "(count|lucky|rows|hinted|longer)"
PLACEHOLDERS = {
    "EPISODES/": f"(rollout|val|test)/({NAME}/)?",
    "EVALUATION/": f"(val|test)/({NAME}/)?",
    "JUDGE/": f"((val|test)/({NAME}/)?)?judge/",
    "NAME": NAME,
    "CLAIM": "(observation|prediction)",
    "METRIC": "(luck|right_at_first|right_after_feedback)",
    "COUNT": "asked",
    "TERM": "laziness_loss",
    "ROWS": "(_images|_text)?",
}


def pattern(name: str) -> str:
    """The regular expression of a name in the table."""
    return re.sub("|".join(PLACEHOLDERS), lambda match: PLACEHOLDERS[match[0]], name.strip("`"))


def names_of(row: list[str]) -> list[str]:
    return re.findall("`([^`]+)`", row[0])


class Lazy(AgentCallback):
    """Adds a loss of its own."""

    loss_name = "laziness_loss"

    def policy_loss_term(self, agent: AgentModule, batch: TrainBatch, logprobs: Any) -> Any:
        return -0.001 * logprobs


def mixture(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Several worlds, of which one shows images; a critic, and the KL in the reward."""
    monkeypatch.setattr(runs, "arguments", without_images)
    worlds = {name: dict(world) for name, world in test_worlds.WORLDS.items()}
    worlds["count"]["init_args"] = {"turn_limit": 2, "images": True}
    return runs.fit(*test_worlds.SETTINGS, f"--data.env.init_args.worlds={worlds}", images=True)


def without_images(*overrides: str, images: bool = False) -> list[str]:
    """Leave out the setting of the toy environment, which only a single one has."""
    given = SINGLE(*overrides, images=images)
    at = given.index("--data.env.init_args.images")
    return [*given[:at], *given[at + 2 :]]


def ahead(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Stale episodes with weights, the KL in the loss, and the loss of a callback."""
    lazy = "--trainer.callbacks+=tests.test_metrics_page.Lazy"
    kl = ("--trainer.callbacks=KLControl", "--trainer.callbacks.place=loss")
    estimator = "--trainer.callbacks.estimator=k2"
    return runs.fit(*runs.AHEAD, *kl, estimator, lazy, "--trainer.limit_val_batches=0")


def continued(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Continuations, and initial states that are numbered."""
    numbered = ("--data.env=tests.end_to_end.environments.Numbered", "--data.env.turn_limit=4")
    vine = ("--model.advantage=VineTurn", "--model.advantage.every=1", "--trainer.max_epochs=1")
    return runs.fit(*numbered, *vine, "--trainer.limit_val_batches=0")


def claiming(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Claims with filters, penalties and an audit, also in evaluations."""
    reward = WorldModelReward(
        claims_toy.ExactJudge(),
        filters=[Length()],
        templates=TemplatePenalty(),
        audit=Audit(claims_toy.ExactJudge(), share=1.0),
        journal=None,
    )
    script = claims_toy.by_turn(lambda session, turn: claims_toy.HONEST[turn])
    run = claims_toy.prepare(script, reward, "--trainer.limit_val_batches=1.0")
    runs.callbacks(run).insert(0, SelfPredictionReward(claims_toy.ExactJudge()))
    run.trainer.fit(run.model, run.datamodule)
    return run


def hinted(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    return test_hints.fit("--trainer.max_epochs=1")


def game(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Actions by their names, with aliases, and a monitor that watches the replies."""
    monkeypatch.setattr(runs, "arguments", without_images)
    lake = ("--data.env=vagentrl_envs.frozen_lake.FrozenLake", "--data.env.aliases={north: Up}")
    lake += ("--data.env.observation=text",)
    watched = ("--trainer.callbacks+=EchoTrapMonitor", "--trainer.callbacks.cross_score_every=1")
    once = ("--trainer.max_epochs=1", "--trainer.limit_val_batches=0")
    return runs.fit(*lake, "--data.env.turn_limit=8", *watched, *once)


def conversation(monkeypatch: pytest.MonkeyPatch) -> VagentCLI:
    """Answers of an interaction to word problems."""
    few = ("--data.groups=2", "--data.group_size=2", "--data.val_episodes=2", "--data.passes=1")
    config = str(PAGE.parents[1] / "configs" / "arithmetic.yaml")
    policy = ("--model.policy", runs.checkpoint())
    return VagentCLI(["fit", "--config", config, *policy, *few, "--trainer.max_epochs=1"])


RUNS = (mixture, ahead, continued, claiming, hinted, game, conversation)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """The names of all scalars that the runs log."""
    names: set[str] = set()
    for run in RUNS:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp(run.__name__))
            folder = runs.folder(run(patch))
            lines = (folder / "log.jsonl").read_text().splitlines()
        names.update(name for line in lines for name in json.loads(line))
    yield names - {"iteration", "seconds"}


def test_every_name_that_is_logged_is_in_the_table(logged: set[str]):
    known = [pattern(name) for row in ROWS for name in names_of(row)]
    assert [name for name in sorted(logged) if not matches(known, name)] == []


def test_every_name_in_the_table_is_logged_by_a_run_or_marked(logged: set[str]):
    wanted = {name: pattern(name) for row in ROWS if "†" not in row[3] for name in names_of(row)}
    unseen = [
        name for name, regex in wanted.items() if not any(re.fullmatch(regex, n) for n in logged)
    ]
    assert unseen == []


def test_the_table_says_on_which_boards_a_metric_is(logged: set[str]):
    for name in sorted(logged):
        row = next(row for row in ROWS if matches(map(pattern, names_of(row)), name))
        told = {board for board, where in boards_in(row[4]) if is_at(where, name)}
        assert told == set(boards_of(name)), (name, row[4])


def test_every_chart_shows_a_metric(logged: set[str]):
    marked = {name for row in ROWS if "†" in row[3] for name in names_of(row)}
    for board, charts in BOARDS.items():
        for chart in charts:
            assert any(chart.shows(name) for name in logged | marked), (board, chart.title)


def matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(regex, name) for regex in patterns)


def boards_in(cell: str) -> list[tuple[str, str]]:
    """The boards that a cell names, each with the names to which it restricts them."""
    found = re.findall(r"(" + "|".join(BOARDS) + r")(?:: `([^`]+)`)?", cell)
    assert found or cell == "–", cell
    return found


def is_at(where: str, name: str) -> bool:
    """Whether a restriction, such as ``val/success_rate_low`` or ``…loss``, holds for a name."""
    return name.endswith(where.removeprefix("…")) if where.startswith("…") else where in ("", name)
