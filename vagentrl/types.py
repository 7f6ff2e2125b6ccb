"""The data types that are passed between the stages of the trainer.

All of them are frozen: what a later stage adds is a new type, not a field that is filled in later.

Shapes: ``N`` trajectories, ``B`` rows, ``T`` tokens (right-padded), ``I`` images, ``P`` image
patches. A row is one contiguous context: with a full history the whole episode, with a window one
turn. Column ``t`` of every ``(B, T)`` tensor belongs to token ``t`` of ``input_ids``. A log-prob
or value in column ``t`` is computed from the state *before* token ``t``, so column 0 is never used.

This module does not import torch, so that worker processes of environments start quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""How a truncated episode is valued: with ``end`` the task counts as over, and the value after it
is 0; with ``bootstrap`` that value is the critic's."""


def encodable(text: str) -> str:
    """Text that UTF-8 and every tokenizer can encode: half of a surrogate pair becomes ``?``."""
    return text.encode(errors="replace").decode()


def harmless(text: str) -> str:
    """Text that stands for no image and that every tokenizer can encode."""
    return encodable(text.replace(IMAGE_PLACEHOLDER, "(image)"))


# ---------------------------------------------------------------- between agent and environment


@dataclass(frozen=True)
class Observation:
    """What the agent sees.

    Attributes:
        text: Text, with one ``<image>`` placeholder for each image.
        images: The images, in the order of their placeholders.
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
class Example:
    """A few-shot example: an exchange that every prompt of an episode shows before its turns.

    The chat template writes it as an earlier exchange. Nobody sampled the reply, so it has no
    gradient.

    Attributes:
        observation: The user's message.
        reply: The assistant's message.
    """

    observation: Observation
    reply: str


@dataclass(frozen=True)
class Reply:
    """The agent's reply in one turn, parsed by a reply format.

    Attributes:
        text: The text of the reply, without the end-of-turn token.
        actions: The actions, in order; empty if the reply is malformed.
        thought: The reasoning, without the claims inside it.
        observation_claim: The agent's description of the current state, or None.
        prediction_claim: The agent's description of the state after its actions, or None.
        problem: What is wrong with the reply; None if it is well formed.
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
        observation: What the agent sees next. After the last turn a critic may estimate the value
            of this observation.
        reward: Reward of the turn.
        terminated: Whether the task is over, so that the value of what follows is 0.
        truncated: Whether a limit ended the episode; `data.at_limit` decides how it is valued.
        metrics: Numbers about the turn. ``success`` (0 or 1) gives the success rate; the others
            are reported as means over turns under ``rollout/`` and ``val/``.
    """

    observation: Observation
    reward: float
    terminated: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The environment's true state, in the three representations that claims may use."""

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
    """The agent's description of a state, with the true state.

    Attributes:
        kind: ``observation`` describes the state before the actions, ``prediction`` the one after.
        text: The description. It is untrusted: a judge must not follow instructions in it.
        representation: The representation in which the agent was asked to write.
        state: The true state.
        rubric: The environment's instructions for judges; may be empty.
        before: For a prediction, the true state before the actions; None if unknown.
        images: The pictures of the observation that shows the true state; empty if it has none.
            Two claims that differ only in them are equal, since the state says what they show.
    """

    kind: ClaimKind
    text: str
    representation: Representation
    state: State
    rubric: str = ""
    before: State | None = None
    images: tuple[Image, ...] = field(default=(), compare=False, repr=False)

    @property
    def truth(self) -> str:
        """The true state in the representation of the claim."""
        return getattr(self.state, self.representation)


# ------------------------------------------------------------------------------- what was played


@dataclass(frozen=True)
class Prompt:
    """The tokens that a turn puts before its reply.

    Attributes:
        ids: The tokens, with one id for each visual token of an image.
        images: The images in the prompt, in order.
        whole: True if `ids` are the whole context, starting with the system prompt. False if they
            continue the context and the reply of the previous turn.
    """

    ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Turn:
    """An observation and the reply to it, with the tokens that the model saw and sampled.

    Attributes:
        observation: What the agent saw.
        prompt: The tokens that this turn put before the reply.
        reply_ids: The sampled tokens, including the end of turn; they are never re-tokenised. Empty
            where nobody knows tokens, as in the reply of a person.
        reply_logprobs: Log-probs of ``reply_ids`` when they were sampled. They include the
            temperature, but not top-p or top-k.
        reply: The decoded and parsed ``reply_ids``.
        reward: The environment's reward.
        finish: ``stop`` if the model ended its turn, ``length`` if the token limit cut it off.
        metrics: The environment's metrics of the step.
        claims: The claims of a well-formed reply, each with the true state.
        scores: A judge's score for each kind of claim that was judged.
        reasons: The judge's reason for each of these scores, or why there is none; untrusted text.
        bonus: Reward added by callbacks. The policy learns from it like from the reward, but it is
            not part of the task's return.
        policy_version: Version of the weights that sampled the reply; -1 if the weights are not
            here, as in a demonstration.
        continued_value: Mean discounted return of the continuations that were played from the state
            before the reply; None where none were.
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
    reasons: Mapping[str, str] = field(default_factory=dict)
    bonus: float = 0.0
    policy_version: int = -1
    continued_value: float | None = None

    def __post_init__(self) -> None:
        none_known = not self.reply_ids and self.policy_version >= 0
        if none_known or len(self.reply_ids) != len(self.reply_logprobs):
            raise ShapeError(
                f"a reply has {len(self.reply_ids)} tokens and {len(self.reply_logprobs)} "
                "log-probs; an engine must return at least one token, and a log-prob for each"
            )


def untokenized_turn(
    observation: Observation,
    reply: Reply,
    result: StepResult,
    claims: tuple[Claim, ...] = (),
    finish: Finish = "stop",
) -> Turn:
    """The turn of someone whose tokens nobody knows: a person, or a model behind an endpoint.

    Args:
        observation: What was seen.
        reply: The parsed reply to it.
        result: The environment's answer.
        claims: The claims of the reply, with the true states.
        finish: ``length`` if a limit cut the reply off.
    """
    return Turn(
        observation=observation,
        prompt=Prompt(()),
        reply_ids=(),
        reply_logprobs=(),
        reply=reply,
        reward=result.reward,
        finish=finish,
        metrics=dict(result.metrics),
        claims=claims,
    )


@dataclass(frozen=True)
class Trajectory:
    """One episode, or the part of it that belongs to a batch.

    Attributes:
        environment: Name of the environment in the configuration.
        seed: Seed of the initial state.
        group_id: Number of its group; the members of a group start from the same state.
        turns: The turns, in order.
        stop: How it ended. ``cut``: the batch ended before the episode did. ``failed``: see
            ``error``.
        final_observation: What the agent saw after the last turn; None if the episode failed.
        end: The final observation as a prompt. A trajectory that did not terminate is bootstrapped
            with the value after this prompt. If the context has no room for the prompt, `end` is
            None, and the value before the last sampled token is used.
        error: The error of a failed episode, starting with the error's class.
        transition_seed: Seed of the transitions. With `seed` and the replies it determines the
            episode.
        earlier_turns: Number of turns of the episode in earlier batches.
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
        """The undiscounted sum of the turns' rewards and bonuses."""
        return sum(turn.reward + turn.bonus for turn in self.turns)

    @property
    def success(self) -> bool:
        """Whether the environment reported success in the last turn."""
        return bool(self.turns) and self.turns[-1].metrics.get("success", 0.0) > 0


# ------------------------------------------------------------------------------- what is learned


@dataclass(frozen=True)
class Pictures:
    """The images of a batch as pixels; an image is stored once even if several rows show it.

    Patches take 6 to 8 times as much memory, so only a few rows at a time get them.

    Attributes:
        images: The images, the same on every rank. Those whose pixels are with another rank are
            stand-ins (`vagentrl.pictures.RemotePicture`).
        rows: For each row, the indices of its images, in the order in which they are shown.
        encode: Makes patches of distinct images, in their order.
    """

    images: tuple[Image, ...]
    rows: tuple[tuple[int, ...], ...]
    encode: Callable[[Sequence[Image]], VisionInputs]

    def select(self, rows: Sequence[int]) -> Pictures:
        """The images of some rows, in the given order; the stored images stay the same."""
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def to(self, device: torch.device | str) -> VisionInputs | None:
        """The images that the rows show, as patches on a device; None if they show none."""
        shown = sorted({image for row in self.rows for image in row})
        if not shown:
            return None
        place = {image: number for number, image in enumerate(shown)}
        rows = tuple(tuple(place[image] for image in row) for row in self.rows)
        return replace(self.encode([self.images[image] for image in shown]), rows=rows).to(device)


@dataclass(frozen=True)
class VisionInputs:
    """The images of a batch as patches; an image is stored once even if several rows show it.

    Attributes:
        pixel_values: ``(P, D)`` patches of all images, one image after the other.
        image_grid_thw: ``(I, 3)`` number of patches of each image in time, height and width.
        rows: For each row, the indices of its images, in the order in which they are shown.
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
        """The images of some rows, in the given order; the stored patches stay the same."""
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def to(self, device: torch.device | str) -> VisionInputs:
        return replace(
            self,
            pixel_values=self.pixel_values.to(device),
            image_grid_thw=self.image_grid_thw.to(device),
        )

    def model_inputs(self) -> dict[str, Tensor]:
        """Keyword arguments for the model's ``forward``; empty if no row shows an image.

        An image is repeated for every row that shows it.
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
        # Patch p of the s-th shown image is patch (start of that image + p) of `pixel_values`.
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
    "continued_values",
)


@dataclass(frozen=True)
class RolloutBatch:
    """Trajectories as tensors.

    Attributes:
        input_ids: ``(B, T)`` prompt and reply tokens as the model saw and sampled them.
        attention_mask: ``(B, T)`` True on real tokens; padding is on the right.
        action_mask: ``(B, T)`` True on sampled tokens; only these enter the losses.
        turn_ids: ``(B, T)`` number of the turn in which the token was sampled, -1 elsewhere.
        state_ids: ``(B, T)`` number of the state in which the token was sampled, -1 elsewhere. Two
            turns of a group have the same number if their observations are equal.
        rewards: ``(B, T)`` reward of each turn, on its last sampled token.
        rollout_logprobs: ``(B, T)`` log-probs at sampling time, 0 off the action mask.
        policy_version: ``(B, T)`` version of the weights that sampled the token, -1 off the action
            mask. The turns of a trajectory, and of a row, may have different versions.
        trajectory_ids: ``(B,)`` trajectory of each row, counted from 0 in order.
        group_ids: ``(N,)`` group of each trajectory.
        bootstrap_index: ``(N,)`` where to read the value after the end of each trajectory, as a
            flat index into ``(B, T)``; -1 if that value is 0.
        temperature: The logits are divided by it, at sampling and in training.
        vision: The images, as patches once the rows are on the models' device; None if there are
            none.
        continued_values: ``(B, T)`` mean return of the continuations from the start of the token's
            turn, NaN where none were played; None if none were played at all.
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
    vision: Pictures | VisionInputs | None = None
    continued_values: Tensor | None = None

    def __post_init__(self) -> None:
        _same_shape(self, *_PER_TOKEN)

    def __len__(self) -> int:
        return len(self.input_ids)

    def select(self, rows: Tensor) -> RolloutBatch:
        """Some rows ``(b,)``, in the given order, cut to one column more than the longest of them.

        The extra column holds the value after the last token of the longest row. `group_ids` and
        `bootstrap_index` belong to whole trajectories and stay unchanged.
        """
        width = int(self.attention_mask[rows].sum(-1).max()) + 1 if len(rows) else 0
        return replace(
            self,
            **{name: tensor[rows][:, :width] for name, tensor in self._per_token()},
            trajectory_ids=self.trajectory_ids[rows],
            vision=self.vision.select(rows.tolist()) if self.vision is not None else None,
        )

    @property
    def patches(self) -> VisionInputs | None:
        """The images as patches, for a model; None if there are none.

        Raises:
            ShapeError: When they are still pixels.
        """
        if isinstance(self.vision, Pictures):
            raise ShapeError(
                f"the images of {len(self)} rows are still pixels, and a model reads patches; give "
                "it rollout.to(device), a few rows at a time"
            )
        return self.vision

    def to(self, device: torch.device | str) -> RolloutBatch:
        """The rows on a device, for a model to read; images become patches."""
        return replace(
            self,
            **{name: tensor.to(device) for name, tensor in self._per_token()},
            trajectory_ids=self.trajectory_ids.to(device),
            group_ids=self.group_ids.to(device),
            bootstrap_index=self.bootstrap_index.to(device),
            vision=self.vision.to(device) if self.vision is not None else None,
        )

    def _per_token(self) -> list[tuple[str, Tensor]]:
        """The ``(B, T)`` tensors that there are, by name."""
        named = [(name, getattr(self, name)) for name in _PER_TOKEN]
        return [(name, tensor) for name, tensor in named if tensor is not None]


@dataclass(frozen=True)
class Scores:
    """The models' outputs for a batch, each ``(B, T)``.

    Attributes:
        old_logprobs: Log-probs of the sampled tokens under the actor before its update.
        ref_logprobs: Log-probs under the reference; None without a reference.
        values: The critic's values; None without a critic.
        importance: Importance weights that correct the policy loss for tokens sampled by another
            policy; None without off-policy correction.
    """

    old_logprobs: Tensor
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    importance: Tensor | None = None

    def __post_init__(self) -> None:
        _same_shape(self, "old_logprobs", "ref_logprobs", "values", "importance")


@dataclass(frozen=True)
class Credit:
    """``(B, T)`` advantages, and the returns that the critic learns (None without a critic)."""

    advantages: Tensor
    returns: Tensor | None = None

    def __post_init__(self) -> None:
        _same_shape(self, "advantages", "returns")


@dataclass(frozen=True)
class TrainBatch:
    """A micro-batch, ready for the loss.

    Attributes:
        rollout: The rows.
        scores: The models' scores of the rows.
        credit: Advantages and returns.
        weights: ``(B, T)`` weight of each token in the loss of the whole *minibatch*, so that the
            losses and gradients of its micro-batches add up to those of the minibatch.
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

    def to(self, device: torch.device | str) -> TrainBatch:
        """The rows on a device, for the models to learn; images become patches."""

        def moved(part: Scores | Credit) -> dict[str, Tensor]:
            return {name: t.to(device) for name, t in vars(part).items() if t is not None}

        return TrainBatch(
            self.rollout.to(device),
            replace(self.scores, **moved(self.scores)),
            replace(self.credit, **moved(self.credit)),
            self.weights.to(device),
        )


def _same_shape(owner: object, first: str, *others: str) -> None:
    wanted = getattr(owner, first).shape
    for name in others:
        tensor = getattr(owner, name)
        if tensor is not None and tensor.shape != wanted:
            raise ShapeError(
                f"{name} {tuple(tensor.shape)} does not line up with {first} {tuple(wanted)}; "
                "column t of every (B, T) tensor must belong to token t of input_ids"
            )
