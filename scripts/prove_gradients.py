"""How the expected gradient of every estimator, loss and aggregation compares with the true one.

    OMP_NUM_THREADS=1 python -m scripts.prove_gradients [--write]

All groups of episodes that can be played in a small world go through the trainer's own code (see
tests/exact). The gradients, weighted with the probabilities of the groups, add up to the expected
gradient, which is compared with the gradient of the expected return. ``--write`` puts the tables
into docs/algorithms.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from tests.exact.cases import AGGREGATIONS, ESTIMATORS, LOSSES
from tests.exact.experiment import Experiment, of_actor
from tests.exact.formulas import Mode
from tests.exact.models import in_float64
from tests.exact.objectives import CONSTANT_LENGTH

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- prove_gradients: begin -->\n", "<!-- prove_gradients: end -->\n"
MODES: list[Mode] = list(AGGREGATIONS)
LATER_STEP = ("MaskedGAE", "GroupRelative, scale null, leave_one_out (RLOO)")
"""Estimators without bias at the first step, so that a later step shows the losses alone."""

NORMALISED = ("GroupRelative (GRPO)", "GiGPO", "ReinforcePlusPlus")
GROUP_SIZES = (2, 4, 8)


def first_step(losses: Sequence[str], experiments: Iterable[tuple[str, bool]]) -> list[list[str]]:
    """A row for each estimator and critic, with a cell for each aggregation.

    Args:
        losses: Losses to compute. They must agree, because the probability ratio is 1.
        experiments: Names of estimators, each with whether the critic is exact.
    """
    rows = []
    for name, exact_critic in experiments:
        one = Experiment(ESTIMATORS[name], exact_critic=exact_critic, entropy_coef=0.0)
        true = of_actor(one.true())
        cells = []
        for mode in MODES:
            first, *others = (_actor_gradient(one, loss, mode) for loss in losses)
            for loss, other in zip(losses[1:], others, strict=True):
                if not torch.allclose(other, first, rtol=1e-9, atol=1e-12):
                    raise SystemExit(f"{name}, {mode}: {loss} and {losses[0]} differ at step 1")
            cells.append(_compare(first, true))
        critic = ("exact" if exact_critic else "wrong") if one.case.reads_values else "none"
        rows.append([f"`{name}`", critic, *cells])
    return rows


def later_step() -> Iterable[list[str]]:
    """A row for each estimator and loss, with a cell for each aggregation, after a large step."""
    for name in LATER_STEP:
        one = Experiment(ESTIMATORS[name], entropy_coef=0.0)
        one.move()
        true = of_actor(one.true())
        for loss in LOSSES:
            cells = [_compare(_actor_gradient(one, loss, mode), true) for mode in MODES]
            yield [f"`{name}`", f"`{loss}`", *cells]


def group_size() -> Iterable[list[str]]:
    """A row for each estimator that divides by a deviation, with a cosine for each group size."""
    for name in NORMALISED:
        cells = []
        for members in GROUP_SIZES:
            one = Experiment(ESTIMATORS[name], entropy_coef=0.0, members=members)
            cells.append(_compare(_actor_gradient(one, "PPOClip", MODES[0]), of_actor(one.true())))
        yield [f"`{name}`", *cells]


def _actor_gradient(one: Experiment, loss: str, mode: Mode) -> Tensor:
    """The actor's expected gradient, as if the weights of its tokens had the same sum in any mode.

    They sum to 1 in the means, and to the tokens of an episode / the constant length otherwise.
    """
    tokens = sum(chance * len(path) for path, chance in zip(one.paths, one.chances, strict=True))
    scale = 1.0 if mode == "constant_length" else tokens / CONSTANT_LENGTH
    return scale * of_actor(one.gradients(loss, mode))


def _compare(found: Tensor, true: Tensor) -> str:
    cosine = torch.cosine_similarity(found, true, dim=0)
    error = (found - true).norm() / true.norm()
    return f"{float(cosine):.3f} · {float(error):.3f}"


def experiments() -> list[tuple[str, bool]]:
    """Every estimator, with an exact and a wrong critic where it reads one."""
    return [
        (name, exact_critic)
        for name, case in ESTIMATORS.items()
        for exact_critic in ((True, False) if case.reads_values else (False,))
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@in_float64()
def report() -> str:
    """All tables."""
    first = first_step(list(LOSSES), tqdm(experiments(), desc="estimators"))
    later = list(tqdm(later_step(), desc="later steps", total=len(LATER_STEP) * len(LOSSES)))
    sizes = list(tqdm(group_size(), desc="group sizes", total=len(NORMALISED)))
    modes = [f"`{mode}`" for mode in MODES]
    losses = ", ".join(f"`{loss}`" for loss in LOSSES)
    return (
        f"First step, the same with each loss ({losses}):\n\n"
        f"{table(['estimator', 'critic', *modes], first)}\n\n"
        "Second step, on a batch of the policy before a large first one; wrong critic:\n\n"
        f"{table(['estimator', 'loss', *modes], later)}\n\n"
        f"First step, `{MODES[0]}`, by the episodes in a group:\n\n"
        f"{table(['estimator', *map(str, GROUP_SIZES)], sizes)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare expected gradients with true ones.")
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    text = report()
    if not settings.write:
        print(text)
        return
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    main()
