"""What is sent to vLLM's token-in-token-out endpoint, and what comes back."""

from __future__ import annotations

from typing import Any

from vagentrl.engines.base import Generation, GenerationRequest, Vocabulary
from vagentrl.engines.vllm.settings import sampling_settings, shown_images

GENERATE = "/inference/v1/generate"


def request_body(
    request: GenerationRequest,
    vocabulary: Vocabulary,
    adapter: str | None,
    image_layout: tuple[int | None, int],
) -> dict[str, Any]:
    """Return the body of a request.

    Args:
        request: The request.
        vocabulary: The policy's vocabulary.
        adapter: Name of the adapter to sample with; None for the base model.
        image_layout: Token that stands for a part of an image (None if the model reads no images),
            and the model's merge size.
    """
    return {
        "model": adapter,
        "token_ids": list(request.prompt_ids),
        "features": _features(request, vocabulary, *image_layout),
        "sampling_params": sampling_settings(request, vocabulary),
    }


def _features(
    request: GenerationRequest, vocabulary: Vocabulary, image_token: int | None, merge: int
) -> dict[str, Any] | None:
    if not request.images:
        return None
    from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import (  # pyright: ignore
        encode_mm_kwargs_item,
    )

    assert image_token is not None
    items, names, spans = shown_images(request, vocabulary, image_token, merge)
    places = [{"offset": start, "length": stop - start} for start, stop in spans]
    return {
        "mm_hashes": {"image": names},
        "mm_placeholders": {"image": places},
        "kwargs_data": {"image": [encode_mm_kwargs_item(item) for item in items]},
    }


def generation_in(answer: dict[str, Any], policy_version: int) -> Generation:
    """Return the reply in an answer."""
    (choice,) = answer["choices"]
    return Generation(
        tuple(choice["token_ids"]),
        tuple(token["logprob"] for token in choice["logprobs"]["content"]),
        "stop" if choice["finish_reason"] == "stop" else "length",
        policy_version,
    )


def cached_tokens(answer: dict[str, Any]) -> int:
    """Return the number of prompt tokens that were in the server's prefix cache."""
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
