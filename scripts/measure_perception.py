"""Measures how truly a recipe's starting model tells what it sees, in each world of the recipe.

    OMP_NUM_THREADS=1 python scripts/measure_perception.py --config configs/four_worlds.yaml

Plays held-out episodes at T = 0.5. *whole state right* is the share of turns in which the claim
about the observation is the true state, word by word.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from vagentrl.cli.trainer import VagentCLI
from vagentrl.cli.warmstart.evaluation import evaluate
from vagentrl.environment import seed_of
from vagentrl.models.load import checkpoint_path


def main() -> None:
    parser = argparse.ArgumentParser(description="How truly a model tells what it sees.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--episodes", type=int, default=64, help="of each world")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = VagentCLI(["--config", arguments.config], run=False)
    seeds = [seed_of("validation", number) for number in range(arguments.episodes)]
    model, found = Path(checkpoint_path(run.model.policy_name)), []
    for name, environment in run.datamodule.environments.items():
        scores = evaluate(environment, model, seeds, run.datamodule.context)
        right = scores.get("perception", float("nan"))
        found.append(f"| {name} | {scores['success_rate']:.3f} | {right:.3f} |")
    print("\n".join(["| world | success | whole state right |", "|---|---|---|", *found]))


if __name__ == "__main__":
    main()
