"""Environments of the user's classes, and what is left in their tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from vagentrl.datasets import ListTasks
from vagentrl.environment import Split, seed_of
from vagentrl.interactions import InteractionEnvironment
from vagentrl.types import Reply, StepResult

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
        "interaction_kwargs": {"name": "it", "ground_truth": str(2 * n), "numbers": [n]},
    }
    for n in range(40)
]


def environment(
    class_name: str, config: dict[str, Any] | None = None, rows: Any = ROWS, **settings: Any
) -> InteractionEnvironment:
    """An environment of one class, under the name that the rows give."""
    entry = {"name": "it", "class_name": class_name, "config": config or {}}
    return InteractionEnvironment(ListTasks(rows), {"interaction": [entry]}, **settings)


def interaction(environment: InteractionEnvironment) -> Any:
    """The shared object that answers."""
    return environment.interactions.of_row({"name": "it"}, 0)


def say(environment: InteractionEnvironment, text: str) -> StepResult:
    return environment.step(environment.format(text))


def calls(environment: InteractionEnvironment, method: str) -> list[tuple]:
    """The logged calls of a method of the shared object."""
    return [entry for entry in interaction(environment).log if entry[0] == method]


def truth(environment: InteractionEnvironment, seed: int) -> str:
    """The answer to a seed's question."""
    return environment._task(seed).interaction["ground_truth"]


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


SEED = seed_of("train", 0)
SPLITS: tuple[Split, ...] = get_args(Split)
CUT_OFF = Reply("no end", problem="no end of turn within 3 tokens")


class Sums(ListTasks):
    """Rows in verl's form, with a system message and an example.

    Args:
        rows: How many.
    """

    def __init__(self, rows: int = 40) -> None:
        super().__init__(
            [
                {
                    "prompt": [
                        {"role": "system", "content": f"Add. Row {n}."},
                        {"role": "user", "content": "1 + 1?"},
                        {"role": "assistant", "content": "2"},
                        {"role": "user", "content": f"{n} + {n}?"},
                    ],
                    "extra_info": {
                        "interaction_kwargs": {"name": "solver", "ground_truth": str(2 * n % 10)}
                    },
                }
                for n in range(rows)
            ]
        )
