"""Make a tiny model that can see and speak, by cloning a noisy demonstrator.

The demonstrator knows the true state and says it truly, in the reply format of the environment; it
acts by the environment's oracle, but some of the time at random. A model that clones it perceives
and speaks well, and plans badly: a starting point for reinforcement learning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jsonargparse import auto_cli
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from vagentrl.advantages import GroupRelative
from vagentrl.callbacks import IterationProgress
from vagentrl.cli.parser import Parser
from vagentrl.cli.startup import load_plugins, silence_noise
from vagentrl.contexts import FullHistory
from vagentrl.datamodule import RolloutDataModule
from vagentrl.environment import ActionEnvironment, Environment, seed_of
from vagentrl.errors import ConfigError
from vagentrl.hints import HintedEnvironment
from vagentrl.models.tiny import TinyModel, build_image_processor, build_model, build_tokenizer
from vagentrl.modules.actor import ActorModule
from vagentrl.modules.agent import AgentModule
from vagentrl.rollout.collate import collate
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.source import TRAIN
from vagentrl.types import (
    IMAGE_PLACEHOLDER,
    Observation,
    Reply,
    RolloutBatch,
    State,
    StepResult,
    Trajectory,
    Turn,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


MOST_REPEATS = 10
"""Of a stage that is repeated until the model errs enough."""

_QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}


@dataclass(frozen=True)
class Demonstrator:
    """Says the true state, and acts by the oracle or at random.

    Args:
        noise: Share of turns in which the action is drawn at random from `actions`.
        actions: The actions to draw from; empty for those that the environment names, which may
            be others in every episode.
        claim_noise: Share of claims that are about the state one random action later instead.
        obeys: Share of the turns with a hint in which the action is the one that the hint names.
    """

    noise: float
    actions: tuple[str, ...]
    claim_noise: float = 0.0
    obeys: float = 0.0

    def __post_init__(self) -> None:
        shares = {"noise": self.noise, "claim_noise": self.claim_noise, "obeys": self.obeys}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}; it is a share between 0 and 1")

    def reply(self, environment: Environment, rng: np.random.Generator) -> str:
        """What the demonstrator says and does in the environment's state."""
        plan = environment.oracle()
        hint = environment.hint if isinstance(environment, HintedEnvironment) else None
        if hint is not None and hint.action is not None and rng.random() < self.obeys:
            plan = (hint.action,)
        elif not plan or rng.random() < self.noise:
            plan = (self._random_action(environment, rng),)
        observation = self._seen(environment, rng)
        prediction = None
        if "prediction" in environment.format.claims:
            ahead = copy.deepcopy(environment)
            result = ahead.step(Reply("", actions=plan[:1]))
            over = result.terminated or result.truncated
            prediction = ahead.state() if over else self._seen(ahead, rng)
        return environment.format.write(plan[:1], observation=observation, prediction=prediction)

    def _seen(self, environment: Environment, rng: np.random.Generator) -> State | None:
        """The state, or the one that a random action would lead to."""
        if not self.claim_noise or rng.random() >= self.claim_noise:
            return environment.state()
        later = copy.deepcopy(environment)
        later.step(Reply("", actions=(self._random_action(environment, rng),)))
        return later.state()

    def _random_action(self, environment: Environment, rng: np.random.Generator) -> str:
        actions = self.actions or _named_actions(environment)
        return actions[rng.integers(len(actions))]


def _named_actions(environment: Environment) -> tuple[str, ...]:
    if isinstance(environment, ActionEnvironment):
        return environment.action_names
    raise ConfigError(
        f"actions is empty, but {type(environment).__name__} names no actions to draw from; give "
        "some (only an ActionEnvironment has names of its own)"
    )


@dataclass(frozen=True)
class Demonstration:
    """One demonstrated episode in words, not yet in tokens."""

    system_prompt: str
    observations: tuple[Observation, ...]
    replies: tuple[str, ...]


def demonstrate(
    environment: Environment, demonstrator: Demonstrator, seed: int, turns: int | None = None
) -> Demonstration:
    """Play one episode, or its first turns, with the demonstrator in the agent's seat."""
    rng = np.random.default_rng((seed, 1))  # not the stream that the environment draws from
    observations, replies = [environment.reset(seed)], []
    while True:
        replies.append(demonstrator.reply(environment, rng))
        result: StepResult = environment.step(environment.format.parse(replies[-1]))
        if result.terminated or result.truncated or len(replies) == turns:
            return Demonstration(environment.system_prompt(), tuple(observations), tuple(replies))
        observations.append(result.observation)


def to_trajectory(
    demonstration: Demonstration, renderer: Renderer, context_length: int
) -> Trajectory:
    """Demonstration as a trajectory, cut where the context is full."""
    turns: list[Turn] = []
    conversation = Conversation(renderer, FullHistory(), demonstration.system_prompt)
    for observation, text in zip(demonstration.observations, demonstration.replies, strict=True):
        prompt = conversation.ask(observation)
        reply_ids = (*renderer.encode_text(text), renderer.end_of_turn)
        conversation.reply(reply_ids)
        if len(conversation.ids) + 1 > context_length:
            break
        zeros = (0.0,) * len(reply_ids)
        turns.append(Turn(observation, prompt, reply_ids, zeros, Reply(text), 0.0, "stop"))
    return Trajectory("demonstration", 0, 0, tuple(turns), "terminated")


class _Demonstrations(IterableDataset[RolloutBatch]):
    """Endless batches of fresh demonstrations."""

    def __init__(
        self,
        factory: Callable[[], Environment],
        demonstrator: Demonstrator,
        renderer: Renderer,
        batch_size: int,
        context_length: int,
        seed: int,
        turns: int | None = None,
    ) -> None:
        self.factory = factory
        self.demonstrator = demonstrator
        self.renderer = renderer
        self.batch_size = batch_size
        self.context_length = context_length
        self.seeds = np.random.default_rng(seed)  # goes on where a stage is repeated
        self.turns = turns

    def __iter__(self) -> Iterator[RolloutBatch]:
        environment = self.factory()
        while True:
            batch = [
                to_trajectory(
                    demonstrate(
                        environment, self.demonstrator, seed_of("train", int(seed)), self.turns
                    ),
                    self.renderer,
                    self.context_length,
                )
                for seed in self.seeds.integers(2**60, size=self.batch_size)
            ]
            yield collate(batch, self.renderer, temperature=1.0)


class CloneModule(LightningModule):
    """Behaviour cloning: the mean negative log-prob of the demonstrated reply tokens."""

    def __init__(self, policy: PreTrainedModel, renderer: Renderer, lr: float, steps: int) -> None:
        super().__init__()
        self.actor = ActorModule(policy, renderer.banned_ids)
        self.lr = lr
        self.steps = steps

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> Tensor:
        loss = -self.actor(batch).sum() / batch.action_mask.sum()
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=self.steps, pct_start=max(0.05, 2 / self.steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def transfer_batch_to_device(
        self, batch: RolloutBatch, device: torch.device, dataloader_idx: int
    ) -> RolloutBatch:
        return batch.to(device)


@dataclass(frozen=True)
class Stage:
    """A part of the cloning, with an optimizer and a demonstrator of its own.

    A model learns to plan fastest from a demonstrator that rarely errs, and then takes over the
    errors of one that often does in few steps.

    Args:
        noise: The demonstrator's.
        steps: Optimizer steps.
        lr: Highest learning rate (one cycle).
        batch_size: Episodes in a step.
        obeys: How often the demonstrator does what a hint says, where the environment gives hints.
        turns: First turns of an episode that are shown; None for all. The turns of an episode are
            much alike, so for learning to read many short demonstrations are the cheapest.
        claim_noise: Share of its claims that are wrong by one random action.
        until: Repeat the stage until the success rate on training seeds is no higher than this.
            How far a model that plans well takes errors over in so many steps varies with the
            machine's rounding; where it stops then does not.
    """

    noise: float
    steps: int
    lr: float = 2e-3
    batch_size: int = 16
    turns: int | None = None
    claim_noise: float = 0.0
    until: float | None = None
    obeys: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 4:
            raise ConfigError(f"steps is {self.steps}; a cycle of learning rates takes at least 4")


def warmstart(
    env: Callable[[], Environment],
    actions: tuple[str, ...],
    stages: list[Stage],
    output: str,
    model: TinyModel = TinyModel(),  # noqa: B008 (frozen)
    micro_batch_size: int = 4,
    tokenizer_episodes: int = 500,
    eval_episodes: int = 512,
    seed: int = 1,
) -> None:
    """Build a tiny model from nothing: tokenizer, random weights, behaviour cloning.

    Args:
        env: The environment whose oracle is cloned.
        actions: What the demonstrator draws from when it acts at random; empty for the actions
            that the environment names.
        stages: The cloning, one part after the other.
        output: Folder to write the Hugging Face checkpoint and its model card to.
        model: Shape of the model.
        micro_batch_size: Episodes in one forward and backward pass; a small one stays in cache.
        tokenizer_episodes: Demonstrations that the tokenizer is trained on.
        eval_episodes: Held-out episodes to score it on, for its card.
        seed: Decides everything; the same machine and versions give the same weights.
    """
    seed_everything(seed)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    texts = _texts(env(), Demonstrator(stages[0].noise, actions), tokenizer_episodes)
    tokenizer = build_tokenizer(model, texts)
    policy = build_model(model, tokenizer)
    for part in (tokenizer, policy, *([build_image_processor(model)] if model.images else [])):
        part.save_pretrained(folder)
    renderer = Renderer.from_pretrained(folder)
    renderer.self_test()
    for number, stage in enumerate(stages):
        demonstrations = _Demonstrations(
            env,
            Demonstrator(stage.noise, actions, stage.claim_noise, stage.obeys),
            renderer,
            micro_batch_size,
            model.context_length,
            seed + number,
            stage.turns,
        )
        for _ in range(MOST_REPEATS):
            clone(policy, demonstrations, stage)
            policy.save_pretrained(folder)
            if stage.until is None or success_in_training(env, folder) <= stage.until:
                break
    scores = evaluate(env, folder, [seed_of("validation", index) for index in range(eval_episodes)])
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    settings = {"model": model, "tokenizer_episodes": tokenizer_episodes, "seed": seed}
    settings |= {f"stage {number}": stage for number, stage in enumerate(stages, 1)}
    (folder / "README.md").write_text(_card(folder.name, parameters, settings, scores))
    print(f"written to {folder}:", *(f"{name} {value:.3f}" for name, value in scores.items()))


def run_warmstart(args: Sequence[str]) -> None:
    """``vagentrl warmstart``."""
    load_plugins()
    silence_noise()
    auto_cli(warmstart, args=list(args), as_positional=False, parser_class=Parser)


def clone(policy: PreTrainedModel, demonstrations: _Demonstrations, stage: Stage) -> None:
    """Train the policy on fresh demonstrations for one stage."""
    accumulate = max(1, stage.batch_size // demonstrations.batch_size)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=stage.steps * accumulate,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        callbacks=[TQDMProgressBar(refresh_rate=10)],
        **_QUIET,
    )
    module = CloneModule(policy, demonstrations.renderer, stage.lr, stage.steps)
    trainer.fit(module, DataLoader(demonstrations, batch_size=None))


class _OnSeeds(RolloutDataModule):
    """Evaluates on seeds of one's own choice."""

    def __init__(self, env: Callable[[], Environment], seeds: Sequence[int]) -> None:
        super().__init__(env)
        self.seeds = tuple(seeds)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([(TRAIN, self.seeds)], batch_size=None)  # pyright: ignore


def evaluate(
    env: Callable[[], Environment], folder: Path, seeds: Sequence[int]
) -> dict[str, float]:
    """Score a checkpoint on one episode per seed.

    Returns:
        ``success_rate`` at T = 0.5 with its interval, ``turns``, ``malformed_replies``, and
        ``perception``: the share of turns in which the whole state was described truly.
    """
    agent = AgentModule(policy=str(folder), advantage=GroupRelative())
    data = _OnSeeds(env, seeds)
    trainer = Trainer(accelerator="cpu", callbacks=[IterationProgress()], **_QUIET)
    trainer.validate(agent, data, verbose=False)
    metrics = {k.removeprefix("val/"): float(v) for k, v in trainer.callback_metrics.items()}
    wanted = (
        "success_rate", "success_rate_low", "success_rate_high", "turns", "malformed_replies"
    )  # fmt: skip
    seen = perception(env(), data.evaluated[TRAIN])
    return {name: metrics[name] for name in wanted} | ({} if seen is None else {"perception": seen})


def success_in_training(env: Callable[[], Environment], folder: Path) -> float:
    """Success rate on seeds that training may draw: held-out ones are kept for the score."""
    seeds = [seed_of("train", index) for index in range(256)]
    return evaluate(env, folder, seeds)["success_rate"]


def perception(environment: Environment, trajectories: Sequence[Trajectory]) -> float | None:
    """Share of turns whose observation claim is the true state, word by word.

    The episodes are played again, which their seeds allow. None where nothing is claimed.
    """
    if "observation" not in environment.format.claims:
        return None
    right = total = 0
    for trajectory in trajectories:
        environment.reset(trajectory.seed, trajectory.transition_seed)
        for turn in trajectory.turns:
            state = environment.state()
            if state is not None and environment.format.state is not None:
                total += 1
                right += turn.reply.observation_claim == getattr(state, environment.format.state)
            environment.step(turn.reply)
    return right / max(total, 1)


def _card(name: str, parameters: int, settings: dict[str, Any], scores: dict[str, float]) -> str:
    """A model card in Markdown."""
    made = "\n".join(f"| {key} | `{value}` |" for key, value in settings.items())
    scored = "\n".join(f"| {key} | {value:.3f} |" for key, value in scores.items())
    return f"""---
license: apache-2.0
library_name: transformers
---
# {name}

A model of {parameters:,} parameters with the architecture of a large one, made by `vagentrl
warmstart` from random weights and no outside data: it clones a demonstrator that describes the true
state of the environment in every turn, and acts by the environment's oracle except for a share of
its turns (`noise`), in which it acts at random; a share of what it says (`claim_noise`) is wrong by
one random action, and where there is a hint, it does what that says in a share of them (`obeys`).
So it perceives and speaks well and plans badly. It is a starting point for reinforcement learning
on this one environment and good for nothing else.

## How it was made

| setting | value |
|---|---|
{made}

## What it scores

On held-out seeds, which show what no training seed does; temperature 0.5. `perception`, where
states are described, is the share of turns in which the whole of it was described truly.

| metric | value |
|---|---|
{scored}
"""


def _texts(environment: Environment, demonstrator: Demonstrator, episodes: int) -> Iterator[str]:
    """What the model will read and write, as the tokenizer will see it."""
    for index in range(episodes):
        demonstration = demonstrate(environment, demonstrator, seed_of("train", index))
        yield f"system\n{demonstration.system_prompt}"
        for observation, reply in zip(
            demonstration.observations, demonstration.replies, strict=True
        ):
            text = observation.text.replace(IMAGE_PLACEHOLDER, "")
            yield f"user\n{text}\n{observation.hint}" if observation.hint else f"user\n{text}"
            yield "assistant\n"
            yield reply
