"""The page on extending: its files work as they stand, and its tables say what is in the code."""

import asyncio
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.claims.claims import claim
from tests.losses.batches import train_batch
from vagentrl.advantages import AdvantageEstimator, CriticEstimator, EpisodeEstimator
from vagentrl.callbacks import AgentCallback
from vagentrl.claims.judge import Judge
from vagentrl.cli.main import main
from vagentrl.contexts import Context
from vagentrl.engines.base import Engine
from vagentrl.environment import ActionEnvironment, Environment
from vagentrl.filters import GroupFilter
from vagentrl.formats import ReplyFormat
from vagentrl.losses import PolicyLoss
from vagentrl.types import Scores

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"(?ms)`(\w+\.\w+)`[^`\n]*:\n\n```\w+\n(.*?)^```", PAGE))
COMMANDS = re.findall(r"(?m)^vagentrl (.+)$", PAGE)
SMALL = {
    "warmstart": [
        "--stages=[{noise: 0.5, steps: 4, batch_size: 4, turns: 1}]", "--micro_batch_size=4",
        "--tokenizer_episodes=20", "--eval_episodes=2", "--env.init_args.turn_limit=2",
    ],
    "fit": [
        "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--data.groups=2",
        "--data.group_size=2", "--data.minibatch_size=4", "--data.val_episodes=2",
        "--data.env.init_args.turn_limit=2",
    ],
    "test": ["--data.val_episodes=2"],
}  # fmt: skip
"""What makes each command quick."""


@pytest.fixture
def folder(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's files, from which Python imports."""
    for name, text in FILES.items():
        (run_dir / name).write_text(text)
    monkeypatch.syspath_prepend(run_dir)
    yield run_dir
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_every_block_is_a_file_or_a_command():
    assert len(FILES) + PAGE.count("```bash\n") == PAGE.count("```") / 2
    assert len(FILES) == 10 and len(COMMANDS) == 10


def test_every_command_works_on_the_files(folder: Path):
    for command in COMMANDS:
        name, *arguments = command.split()
        main([name, *arguments, *SMALL[name]])
    assert "perception" in (folder / "tiny-fetch" / "README.md").read_text()
    assert (folder / "replies.jsonl").read_text().count("reply_tokens") > 4


def test_the_parts_compute_what_they_say(folder: Path):
    def part(file: str, name: str, **settings: Any) -> Any:
        return getattr(importlib.import_module(file), name)(**settings)

    # three episodes of one token in a group: the median of 1, 2 and 6 is 2
    rewards = torch.tensor([[1.0], [2.0], [6.0]])
    alone = train_batch(torch.zeros(3, 1), torch.zeros(3, 1)).rollout
    group = replace(alone, rewards=rewards, group_ids=torch.zeros(3, dtype=torch.long))
    advantages = part("estimators", "GroupMedian")(group, Scores(torch.zeros(3, 1))).advantages
    torch.testing.assert_close(advantages, torch.tensor([[-1.0], [0.0], [4.0]]))

    # 0 + 0.5 * 0.25 - 0.5 and, at the end of a terminated episode, 1 - 0.25
    one = train_batch(torch.zeros(1, 2), torch.zeros(1, 2)).rollout
    scores = Scores(torch.zeros(1, 2), values=torch.tensor([[0.5, 0.25]]))
    step = part("estimators", "OneStep", gamma=0.5, whiten=False)
    credit = step(replace(one, rewards=torch.tensor([[0.0, 1.0]])), scores)
    torch.testing.assert_close(credit.advantages, torch.tensor([[-0.375, 0.75]]))

    # exp(1 / 0.5) * 0.3
    loss = part("losses", "AdvantageWeighted", temperature=0.5)
    batch = train_batch(torch.zeros(1, 1), torch.ones(1, 1))
    torch.testing.assert_close(loss(torch.full((1, 1), -0.3), batch), torch.full((1, 1), 2.21672))

    judged = asyncio.run(part("judging", "Numbers")(claim("row 1, column 2", "row 1, column 3")))
    assert judged.score == 0.5 and judged.reason == "1 of 2 numbers"
    assert part("choices", "UpperHalf")([0.1, 0.5, 0.3]) == [False, True, False]
    assert part("choices", "Blocks", turns=2)(5) == 4


PARTS = (
    Environment, ActionEnvironment, CriticEstimator, EpisodeEstimator, AdvantageEstimator,
    PolicyLoss, Judge, AgentCallback, Engine, GroupFilter, Context, ReplyFormat,
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_tables_have_every_method_with_its_arguments(part: type):
    section = PAGE.partition(f"### Methods of `{part.__name__}`\n")[2]
    section = section.partition("\n#")[0]
    documented = set(re.findall(r"(?m)^\| `((?:async )?\w+\(.*?\)) -> ", section))
    assert documented == {written(name, method) for name, method in methods(part)}


def methods(part: type) -> Iterator[tuple[str, object]]:
    """The methods that a part is the first to have and that others write or call."""
    for name, method in vars(part).items():
        inherited = any(name in vars(base) for base in part.__mro__[1:])
        if not inspect.isfunction(method) or inherited:
            continue
        if not name.startswith("_") or "__isabstractmethod__" in vars(method):
            yield name, method


def written(name: str, method: object) -> str:
    """A method as the tables write it: without self and without types."""
    assert callable(method)
    signature = inspect.signature(method)
    _, *parameters = signature.parameters.values()
    bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    arguments = signature.replace(parameters=bare, return_annotation=signature.empty)
    return f"{'async ' * inspect.iscoroutinefunction(method)}{name}{arguments}"
