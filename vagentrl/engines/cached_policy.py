"""A Hugging Face policy with a key-value cache that persists over the turns of an episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vagentrl.engines.base import GenerationRequest, Vocabulary
from vagentrl.engines.kv_cache import ATTENTION
from vagentrl.engines.positions import image_spans, mrope_positions
from vagentrl.engines.sessions import Session, Sessions
from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class CachedPolicy:
    """A Hugging Face policy and the key-value cache of each session.

    Every token of an episode is read once: a new turn reads only the tokens it adds.

    Args:
        policy: A decoder language model, or a Qwen2-VL, 2.5-VL or 3-VL.
        vocabulary: Encodes the images.
        max_sessions: Maximum number of sessions in the cache.
    """

    def __init__(self, policy: PreTrainedModel, vocabulary: Vocabulary, max_sessions: int) -> None:
        _check_attention(policy.config.get_text_config(), vocabulary.context_length)
        self.policy = policy
        self.vocabulary = vocabulary
        self.sessions = Sessions(max_sessions, vocabulary.context_length)
        self.device = next(policy.parameters()).device
        self.image_token_id, self.merge_size = image_layout(policy.config)

    @contextmanager
    def sampling_mode(self) -> Iterator[None]:
        """Switch to evaluation mode and the cache's attention; restore both on exit."""
        training = [module for module in self.policy.modules() if module.training]
        config = self.policy.config.get_text_config()
        attention = config._attn_implementation
        self.policy.eval()
        config._attn_implementation = ATTENTION
        try:
            yield
        finally:
            config._attn_implementation = attention
            for module in training:
                module.training = True

    def unread(self, request: GenerationRequest) -> int:
        """Number of tokens of the request's context that are not in the cache."""
        session = self.sessions.find(request.session)
        shared = session.shared_with(request)[0] if session else 0
        return len(request.prompt_ids) - shared

    @torch.inference_mode()
    def prefill(
        self, requests: Sequence[GenerationRequest], first_slot: int
    ) -> Float[Tensor, "B V"]:
        """Read the uncached tokens of each request into consecutive slots from `first_slot` on.

        Returns:
            The logits of each reply's first token.
        """
        sessions = [
            self.sessions.place(request.session, first_slot + row)
            for row, request in enumerate(requests)
        ]
        for session, request in zip(sessions, requests, strict=True):
            session.truncate(*session.shared_with(request))
        starts = np.array([[len(session.ids)] for session in sessions])
        vision = self._encode_new_images(sessions, requests)

        counts = np.array([[len(request.prompt_ids)] for request in requests]) - starts
        longest = int(counts.max())
        # Pad on the left, so that every row ends in the last column.
        ids = np.full((len(requests), longest), 1 if self.image_token_id == 0 else 0)
        positions = np.zeros((self._axes, len(requests), longest), dtype=np.int64)
        for row, (session, request) in enumerate(zip(sessions, requests, strict=True)):
            count = int(counts[row, 0])
            located = self._locate(session, request)
            ids[row, -count:] = request.prompt_ids[-count:]
            positions[:, row, -count:] = located[:, -count:]
            session.ids.extend(request.prompt_ids[-count:])
            session.position = int(located.max()) + 1
        # The padding goes to the cells after the row's tokens, where later tokens overwrite it.
        cells = starts + (np.arange(longest) - (longest - counts)) % longest
        return self._forward(ids, positions, cells, first_slot, **vision)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int]) -> Float[Tensor, "B V"]:
        """Read one token in each of the first slots and return the next token's logits."""
        sessions = self.sessions.first(len(tokens))
        cells = np.array([[len(session.ids)] for session in sessions])
        positions = np.array([[session.position] for session in sessions])
        for session, token in zip(sessions, tokens, strict=True):
            session.ids.append(token)
            session.position += 1
        positions = np.repeat(positions[None], self._axes, axis=0)
        return self._forward(np.array(tokens)[:, None], positions, cells, first_slot=0)

    @property
    def _axes(self) -> int:
        return 1 if self.image_token_id is None else 3

    def _forward(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        cells: np.ndarray,
        first_slot: int,
        **vision: Tensor,
    ) -> Tensor:
        length = int(cells.max()) + 1
        written = torch.from_numpy(cells).to(self.device)
        places = torch.from_numpy(positions).to(self.device)
        self.sessions.cache.prepare(first_slot, written, length)
        output: Any = self.policy(
            input_ids=torch.from_numpy(ids).to(self.device),
            attention_mask=torch.arange(length, device=self.device) <= written[:, None, :, None],
            position_ids=places if self._axes > 1 else places[0],
            past_key_values=self.sessions.cache,
            use_cache=True,
            logits_to_keep=1,
            **vision,
        )
        return output.logits[:, -1]

    def _encode_new_images(
        self, sessions: Sequence[Session], requests: Sequence[GenerationRequest]
    ) -> dict[str, Tensor]:
        fresh = [
            request.images[len(session.images) :]
            for session, request in zip(sessions, requests, strict=True)
        ]
        images = [image for row in fresh for image in row]
        if not images:
            return {}
        vision = self.vocabulary.encode_images(images).to(self.device).model_inputs()
        # One grid per occurrence: an image that is shown twice has two.
        grids = iter(vision["image_grid_thw"].tolist())
        for session, row in zip(sessions, fresh, strict=True):
            session.images.extend(row)
            session.grids.extend(tuple(next(grids)) for _ in row)
        return vision

    def _locate(self, session: Session, request: GenerationRequest) -> Int[np.ndarray, "axes T"]:
        """Return the position of every token of the context and record the image spans."""
        if self.image_token_id is None:
            return np.arange(len(request.prompt_ids))[None]
        context = (request.prompt_ids, self.image_token_id, session.grids, self.merge_size)
        session.spans = image_spans(*context)
        return mrope_positions(*context)


def _check_attention(config: PreTrainedConfig, context_length: int) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) or context_length
    if kinds - {"full_attention", "sliding_attention"} or window < context_length:
        raise ConfigError(
            f"the policy's layers are {sorted(kinds)} with an attention window of {window} tokens "
            f"and the context is {context_length} tokens; TransformersEngine always attends to "
            "the whole context: shorten the context, switch the window off in the model's "
            "configuration, or use VLLMEngine"
        )


def image_layout(config: Any) -> tuple[int | None, int]:
    """Return the image token's id and the merge size (patches per token along each side).

    A text model gives ``(None, 1)``.
    """
    if "vision_config" not in config.sub_configs:
        return None, 1
    if "mrope_section" not in config.get_text_config().rope_parameters:
        raise ConfigError(
            f"the positions of images in {config.model_type} are not supported; only mrope is "
            "(Qwen2-VL, 2.5-VL, 3-VL): use one of those models"
        )
    return config.image_token_id, config.vision_config.spatial_merge_size
