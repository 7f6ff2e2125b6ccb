"""Measures memory and time of episodes with hundreds of turns, batch by batch.

    OMP_NUM_THREADS=1 python scripts/benchmark_long_episode.py

Plays one Sokoban episode of 400 turns in each of several environments with the tiny text model, in
batches of 50 turns, as `data.turns` does. After every batch it prints the longest context, Python's
memory and the seconds of the batch. With a window, context and time stay constant, and memory grows
only by the replies' tokens, which are kept so that a resumed run can replay the episode. With the
full history (`--window -1`) the context grows until it is full, and then the episode ends.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from vagentrl.contexts import Context, FullHistory, Window
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Sampling
from vagentrl.environment import Environment, Outcome
from vagentrl.formats import Grounding
from vagentrl.models.load import context_length, load_config, load_model
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.episodes import EnvironmentSlot, Episode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Trajectory
from vagentrl_envs.sokoban import Sokoban

MODEL = "tiny-sokoban-text"


class EndlessSokoban(Sokoban):
    """Continues after the room is solved, so that every episode reaches the limit of turns."""

    def _act(self, action: str) -> Outcome:
        outcome = super()._act(action)
        return outcome._replace(done=False, success=False)


def episode(slot: int, number: int) -> Episode:
    return Episode("train", seed=2 * slot, group_id=slot, private_seed=1000 * number + slot)


def longest_context(trajectory: Trajectory) -> int:
    longest = row = 0
    for turn in trajectory.turns:
        row = (0 if turn.prompt.whole else row) + len(turn.prompt.ids) + len(turn.reply_ids)
        longest = max(longest, row)
    return longest


@dataclass(frozen=True)
class Batch:
    """What a batch of turns cost.

    Attributes:
        turns: Turns that each environment has played so far.
        longest: Longest context of the batch in tokens.
        held: Memory that Python holds after the batch, in MiB.
        seconds: Time of the batch.
        ended: Episodes that ended in the batch.
    """

    turns: int
    longest: int
    held: float
    seconds: float
    ended: int


def play_long(
    make: Callable[[], Environment],
    model: str,
    context: Context,
    environments: int = 16,
    turns: int = 400,
    batch: int = 50,
    max_tokens: int = 32,
) -> Iterator[Batch]:
    """Play an episode in each of several environments, and measure every batch of turns.

    Args:
        make: Makes an environment.
        model: The policy, a folder or the name of a tiny model.
        context: Which earlier turns the policy sees.
        environments: Number of environments.
        turns: Turns of an episode.
        batch: Turns of each environment in a batch.
        max_tokens: Most tokens of a reply.
    """
    room = context_length(load_config(model))
    renderer = Renderer.from_pretrained(model)
    engine = TransformersEngine()
    engine.prepare(renderer.vocabulary(room))
    engine.update_weights(load_model(model), 0)
    pools = {"train": WorkerPool(make, "train")}
    collector = Collector(engine, renderer, pools, room, context)
    slots = [EnvironmentSlot(partial(episode, slot)) for slot in range(environments)]
    tracemalloc.start()
    for number in range(1, turns // batch + 1):
        started = time.perf_counter()
        played = collector.collect_turns(slots, batch, Sampling(max_tokens=max_tokens))
        seconds = time.perf_counter() - started
        longest = max(longest_context(trajectory) for trajectory in played)
        ended = sum(trajectory.stop != "cut" for trajectory in played)
        del played
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] / 2**20
        yield Batch(number * batch, longest, held, seconds, ended)
    tracemalloc.stop()
    for pool in pools.values():
        pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Memory and time of episodes with hundreds of turns."
    )
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument(
        "--batch", type=int, default=50, help="turns of each environment in a batch"
    )
    parser.add_argument(
        "--window", type=int, default=2, help="number of earlier turns in the context; -1 for all"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    make = partial(
        EndlessSokoban,
        observation="text",
        turn_limit=arguments.turns,
        format=Grounding("structured"),
    )
    context = FullHistory() if arguments.window < 0 else Window(arguments.window)
    print(f"{arguments.environments} environments, {type(context).__name__}, {MODEL}\n")
    print("| turns | longest context, tokens | python memory, MiB | seconds | ended |")
    print("|--:|--:|--:|--:|---|")
    counts = (arguments.environments, arguments.turns, arguments.batch)
    for batch in play_long(make, MODEL, context, *counts):
        print(
            f"| {batch.turns} | {batch.longest} | {batch.held:.1f} | {batch.seconds:.1f} "
            f"| {batch.ended} |"
        )


if __name__ == "__main__":
    main()
