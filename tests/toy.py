"""A toy task, and tiny models that can play it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vagentrl.contexts import Context, FullHistory
from vagentrl.environment import Environment
from vagentrl.formats import NoThink
from vagentrl.models.tiny import TinyModel, build_image_processor, build_model, build_tokenizer
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.images import ImageEncoder
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import (
    Observation,
    Reply,
    RolloutBatch,
    StepResult,
    Trajectory,
    Turn,
    VisionInputs,
)

GO, WAIT = "<answer>go</answer>", "<answer>wait</answer>"
TASK = "Say go until nothing is left."


class Countdown(Environment):
    """A counter that starts at ``seed % 4 + 1``; every "go" subtracts one, and 0 ends the episode.

    Args:
        images: Add a picture to the observation, 28 pixels wider for each count left.
        turn_limit: Number of turns after which the episode is truncated.
    """

    def __init__(self, images: bool = False, turn_limit: int = 5) -> None:
        super().__init__(NoThink())
        self.images = images
        self.turn_limit = turn_limit

    def system_prompt(self) -> str:
        return TASK

    def reset(self, seed: int, transition_seed: int = 0) -> Observation:
        self.left, self.turns = seed % 4 + 1, 0
        self.luck = transition_seed % 1000
        return self.observe()

    def step(self, reply: Reply) -> StepResult:
        self.turns += 1
        self.left -= reply.actions == ("go",)
        return StepResult(
            observation=self.observe(),
            reward=1.0 if self.left == 0 else -0.25,
            terminated=self.left == 0,
            truncated=self.turns == self.turn_limit,
            metrics={"success": float(self.left == 0), "luck": float(self.luck)},
        )

    def observe(self) -> Observation:
        text = f"{self.left} left, luck {self.luck}"
        return (
            Observation(f"<image>{text}", (picture(self.left),))
            if self.images
            else Observation(text)
        )


def picture(left: int) -> Image.Image:
    """Return a picture whose size depends on the number left."""
    return Image.linear_gradient("L").resize((28 * (left + 1), 28)).convert("RGB")


def shape(images: bool) -> TinyModel:
    """Return the smallest model that has every part of the architecture."""
    return TinyModel(
        images=images,
        hidden_size=32,
        layers=2,
        intermediate_size=48,
        vocabulary=320,
        context_length=512,
        vision_hidden_size=16,
        vision_heads=2,
    )


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(
        shape(images=True), [TASK, GO, WAIT, "1 left, luck 0", "assistant\n"] * 4
    )


@cache
def renderer(images: bool = False) -> Renderer:
    processor: Any = build_image_processor(shape(images=True))
    return Renderer(tokenizer(), ImageEncoder(processor) if images else None)


def model(images: bool = False, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Build a model with large random weights, so that its distributions are not uniform."""
    policy = build_model(shape(images), tokenizer()).to(dtype=dtype).eval()  # pyright: ignore
    for parameter in policy.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return policy


def one_turn_rows(
    ids: Tensor, real: Tensor, sampled: Tensor, vision: VisionInputs | None = None
) -> RolloutBatch:
    """Return rows that are each an episode, and a group, of one turn without reward.

    Args:
        ids: Tokens, ``(B, T)``.
        real: What is not padding, ``(B, T)``.
        sampled: The tokens of the replies, ``(B, T)``.
        vision: The images that the rows show.
    """
    zeros, numbers, turns = torch.zeros(ids.shape), torch.arange(len(ids)), sampled.long() - 1
    return RolloutBatch(
        input_ids=ids,
        attention_mask=real,
        action_mask=sampled,
        turn_ids=turns,
        state_ids=turns,
        rewards=zeros,
        rollout_logprobs=zeros,
        policy_version=turns,
        trajectory_ids=numbers,
        group_ids=numbers,
        bootstrap_index=torch.full_like(numbers, -1),
        vision=vision,
    )


def encode_reply(text: str) -> tuple[int, ...]:
    """Return a reply's token ids, end of turn included."""
    ids = tokenizer().encode(text, add_special_tokens=False)
    return (*ids, renderer().end_of_turn)


def play(
    replies: Sequence[str],
    *,
    seed: int = 3,
    images: bool = False,
    turn_limit: int = 5,
    group_id: int = 0,
    context: Context = FullHistory(),  # noqa: B008 (frozen)
) -> Trajectory:
    """Build the trajectory of an episode with these replies, without a collector."""
    environment, turns = Countdown(images, turn_limit), []
    observation = environment.reset(seed)
    conversation = Conversation(renderer(images), context, environment.system_prompt())
    prompt = conversation.ask(observation)
    for text in replies:
        reply = environment.format.parse(text)
        result = environment.step(reply)
        ids = encode_reply(text)
        logprobs = tuple(-0.5 - place / 100 for place in range(len(ids)))
        turns.append(
            Turn(
                observation,
                prompt,
                ids,
                logprobs,
                reply,
                result.reward,
                "stop",
                result.metrics,
                policy_version=7,
            )
        )
        conversation.reply(ids)
        observation = result.observation
        prompt = conversation.ask(observation)
    over = environment.left == 0
    return Trajectory(
        environment="toy",
        seed=seed,
        group_id=group_id,
        turns=tuple(turns),
        stop="terminated" if over else "truncated",
        final_observation=observation,
        end=None if over else prompt,
    )


def make_countdown() -> Environment:
    """A function may stand where a configuration names an environment's class."""
    return Countdown(turn_limit=2)
