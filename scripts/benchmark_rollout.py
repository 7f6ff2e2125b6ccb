"""Compares the rollout speed of engines and of TRL, with the same model and environment.

    OMP_NUM_THREADS=1 python scripts/benchmark_rollout.py [--images] [--step_ms 50] [--repeats 5]

Episodes have 1 to 7 turns, drawn from the seed; every reply has exactly 16 tokens; an observation
is a line of text and, with `--images`, a picture of 84 x 84 pixels. The engines of this project
alternate, `--repeats` times; the table has medians. The following are included if they are
installed:

- vLLM, see docs/engines.md;
- TRL's multi-turn loop (``GRPOTrainer._generate`` with an ``environment_factory``; only this method
  is timed): ``pip install trl==1.16.0 accelerate datasets jmespath``. TRL continues an episode only
  after a tool call, so every reply but the last is parsed as one. The chat template is this
  project's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import Image

from vagentrl.engines import ReplicatedEngine, TransformersEngine, VLLMEngine
from vagentrl.engines.base import Engine, Sampling
from vagentrl.environment import Environment
from vagentrl.formats import NoThink
from vagentrl.models.load import checkpoint_path, load_model
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import IMAGE_PLACEHOLDER, Observation, Reply, StepResult

TURNS, REPLY_TOKENS, CONTEXT = 7, 16, 1024
TASK = "Walk to the door."
Measured = tuple[float, int]  # seconds, sampled tokens


def turns_of(seed: int) -> int:
    return int(np.random.default_rng(seed).integers(1, TURNS + 1))


def picture(seed: int, turn: int) -> Image.Image:
    pixels = np.random.default_rng((seed, turn)).integers(0, 256, (84, 84, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def words(seed: int, turn: int) -> str:
    return f"you stand in room {seed % 10}. turn {turn} of {turns_of(seed)}"


class Walk(Environment):
    """An episode whose number of turns depends only on its seed."""

    def __init__(self, images: bool, step_s: float) -> None:
        super().__init__(NoThink())
        self.images = images
        self.step_s = step_s

    def system_prompt(self) -> str:
        return TASK

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.seed, self.turn = seed, 1
        return self.observe()

    def step(self, reply: Reply) -> StepResult:
        time.sleep(self.step_s)
        self.turn += 1
        return StepResult(
            self.observe(), reward=0.0, terminated=self.turn > turns_of(self.seed), truncated=False
        )

    def observe(self) -> Observation:
        text = words(self.seed, self.turn)
        if not self.images:
            return Observation(text)
        return Observation(f"{IMAGE_PLACEHOLDER} {text}", (picture(self.seed, self.turn),))


def ours(
    engine: Engine, lockstep: bool, policy: Any, renderer: Renderer, arguments: argparse.Namespace
) -> Callable[[], Measured]:
    vocabulary = renderer.vocabulary(CONTEXT)
    engine.prepare(  # stop tokens are banned, so that only max_tokens ends a reply
        replace(
            vocabulary,
            banned_ids=vocabulary.banned_ids | vocabulary.stop_ids,
        )
    )
    pool = WorkerPool(
        lambda: Walk(arguments.images, arguments.step_ms / 1000), "walk", size=arguments.episodes
    )
    collector = Collector(engine, renderer, {"walk": pool}, CONTEXT, lockstep=lockstep)
    episodes = [Episode("walk", seed, seed, seed) for seed in range(arguments.episodes)]

    def measure() -> Measured:
        engine.update_weights(policy, 0)  # also clears the cache
        tokens, started = engine.sampled_tokens, time.perf_counter()
        collector.collect(episodes, Sampling(max_tokens=REPLY_TOKENS))
        return time.perf_counter() - started, engine.sampled_tokens - tokens

    return measure


def trl(model: str, arguments: argparse.Namespace) -> Callable[[], Measured]:
    """Run TRL's trainer; return a function that yields the timings of its `_generate`."""
    import os
    import tempfile

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import trl.trainer.grpo_trainer as grpo  # pyright: ignore
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore

    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(model))
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ message.role }}", "{{ 'user' if message.role == 'tool' else message.role }}"
    ).replace(
        "<|im_end|>",
        "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>",
    )
    tokenizer.response_schema = {"type": "object"}
    processor: Any = tokenizer
    if arguments.images:
        from transformers import AutoImageProcessor, Qwen2_5_VLProcessor, Qwen2VLVideoProcessor

        images = AutoImageProcessor.from_pretrained(checkpoint_path(model))
        processor = Qwen2_5_VLProcessor(
            images, tokenizer, Qwen2VLVideoProcessor(), chat_template=tokenizer.chat_template
        )
    seeds = iter(range(10**9))

    def shown(seed: int, turn: int) -> Any:
        text = words(seed, turn)
        if not arguments.images:
            return text
        return [{"type": "image", "image": picture(seed, turn)}, {"type": "text", "text": text}]

    class TrlWalk:
        def reset(self, **row: Any) -> Any:
            self.seed, self.turn = next(seeds) % arguments.episodes, 1
            return shown(self.seed, self.turn)

        def step(self, move: str) -> Any:
            """Make a move.

            Args:
                move: Where to.
            """
            time.sleep(arguments.step_ms / 1000)
            self.turn += 1
            return shown(self.seed, self.turn)

        def get_reward(self) -> float:
            return 0.0

    def parsed(tokens: Any, ids: Any, prefix: Any = None, tools: Any = None) -> dict[str, Any]:
        """Parse every reply as a tool call until the episode ends, whatever was sampled."""
        turn, of = tokens.decode(prefix).rpartition("turn ")[2].split()[:3:2]
        message: dict[str, Any] = {"role": "assistant", "content": tokens.decode(ids)}
        if int(turn) < int("".join(c for c in of if c.isdigit())):
            call = {"name": "step", "arguments": {"move": "on"}}
            message["tool_calls"] = [{"type": "function", "function": call}]
        return message

    grpo.parse_response = parsed
    replies: dict[str, Any] = {"max_new_tokens": REPLY_TOKENS, "min_new_tokens": REPLY_TOKENS}
    policy = load_model(model)
    if arguments.images:
        replies["bad_words_ids"] = [[policy.config.image_token_id], [policy.config.video_token_id]]
    taken: list[Measured] = []

    def measure() -> Measured:
        return taken.pop(0)

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False,
            max_steps=arguments.repeats + 1, per_device_train_batch_size=arguments.episodes,
            num_generations=4, max_completion_length=CONTEXT,
            max_tool_calling_iterations=TURNS - 1, generation_kwargs=replies, report_to="none",
            save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=policy,
            processing_class=processor,
            args=settings,
            train_dataset=None,
            environment_factory=TrlWalk,
        )
        generate = trainer._generate

        def timed(prompts: Any) -> Any:
            started = time.perf_counter()
            output = generate(prompts)
            seconds = time.perf_counter() - started
            taken.append((seconds, sum(sum(mask) for mask in output[2])))
            return output

        trainer._generate = timed
        trainer.train()
    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description="Rollout speed of engines and of TRL.")
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument(
        "--step_ms", type=float, default=0.0, help="duration of an environment's step"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--processes", type=int, default=2, help="processes of ReplicatedEngine; 1 to skip it"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = "tiny-sokoban-vlm" if arguments.images else "tiny-sokoban-text"
    policy, renderer = load_model(model), Renderer.from_pretrained(checkpoint_path(model))
    common = (policy, renderer, arguments)
    ways: dict[str, Callable[[], Measured]] = {
        "Transformers, lock-step": ours(TransformersEngine(), True, *common),
        "Transformers, continuous": ours(TransformersEngine(), False, *common),
    }
    if arguments.processes > 1:
        engine = ReplicatedEngine(arguments.processes)
        ways[f"Transformers, {arguments.processes} processes"] = ours(engine, False, *common)
    if find_spec("vllm"):
        engine = VLLMEngine(kv_cache_gb=1, enforce_eager=True)
        ways["vLLM, continuous"] = ours(engine, False, *common)
    results: dict[str, list[Measured]] = {name: [] for name in ways}
    for measure in ways.values():
        measure()  # warm-up
    for _ in range(arguments.repeats):
        for name, measure in ways.items():
            results[name].append(measure())
    if find_spec("trl"):
        measure = trl(model, arguments)
        measure()  # warm-up
        results["TRL 1.16"] = [measure() for _ in range(arguments.repeats)]
    turns = sum(turns_of(seed) for seed in range(arguments.episodes))
    print(
        f"{arguments.episodes} episodes of 1 to {TURNS} turns, {turns} turns of {REPLY_TOKENS} "
        f"tokens, {'images' if arguments.images else 'text'}, {arguments.step_ms:g} ms a step, "
        f"{arguments.threads} thread(s), median of {arguments.repeats}\n"
    )
    slowest = max(statistics.median(s for s, _ in taken) for taken in results.values())
    print("| way | seconds | episodes/s | sampled tokens/s | times the slowest |")
    print("|---|---|---|---|---|")
    for name, taken in results.items():
        seconds = statistics.median(s for s, _ in taken)
        assert {tokens for _, tokens in taken} == {turns * REPLY_TOKENS}, taken
        print(
            f"| {name} | {seconds:.2f} | {arguments.episodes / seconds:.1f} | "
            f"{turns * REPLY_TOKENS / seconds:,.0f} | {slowest / seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
