"""A policy that reads every token of an episode once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vagentrl.engine import GenerationRequest, Vocabulary
from vagentrl.engines.kv_cache import ATTENTION
from vagentrl.engines.positions import image_spans, mrope_positions
from vagentrl.engines.sessions import Session, Sessions
from vagentrl.errors import ConfigError, EngineError


class CachedPolicy:
    """A Hugging Face policy and what it has read of each episode.

    Args:
        policy: A decoder language model, or a Qwen2-VL, 2.5-VL or 3-VL.
        vocabulary: Encodes the images.
        max_sessions: Episodes to remember.
    """

    def __init__(self, policy: nn.Module, vocabulary: Vocabulary, max_sessions: int) -> None:
        self.policy = policy
        self.vocabulary = vocabulary
        self.sessions = Sessions(max_sessions)
        self.device = next(policy.parameters()).device
        config = policy.config
        self.text_config = config.get_text_config()
        _check_attention(self.text_config)
        self.image_token_id, self.merge_size = _image_layout(config, self.text_config)

    @contextmanager
    def sampling_mode(self) -> Iterator[None]:
        """Evaluation mode and the cache's attention; leaves the module as it was found."""
        training = [module for module in self.policy.modules() if module.training]
        attention = self.text_config._attn_implementation
        self.policy.eval()
        self.text_config._attn_implementation = ATTENTION
        try:
            yield
        finally:
            self.text_config._attn_implementation = attention
            for module in training:
                module.training = True

    def unread(self, request: GenerationRequest) -> int:
        """Tokens of the request's context that are not in the cache."""
        session = self.sessions.find(request.session)
        shared = session.shared_with(request)[0] if session else 0
        return len(request.prompt_ids) - shared

    @torch.inference_mode()
    def prefill(
        self, requests: Sequence[GenerationRequest], first_slot: int
    ) -> Float[Tensor, "B V"]:
        """Read what is new of each request's context, into slots from `first_slot` on.

        Returns:
            The logits of each reply's first token.
        """
        sessions = [
            self.sessions.seat(request.session, first_slot + row)
            for row, request in enumerate(requests)
        ]
        for session, request in zip(sessions, requests, strict=True):
            session.cut(*session.shared_with(request))
        vision = self._encode_new_images(sessions, requests)

        starts = [len(session.ids) for session in sessions]
        new = [request.prompt_ids[start:] for request, start in zip(requests, starts, strict=True)]
        longest = max(map(len, new))
        axes = 1 if self.image_token_id is None else 3
        # padding is on the left, so that every row's last token is in the last column
        ids = np.full((len(new), longest), 1 if self.image_token_id == 0 else 0)
        positions = np.zeros((axes, len(new), longest), dtype=np.int64)
        for row, (session, request) in enumerate(zip(sessions, requests, strict=True)):
            counted = self._positions(session, request)
            ids[row, longest - len(new[row]) :] = new[row]
            positions[:, row, longest - len(new[row]) :] = counted[:, starts[row] :]
            session.ids.extend(new[row])
            session.position = int(counted.max()) + 1
        # it is written behind the row's new tokens, where the row's next tokens replace it
        padding = np.array([[longest - len(row)] for row in new])
        cells = np.array(starts)[:, None] + (np.arange(longest) - padding) % longest
        width = max(starts) + longest
        return self._forward(ids, cells, positions, first_slot, width, **vision)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int]) -> Float[Tensor, "B V"]:
        """Read one more token in each of the first slots; the logits of what follows it."""
        sessions = self.sessions.first(len(tokens))
        cells = np.array([[len(session.ids)] for session in sessions])
        positions = np.array([[session.position] for session in sessions])
        axes = 1 if self.image_token_id is None else 3
        for session, token in zip(sessions, tokens, strict=True):
            session.ids.append(token)
            session.position += 1
        positions = np.broadcast_to(positions, (axes, *positions.shape))
        return self._forward(np.array(tokens)[:, None], cells, positions, 0, int(cells.max()) + 1)

    def _forward(
        self,
        ids: np.ndarray,
        cells: np.ndarray,
        positions: np.ndarray,
        first_slot: int,
        width: int,
        **vision: Tensor,
    ) -> Tensor:
        at = torch.from_numpy(cells).to(self.device)
        self.sessions.cache.aim(first_slot, at, width)
        place = torch.tensor(positions, device=self.device)
        output = self.policy(
            input_ids=torch.from_numpy(ids).to(self.device),
            attention_mask=torch.arange(width, device=self.device) <= at[:, None, :, None],
            position_ids=place[0] if len(place) == 1 else place,
            past_key_values=self.sessions.cache,
            use_cache=True,
            logits_to_keep=1,
            **vision,
        )
        return output.logits[:, -1]

    def _encode_new_images(
        self, sessions: Sequence[Session], requests: Sequence[GenerationRequest]
    ) -> dict[str, Tensor]:
        seen = [len(session.images) for session in sessions]
        fresh = [request.images[n:] for request, n in zip(requests, seen, strict=True)]
        images = [image for row in fresh for image in row]
        if not images:
            return {}
        if self.image_token_id is None:
            raise EngineError(
                f"a prompt has images but {type(self.policy).__name__} reads only text; "
                "train a vision-language model or render the observations as text"
            )
        vision = self.vocabulary.encode_images(images).to(self.device)
        grids = iter(vision.image_grid_thw.tolist())
        for session, request, row in zip(sessions, requests, fresh, strict=True):
            session.images.extend(row)
            session.grids.extend(tuple(next(grids)) for _ in row)
            session.spans = image_spans(
                request.prompt_ids, self.image_token_id, session.grids, self.merge_size
            )
        return vision.model_inputs()

    def _positions(self, session: Session, request: GenerationRequest) -> np.ndarray:
        if self.image_token_id is None:
            return np.arange(len(request.prompt_ids))[None]
        return mrope_positions(
            request.prompt_ids, self.image_token_id, session.grids, self.merge_size
        )


def _check_attention(text_config) -> None:
    kinds = set(getattr(text_config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(
            f"the policy has layers of type {sorted(kinds)}; TransformersEngine keeps a cache for "
            "full attention only: switch off the sliding window in the model's configuration, or "
            "use the vLLM engine"
        )


def _image_layout(config, text_config) -> tuple[int | None, int]:
    """The image token and the patches that make one along each side; None for a text model."""
    if "vision_config" not in config.sub_configs:
        return None, 1
    if "mrope_section" not in (text_config.rope_parameters or {}):
        raise ConfigError(
            f"{config.model_type} counts the positions of images in a way that "
            "TransformersEngine does not know (Qwen2-VL, 2.5-VL and 3-VL do it by mrope); use the "
            "vLLM engine"
        )
    return config.image_token_id, config.vision_config.spatial_merge_size
