"""Every value that travels between the stages of the trainer.

All of them are frozen: a later stage is a new type, not a field that is filled in later.

Shapes: ``N`` trajectories, ``B`` rows, ``T`` tokens (right-padded), ``I`` images, ``P`` image
patches. A row is one contiguous context: the whole episode with a full history, one turn with a
window. Column ``t`` of every ``(B, T)`` tensor is about token ``t`` of ``input_ids``; a log-prob or
value in column ``t`` belongs to the state *before* token ``t`` (so column 0 never counts).

This module does not import torch: environments run in worker processes that need not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from PIL.Image import Image

from vagentrl.errors import PartError, ShapeError, seen

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IMAGE_PLACEHOLDER = "<image>"

Finish = Literal["stop", "length"]
Representation = Literal["natural", "structured", "symbolic"]
ClaimKind = Literal["observation", "prediction"]
Stop = Literal["terminated", "truncated", "cut", "failed"]
AtLimit = Literal["end", "bootstrap"]
"""What a limit is to a truncated episode: the end of the task, or a cut with a value after it."""


# ---------------------------------------------------------------- between agent and environment


@dataclass(frozen=True)
class Observation:
    """What the agent sees: text with one ``<image>`` placeholder per image, in reading order.

    Attributes:
        text: What the environment shows.
        images: Its images.
        hint: Advice from a second model, shown on a line of its own after the text. It is not part
            of the state: observations that differ only in the hint count as the same state.
    """

    text: str
    images: tuple[Image, ...] = ()
    hint: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise PartError(f"an observation's text is {seen(self.text)}; give a string")
        if not isinstance(self.images, tuple):
            raise PartError(
                f"an observation's images are {seen(self.images)}; give a tuple, which is (image,) "
                "for a single one"
            )
        for image in self.images:
            if not isinstance(image, Image):
                raise PartError(
                    f"an observation's image is {seen(image)}; give a PIL image, such as "
                    "PIL.Image.fromarray(pixels) with uint8 pixels (height, width, 3)"
                )
        placeholders = self.text.count(IMAGE_PLACEHOLDER)
        if placeholders != len(self.images):
            raise ShapeError(
                f"an observation has {placeholders} {IMAGE_PLACEHOLDER} placeholders but "
                f"{len(self.images)} images; write one placeholder where each image belongs. "
                f"Text: {self.text[:80]!r}"
            )


@dataclass(frozen=True)
class Reply:
    """One turn's text, parsed by a reply format.

    Attributes:
        text: What the agent wrote, without the end-of-turn token.
        actions: The executable actions, in order; empty when the reply is malformed.
        thought: The reasoning, without the claims inside it.
        observation_claim: What the agent says it sees, or None.
        prediction_claim: What the agent says it will see next, or None.
        problem: What is wrong with the reply; None when it is well formed.
    """

    text: str
    actions: tuple[str, ...] = ()
    thought: str | None = None
    observation_claim: str | None = None
    prediction_claim: str | None = None
    problem: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.actions, tuple):
            raise PartError(
                f"a reply's actions are {seen(self.actions)}; give a tuple of strings, which is "
                "(action,) for a single one"
            )


@dataclass(frozen=True)
class StepResult:
    """The environment's answer to a reply.

    Attributes:
        observation: What the agent sees next. At the end a critic may read the value after it.
        reward: Reward of the turn.
        terminated: The task is over: nothing of value can follow.
        truncated: A limit ended the episode. `data.at_limit` says whether what would have
            followed has value.
        metrics: Numbers about the turn. ``success`` (0 or 1) makes the success rate; the others
            are reported as means over turns under ``rollout/`` and ``val/``.
    """

    observation: Observation
    reward: float
    terminated: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The environment's true state in the three representations an agent may describe it in."""

    natural: str
    structured: str
    symbolic: str

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, str):
                raise PartError(
                    f"State.{name} is {seen(value)}; give a string, such as json.dumps(…) makes "
                    "for `structured`"
                )


@dataclass(frozen=True)
class Claim:
    """What an agent says about the state, and the truth.

    Attributes:
        kind: ``observation`` is about the state before the action, ``prediction`` after it.
        text: What the agent wrote; nothing in it may be taken for an instruction.
        representation: How it was asked to write.
        state: The true state.
        rubric: What the environment says makes a claim right; empty without one.
    """

    kind: ClaimKind
    text: str
    representation: Representation
    state: State
    rubric: str = ""

    @property
    def truth(self) -> str:
        """The true state in the claim's own representation."""
        return getattr(self.state, self.representation)


# ------------------------------------------------------------------------------- what was played


@dataclass(frozen=True)
class Prompt:
    """The tokens that a turn puts before its reply.

    Attributes:
        ids: The tokens; an image takes as many of them as it has visual tokens.
        images: The images that the tokens show, in reading order.
        whole: Whether `ids` are the whole context, system prompt included. Otherwise they continue
            the context and the reply of the turn before.
    """

    ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Turn:
    """An observation and the reply to it, token by token as the model saw and sampled them.

    Attributes:
        observation: What the agent saw.
        prompt: The tokens that the observation put before the reply.
        reply_ids: Exactly the sampled tokens, end of turn included; never re-tokenised.
        reply_logprobs: Log-probs of ``reply_ids`` when they were sampled, under the tempered but
            not truncated (top-p, top-k) distribution.
        reply: ``reply_ids`` as text, parsed.
        reward: The environment's reward.
        finish: ``stop`` when the model ended its turn, ``length`` when the token limit did.
        metrics: The environment's metrics of the step.
        claims: What a well-formed reply says about the state, each beside the truth.
        scores: Score of each kind of claim that was judged.
        bonus: What callbacks added to the reward. It is learned from like the reward, but is not
            part of the task's return.
        policy_version: Version of the weights that sampled the reply; -1 when no policy did, as in
            a demonstration.
    """

    observation: Observation
    prompt: Prompt
    reply_ids: tuple[int, ...]
    reply_logprobs: tuple[float, ...]
    reply: Reply
    reward: float
    finish: Finish
    metrics: Mapping[str, float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    bonus: float = 0.0
    policy_version: int = -1

    def __post_init__(self) -> None:
        if not self.reply_ids or len(self.reply_ids) != len(self.reply_logprobs):
            raise ShapeError(
                f"a reply has {len(self.reply_ids)} tokens and {len(self.reply_logprobs)} "
                "log-probs; an engine gives at least one token, and a log-prob for each"
            )


@dataclass(frozen=True)
class Trajectory:
    """One episode, or the part of it that belongs to a batch.

    Attributes:
        environment: Name of the environment in the configuration.
        seed: Seed of the initial state.
        group_id: Members of a group started from the same state.
        turns: The turns, in order.
        stop: How it ended; ``cut`` when the batch ended first, ``failed`` with an ``error``.
        final_observation: What the agent saw after the last turn. None when the episode failed.
        end: The final observation as a prompt. A trajectory that did not terminate is bootstrapped
            with the value after it, or, when `end` is None because the context has no room for it,
            with the value before the last sampled token.
        error: What failed, with the boundary's name.
        transition_seed: Seed of the transitions. With `seed` and the replies it replays the
            episode.
        earlier_turns: Number of turns before these, which earlier batches learned from.
        earlier_reward: The sum of the rewards of those earlier turns.
    """

    environment: str
    seed: int
    group_id: int
    turns: tuple[Turn, ...]
    stop: Stop
    final_observation: Observation | None = None
    end: Prompt | None = None
    error: str | None = None
    transition_seed: int = 0
    earlier_turns: int = 0
    earlier_reward: float = 0.0

    @property
    def total_reward(self) -> float:
        """Undiscounted return of these turns: the sum of their rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def learned_reward(self) -> float:
        """The sum of the turns' rewards and of what callbacks added to them."""
        return sum(turn.reward + turn.bonus for turn in self.turns)

    @property
    def success(self) -> bool:
        """Whether the environment reported success in the last turn."""
        return bool(self.turns) and self.turns[-1].metrics.get("success", 0.0) > 0


# ------------------------------------------------------------------------------- what is learned


@dataclass(frozen=True)
class VisionInputs:
    """Images as the model's ``forward`` wants them, each stored once however many rows show it.

    Attributes:
        pixel_values: ``(P, D)`` patches of all images, one image after the other.
        image_grid_thw: ``(I, 3)`` patches of each image in time, height and width.
        rows: For each row, the indices of the images it shows, in reading order.
    """

    pixel_values: Tensor
    image_grid_thw: Tensor
    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        patches = int(self.image_grid_thw.prod(-1).sum())
        if patches != len(self.pixel_values):
            raise ShapeError(
                f"image_grid_thw counts {patches} patches but pixel_values holds "
                f"{len(self.pixel_values)}; both must come from one image processor call"
            )

    def select(self, rows: Sequence[int]) -> VisionInputs:
        """The same images for some of the rows, in the given order."""
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def to(self, device: torch.device | str) -> VisionInputs:
        return replace(
            self,
            pixel_values=self.pixel_values.to(device),
            image_grid_thw=self.image_grid_thw.to(device),
        )

    def model_inputs(self) -> dict[str, Tensor]:
        """Keyword arguments of ``forward``: every showing of an image, row after row.

        Empty when no row shows an image.
        """
        shown = [image for row in self.rows for image in row]
        if not shown:
            return {}
        if shown == list(range(len(self.image_grid_thw))):  # each image once, in order
            return {"pixel_values": self.pixel_values, "image_grid_thw": self.image_grid_thw}
        sizes = self.image_grid_thw.prod(-1)
        starts = sizes.cumsum(0) - sizes
        index = sizes.new_tensor(shown)
        lengths = sizes[index]
        # patch p of showing s is patch (start of its image + p) of the store
        within = lengths.new_ones(int(lengths.sum())).cumsum(0) - 1
        offset = starts[index] - (lengths.cumsum(0) - lengths)
        patches = within + offset.repeat_interleave(lengths)
        return {
            "pixel_values": self.pixel_values[patches],
            "image_grid_thw": self.image_grid_thw[index],
        }


_PER_TOKEN = (
    "input_ids",
    "attention_mask",
    "action_mask",
    "turn_ids",
    "state_ids",
    "rewards",
    "rollout_logprobs",
    "policy_version",
)


@dataclass(frozen=True)
class RolloutBatch:
    """Trajectories as tensors.

    Attributes:
        input_ids: ``(B, T)`` prompt and reply tokens as the model saw and sampled them.
        attention_mask: ``(B, T)`` True on real tokens; padding is on the right.
        action_mask: ``(B, T)`` True on sampled tokens, the only ones that learn.
        turn_ids: ``(B, T)`` number of the turn that sampled the token, -1 elsewhere.
        state_ids: ``(B, T)`` on sampled tokens, the same number for all turns of a group in which
            the agent saw the same; -1 elsewhere.
        rewards: ``(B, T)`` reward of each turn, on its last sampled token.
        rollout_logprobs: ``(B, T)`` log-probs at sampling time, 0 off the action mask.
        policy_version: ``(B, T)`` version of the weights that sampled the token, -1 off the action
            mask. A trajectory, and a row, may have turns of several versions.
        trajectory_ids: ``(B,)`` trajectory of each row, counted from 0 in order.
        group_ids: ``(N,)`` group of each trajectory.
        bootstrap_index: ``(N,)`` where the value after the end is read, as a flat index into
            ``(B, T)``; -1 where nothing of value follows.
        temperature: Divided the logits at sampling, and divides them in training as well.
        vision: Images, or None without any.
    """

    input_ids: Tensor
    attention_mask: Tensor
    action_mask: Tensor
    turn_ids: Tensor
    state_ids: Tensor
    rewards: Tensor
    rollout_logprobs: Tensor
    policy_version: Tensor
    trajectory_ids: Tensor
    group_ids: Tensor
    bootstrap_index: Tensor
    temperature: float = 1.0
    vision: VisionInputs | None = None

    def __post_init__(self) -> None:
        _same_shape(self, *_PER_TOKEN)

    def __len__(self) -> int:
        return len(self.input_ids)

    def select(self, rows: Tensor) -> RolloutBatch:
        """Some rows ``(b,)``, in the given order, cut one column after the longest of them.

        The value after the last token of the longest row is in that column. `group_ids` and
        `bootstrap_index` are about whole trajectories and stay as they are.
        """
        width = int(self.attention_mask[rows].sum(-1).max()) + 1 if len(rows) else 0
        return replace(
            self,
            **{name: getattr(self, name)[rows][:, :width] for name in _PER_TOKEN},
            trajectory_ids=self.trajectory_ids[rows],
            vision=self.vision.select(rows.tolist()) if self.vision is not None else None,
        )

    def to(self, device: torch.device | str) -> RolloutBatch:
        names = (*_PER_TOKEN, "trajectory_ids", "group_ids", "bootstrap_index")
        return replace(
            self,
            **{name: getattr(self, name).to(device) for name in names},
            vision=self.vision.to(device) if self.vision is not None else None,
        )


@dataclass(frozen=True)
class Scores:
    """What the models say about a batch, each ``(B, T)``.

    Attributes:
        old_logprobs: Log-probs that the actor gave the sampled tokens before it learned from them.
        ref_logprobs: Log-probs under the reference; None without a reference.
        values: The critic's values; None without a critic.
        importance: Weights that correct the policy loss for tokens that another policy sampled;
            None without off-policy correction.
    """

    old_logprobs: Tensor
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    importance: Tensor | None = None

    def __post_init__(self) -> None:
        _same_shape(self, "old_logprobs", "ref_logprobs", "values", "importance")


@dataclass(frozen=True)
class Credit:
    """``(B, T)`` advantages, and the returns that the critic regresses to (None without one)."""

    advantages: Tensor
    returns: Tensor | None = None

    def __post_init__(self) -> None:
        _same_shape(self, "advantages", "returns")


@dataclass(frozen=True)
class TrainBatch:
    """A micro-batch, ready for the loss.

    Attributes:
        rollout: Its rows.
        scores: The models' scores of them.
        credit: Advantages and returns.
        weights: ``(B, T)`` weight of each token in the loss of the *minibatch* that the rows come
            from, so that the losses and gradients of its micro-batches add up to its own.
    """

    rollout: RolloutBatch
    scores: Scores
    credit: Credit
    weights: Tensor

    def select(self, rows: Tensor) -> TrainBatch:
        """Some rows ``(b,)``, in the given order; see `RolloutBatch.select`."""
        rollout = self.rollout.select(rows)
        width = rollout.input_ids.shape[1]

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows][:, :width]

        scores, credit = self.scores, self.credit
        return TrainBatch(
            rollout,
            Scores(
                scores.old_logprobs[rows][:, :width],
                cut(scores.ref_logprobs),
                cut(scores.values),
                cut(scores.importance),
            ),
            Credit(credit.advantages[rows][:, :width], cut(credit.returns)),
            self.weights[rows][:, :width],
        )


def _same_shape(owner: object, first: str, *others: str) -> None:
    wanted = getattr(owner, first).shape
    for name in others:
        tensor = getattr(owner, name)
        if tensor is not None and tensor.shape != wanted:
            raise ShapeError(
                f"{name} {tuple(tensor.shape)} does not line up with {first} {tuple(wanted)}; "
                "every column of a (B, T) tensor is about the same token of input_ids"
            )
