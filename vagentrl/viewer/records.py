"""Episodes as rows of Parquet files, for people who look at them.

A row is one trajectory with everything that is known about it. `schema` lists its fields; the
documentation of the viewer explains them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from vagentrl.environment import Split
from vagentrl.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from PIL.Image import Image

    from vagentrl.types import Observation, Trajectory, Turn

FORMAT = "2"
"""Version of the fields that are written."""
READABLE = ("1", FORMAT)
"""Versions that can be read; a reader refuses files of another one."""
FORMAT_KEY = b"vagentrl.trajectories"
"""Where a file's metadata hold the version."""

StoredSplit = Literal["train", "val", "test"]
"""Training episodes, and those of ``val`` (validations) and ``test``."""

SPLITS: Mapping[Split, StoredSplit] = {"train": "train", "validation": "val", "test": "test"}
"""What the splits of seeds are called in a row."""

_PNG_MODES = ("1", "L", "LA", "RGB", "RGBA")


@dataclass(frozen=True)
class TokenScores:
    """What the models said about the sampled tokens of one turn, and their credit.

    Each is a list with a number for each token of the reply, or None if it was not computed.

    Attributes:
        actor_logprobs: Log-probs under the actor before its update.
        reference_logprobs: Log-probs under the reference.
        entropies: Entropy of the actor's distribution before its update, in nats.
        values: The critic's values.
        advantages: Advantages, as the loss gets them.
    """

    actor_logprobs: list[float] | None = None
    reference_logprobs: list[float] | None = None
    entropies: list[float] | None = None
    values: list[float] | None = None
    advantages: list[float] | None = None


def load_pyarrow() -> ModuleType:
    """Import pyarrow with its Parquet part.

    Raises:
        ConfigError: When pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            "trajectories are stored as Parquet files, which need pyarrow: "
            "pip install 'vagentrl[viewer]'"
        ) from error
    return pyarrow


def schema(version: str = FORMAT) -> Any:
    """The fields of a row, as a pyarrow schema with the version in its metadata."""
    pa = load_pyarrow()
    text, texts, number = pa.string(), pa.list_(pa.string()), pa.float64()
    numbers, ids = pa.list_(pa.float32()), pa.list_(pa.int32())
    claim = pa.struct(
        [("kind", text), ("text", text), ("truth", text), ("score", number), ("reason", text)]
    )
    turn = pa.struct(
        [
            *[(name, text) for name in ("observation", "hint", "reply", "thought", "problem")],
            *[(name, texts) for name in ("images", "actions")],
            ("finish", text),
            *[(name, number) for name in ("reward", "bonus", "continued_value")],
            ("metrics", pa.map_(text, number)),
            ("claims", pa.list_(claim)),
            ("policy_version", pa.int64()),
            ("prompt_whole", pa.bool_()),
            *[(name, ids) for name in ("prompt_ids", "reply_ids")],
            *[(name, texts) for name in ("prompt_tokens", "reply_tokens")],
            ("logprobs", numbers),
            *[(name, numbers) for name in TokenScores.__dataclass_fields__],
        ]
    )
    return pa.schema(
        [
            *[(name, text) for name in ("environment", "split", "stop", "error")],
            *[(name, pa.int64()) for name in ("iteration", "group", "member")],
            *[(name, pa.int64()) for name in ("seed", "transition_seed")],
            *[(name, pa.bool_()) for name in ("success", "learned")],
            *[(name, number) for name in ("return", "earlier_return")],
            ("earlier_turns", pa.int64()),
            *_provenance_fields(version),
            ("turns", pa.list_(turn)),
            ("final_observation", text),
            ("final_images", texts),
        ],
        metadata={FORMAT_KEY: version.encode()},
    )


def _provenance_fields(version: str) -> list[tuple[str, Any]]:
    pa = load_pyarrow()
    texts = [(name, pa.string()) for name in ("policy", "episode", "origin")]
    return [] if version == "1" else [*texts, ("origin_turn", pa.int64())]


@dataclass(frozen=True)
class Provenance:
    """Where an episode comes from that no training run has played.

    Attributes:
        policy: Name of who played it.
        episode: What tells it from all others of its folder. Of rows with the same one, the last
            counts.
        origin: The `episode` that it branches off from; None if it was played from its start.
        origin_turn: Number of turns, from the start, that are those of the origin.
    """

    policy: str
    episode: str
    origin: str | None = None
    origin_turn: int | None = None


class RowWriter:
    """Turns trajectories into rows, and collects their images, each once.

    Args:
        token_names: Returns the readable names of token ids.

    Attributes:
        rows: The rows so far.
        images: The images that the rows name, by the name of their file.
    """

    def __init__(self, token_names: Callable[[list[int]], list[str]]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.images: dict[str, Image] = {}
        self._token_names = token_names

    def add(
        self,
        trajectory: Trajectory,
        *,
        split: StoredSplit,
        iteration: int,
        member: int,
        scores: Sequence[TokenScores] | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """Add a trajectory.

        Args:
            trajectory: What was played.
            split: What it was played for.
            iteration: Number of completed iterations when it was played.
            member: Its place in its group, from 0.
            scores: For each turn what is known about its tokens; None if the trajectory was not
                learned from.
            provenance: Where it comes from; None for an episode of a run.

        Raises:
            ShapeError: When there are scores for another number of turns or tokens.
        """
        turns, end = trajectory.turns, trajectory.final_observation
        if scores is not None and len(scores) != len(turns):
            raise ShapeError(f"{len(scores)} scores do not fit {len(turns)} turns; give one each")
        every = scores or [TokenScores()] * len(turns)
        self.rows.append(
            {
                "environment": stored_text(trajectory.environment),
                "split": split,
                "stop": trajectory.stop,
                "error": None if trajectory.error is None else stored_text(trajectory.error),
                "iteration": iteration,
                "group": trajectory.group_id,
                "member": member,
                "seed": trajectory.seed,
                "transition_seed": trajectory.transition_seed,
                "success": trajectory.success,
                "learned": scores is not None,
                "return": trajectory.total_reward,
                "earlier_return": trajectory.earlier_reward,
                "earlier_turns": trajectory.earlier_turns,
                **_provenance(provenance),
                "turns": [self._turn(t, s) for t, s in zip(turns, every, strict=True)],
                "final_observation": None if end is None else stored_text(end.text),
                "final_images": [] if end is None else self._names(end),
            }
        )

    def _turn(self, turn: Turn, scores: TokenScores) -> dict[str, Any]:
        reply, prompt = turn.reply, turn.prompt
        scored = asdict(scores)
        for name, values in scored.items():
            if values is not None and len(values) != len(turn.reply_ids):
                raise ShapeError(
                    f"{len(values)} {name} do not fit a reply of {len(turn.reply_ids)} tokens"
                )
        return {
            "observation": stored_text(turn.observation.text),
            "images": self._names(turn.observation),
            "hint": stored_text(turn.observation.hint),
            "reply": stored_text(reply.text),
            "thought": None if reply.thought is None else stored_text(reply.thought),
            "actions": [stored_text(action) for action in reply.actions],
            "problem": None if reply.problem is None else stored_text(reply.problem),
            "finish": turn.finish,
            "reward": turn.reward,
            "bonus": turn.bonus,
            "continued_value": turn.continued_value,
            "metrics": [(stored_text(name), float(value)) for name, value in turn.metrics.items()],
            "claims": _claims(turn),
            "policy_version": turn.policy_version,
            "prompt_whole": prompt.whole,
            "prompt_ids": list(prompt.ids),
            "prompt_tokens": self._tokens(prompt.ids),
            "reply_ids": list(turn.reply_ids),
            "reply_tokens": self._tokens(turn.reply_ids),
            "logprobs": list(turn.reply_logprobs),
            **scored,
        }

    def _tokens(self, ids: Sequence[int]) -> list[str]:
        return [stored_text(name) for name in self._token_names(list(ids))]

    def _names(self, observation: Observation) -> list[str]:
        named = {image_name(image): image for image in observation.images}
        self.images |= named
        return [image_name(image) for image in observation.images]


def image_name(image: Image) -> str:
    """A name of a PNG file that depends only on what the image shows."""
    image = as_png_mode(image)
    digest = hashlib.blake2b(f"{image.mode} {image.size} ".encode(), digest_size=16)
    digest.update(image.tobytes())
    return f"{digest.hexdigest()}.png"


def png(image: Image) -> bytes:
    """The image as a PNG file."""
    as_png_mode(image).save(file := BytesIO(), format="PNG")
    return file.getvalue()


def as_png_mode(image: Image) -> Image:
    """The image in a mode that PNG files have and browsers show."""
    if image.mode in _PNG_MODES:
        return image
    return image.convert("RGBA" if image.mode in ("P", "PA", "La", "RGBa") else "RGB")


def _claims(turn: Turn) -> list[Mapping[str, Any]]:
    return [
        {
            "kind": claim.kind,
            "text": stored_text(claim.text),
            "truth": stored_text(claim.truth),
            "score": turn.scores.get(claim.kind),
            "reason": None if (why := turn.reasons.get(claim.kind)) is None else stored_text(why),
        }
        for claim in turn.claims
    ]


def _provenance(provenance: Provenance | None) -> dict[str, Any]:
    if provenance is None:
        return dict.fromkeys(Provenance.__dataclass_fields__)
    named = asdict(provenance)
    return {name: stored_text(v) if isinstance(v, str) else v for name, v in named.items()}


def stored_text(text: str) -> str:
    """Text that UTF-8 can hold; a lone surrogate is written as its escape sequence."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
