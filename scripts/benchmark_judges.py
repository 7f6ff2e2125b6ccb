"""Measures how much judging slows a rollout down, in the trainer's process and in another.

    OMP_NUM_THREADS=1 python scripts/benchmark_judges.py [--claims 1000] [--reply_tokens 200]

The tiny text model plays Sokoban; every reply has exactly `--reply_tokens` tokens (the published
set-up allows 200). As soon as a turn ends, the true state is sent to a judge as a claim. The judge
asks a fake server in another process, which answers after a fixed latency. Rollouts without
judging, with a judge in the same process, and with a judge in `Apart` alternate and use the same
seeds, so that they play the same episodes. The table has medians of the seconds to the last
verdict, the CPU seconds of the trainer's process, and the CPU seconds of its judging threads. CPU
seconds depend less on other programs than elapsed seconds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vagentrl.chat import OpenAIChat
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.engines import TransformersEngine
from vagentrl.engines.base import Sampling
from vagentrl.event_loops import SharedLoop, quick_switches
from vagentrl.formats import NoThink
from vagentrl.models.load import checkpoint_path, load_model
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Reply, StepResult
from vagentrl_envs.sokoban import Sokoban
from vagentrl_judges.apart import Apart
from vagentrl_judges.yes_no import YesNo

COLUMNS = ("all_s", "busy_s", "judging_s")
MODEL, CONTEXT, TURNS, AT_ONCE = "tiny-sokoban-text", 2048, 7, 128
ROOT = Path(__file__).parents[1]


class JudgedSokoban(Sokoban):
    """Sends a claim to a judge in every step. Replies are malformed, so the player never moves.

    Args:
        judge: The judge; None to judge nothing.
        background: The loop that runs the judge.
        verdicts: List to which the verdicts' futures are appended.
        limit: Maximum number of claims to judge.
    """

    def __init__(
        self,
        judge: Judge | None,
        background: SharedLoop,
        verdicts: list[Future[Verdict | float]],
        limit: int,
    ) -> None:
        super().__init__(size=6, observation="text", turn_limit=TURNS, format=NoThink())
        self.judge, self.background, self.verdicts, self.limit = judge, background, verdicts, limit

    def step(self, reply: Reply) -> StepResult:
        if self.judge is not None and len(self.verdicts) < self.limit:
            state = self.state()
            claim = Claim("observation", state.natural, "natural", state, self.rubric())
            self.verdicts.append(self.background.submit(self.judge.judge(claim)))
        return super().step(reply)


@dataclass(frozen=True)
class Measured:
    """A measured rollout.

    Attributes:
        rollout_s: Seconds of the rollout.
        all_s: Seconds from its start to the last verdict.
        busy_s: CPU seconds of this process.
        judging_s: CPU seconds of this process's judging threads.
        turns: Number of turns played.
        verdicts: Number of verdicts.
    """

    rollout_s: float
    all_s: float
    busy_s: float
    judging_s: float
    turns: int
    verdicts: int


def judging_threads_s() -> float:
    """Return the CPU seconds of this process's judging threads so far."""
    judging = [t for t in threading.enumerate() if t.name in ("judge", "Apart")]
    idents = [thread.ident for thread in judging if thread.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


@contextmanager
def server(latency_s: float) -> Iterator[str]:
    """Start a fake server in another process and yield its URL."""
    command = [sys.executable, "-m", "tests.chat_server", "--latency_s", str(latency_s)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()


def rollout(
    judge: Judge | None, background: SharedLoop, args: argparse.Namespace, claims: int
) -> Measured:
    policy, renderer = load_model(MODEL), Renderer.from_pretrained(checkpoint_path(MODEL))
    engine = TransformersEngine()
    vocabulary = renderer.vocabulary(CONTEXT)
    banned = vocabulary.banned_ids | vocabulary.stop_ids  # only max_tokens ends a reply
    engine.prepare(replace(vocabulary, banned_ids=banned))
    engine.update_weights(policy, 0)
    verdicts: list[Future[Verdict | float]] = []
    pool = WorkerPool(
        lambda: JudgedSokoban(judge, background, verdicts, claims), "sokoban", size=AT_ONCE
    )
    collector = Collector(engine, renderer, {"sokoban": pool}, CONTEXT)
    episodes = [
        Episode("sokoban", 2 * seed, seed, seed) for seed in range(math.ceil(claims / TURNS))
    ]
    started, busy, judging = time.perf_counter(), time.process_time(), judging_threads_s()
    trajectories = collector.collect(episodes, Sampling(max_tokens=args.reply_tokens))
    rollout_s = time.perf_counter() - started
    wait(verdicts)
    all_s, busy_s = time.perf_counter() - started, time.process_time() - busy
    judging_s = judging_threads_s() - judging
    results = [verdict.result() for verdict in verdicts]
    scores = [each.score if isinstance(each, Verdict) else each for each in results]
    assert all(score == 1 for score in scores)  # the server always answers YES
    turns = sum(len(played.turns) for played in trajectories)
    return Measured(rollout_s, all_s, busy_s, judging_s, turns, len(verdicts))


def main() -> None:
    parser = argparse.ArgumentParser(description="What judging adds to a rollout.")
    parser.add_argument("--claims", type=int, default=1000, help="claims to judge")
    parser.add_argument("--latency_ms", type=float, default=200, help="latency of each judgement")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--reply_tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    background = SharedLoop("judge")
    taken: dict[str, list[Measured]] = {}
    with server(args.latency_ms / 1000) as url, quick_switches():
        judge = YesNo(OpenAIChat("fake", url, max_connections=args.connections, key_variable=None))
        ways = {"alone": None, "a judge in this process": judge, "a judge `Apart`": Apart(judge)}
        for judging in ways.values():
            rollout(judging, background, args, claims=70)  # warm-up
        for _ in range(args.repeats):
            for name, judging in ways.items():
                measured = rollout(judging, background, args, args.claims)
                taken.setdefault(name, []).append(measured)
    last = taken["a judge `Apart`"][-1]
    print(
        f"{last.turns} turns of {args.reply_tokens} tokens, {last.verdicts} judgements of "
        f"{args.latency_ms:g} ms through {args.connections} connections, {args.threads} thread(s), "
        f"medians of {args.repeats}\n"
    )
    print("| rollout with | s | CPU s | of them judging | last verdict after, s |")
    print("|---|---|---|---|---|")
    for name, measured in taken.items():
        values = [statistics.median(getattr(one, what) for one in measured) for what in COLUMNS]
        lag = statistics.median(one.all_s - one.rollout_s for one in measured)
        cells = " | ".join(f"{value:.2f}" for value in values)
        print(f"| {name} | {cells} ({values[2] / values[1]:.1%}) | {lag:.2f} |")


if __name__ == "__main__":
    main()
