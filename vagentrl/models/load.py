"""Load any Hugging Face causal language model, or vision-language model of the Qwen-VL family."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagentrl.devices import avoid_cudnn_attention
from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    from vagentrl.models.head import HeadDtype
    from vagentrl.models.lora import LoRA

SHIPPED = {
    "tiny-sokoban-vlm": "sokoban_vlm",
    "tiny-sokoban-text": "sokoban_text",
    "tiny-sokoban-world": "sokoban_world",
    "tiny-baba-text": "baba_text",
    "tiny-frozen-lake-text": "frozen_lake_text",
    "tiny-frozen-lake-hints": "frozen_lake_hints",
    "tiny-bandit-text": "bandit_text",
    "tiny-babyai-text": "babyai_text",
    "tiny-arithmetic-text": "arithmetic_text",
    "tiny-support-text": "support_text",
    "tiny-search-qa-text": "search_qa_text",
    "tiny-webshop-text": "webshop_text",
    "tiny-crafter-text": "crafter_text",
    "tiny-three-worlds-text": "three_worlds_text",
    "tiny-frozen-lake-vlm": "frozen_lake_vlm",
    "tiny-navigation-vlm": "navigation_vlm",
    "tiny-babyai-vlm": "babyai_vlm",
    "tiny-four-worlds-vlm": "four_worlds_vlm",
}
"""Folders in `tiny` of the models that ship with vagentrl, by name."""


def checkpoint_path(model: str) -> str:
    """Folder or hub name of a model.

    Args:
        model: A folder, a hub name such as ``Qwen/Qwen2.5-VL-3B-Instruct``, or the name of a model
            that ships with vagentrl: see `SHIPPED`.

    Raises:
        ConfigError: When ``model`` looks like a path but is no folder with a checkpoint.
    """
    if model in SHIPPED:
        return str(files("vagentrl.models") / "tiny" / SHIPPED[model])
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"{model!r} is a folder without config.json, so not a Hugging Face checkpoint; "
                f"it holds {sorted(entry.name for entry in path.iterdir())[:8]}"
            )
        return str(path)
    looks_like_a_path = model.startswith((".", "/", "~")) or model.count("/") != 1
    if looks_like_a_path:
        raise ConfigError(
            f"there is no model folder {model!r}; give the folder of a Hugging Face checkpoint, a "
            f"hub name (owner/name) or one that ships here: {', '.join(SHIPPED)}. Other tiny "
            "models are made by `vagentrl warmstart`; `vagentrl recipes` lists what it can make"
        )
    return model


def load_config(model: str) -> PretrainedConfig:
    """Configuration of a checkpoint, without its weights.

    Raises:
        ConfigError: When it cannot be read.
    """
    from transformers import AutoConfig

    path = checkpoint_path(model)
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the configuration of model {model!r} cannot be read: {error}. Give an existing "
            f"folder, a hub name this machine can reach, or one of {', '.join(SHIPPED)}"
        ) from error


def reads_images(config: PretrainedConfig) -> bool:
    """Whether the model takes images."""
    return getattr(config, "vision_config", None) is not None


def context_length(config: PretrainedConfig) -> int:
    """Most tokens that the model can read."""
    return int(config.get_text_config().max_position_embeddings)


def generation_end_ids(model: str) -> frozenset[int]:
    """Tokens at which a checkpoint's ``generation_config.json`` ends a reply; none without one."""
    from transformers import GenerationConfig

    try:
        config = GenerationConfig.from_pretrained(checkpoint_path(model))
    except OSError:  # not every checkpoint has one
        return frozenset()
    ends: int | list[int] | None = config.eos_token_id
    return frozenset([ends] if isinstance(ends, int) else ends or [])


def load_model(
    model: str,
    *,
    dtype: torch.dtype | None = None,
    head_dtype: HeadDtype | None = None,
    gradient_checkpointing: bool = False,
    packing: bool = False,
    freeze_vision: bool = False,
    lora: LoRA | None = None,
    meta: bool = False,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """A model with its language-model head, in evaluation mode: dropout is always off.

    Args:
        model: See `checkpoint_path`.
        dtype: Type of the weights; None keeps the checkpoint's.
        head_dtype: Type in which the language-model head computes; None: as the checkpoint's
            configuration says, or else the type of the weights.
        gradient_checkpointing: Trade compute for memory in the backward pass.
        packing: Let `states_before` read rows end to end, and a prefix that they share once.
        freeze_vision: Do not train the vision tower, which then encodes each image once. Only for
            models that read images.
        lora: An adapter that learns in place of the weights.
        meta: Build the architecture on the meta device, without weights (a dry run).
        attn_implementation: How language model and vision tower compute attention, as transformers
            names it: ``eager``, ``sdpa``, ``flash_attention_2``, …; None: as transformers chooses.

    Raises:
        ConfigError: When the weights cannot be loaded, or the model does not fit the settings.
    """
    from vagentrl.models.head import head_dtype_of, set_head_dtype
    from vagentrl.models.lora import add_adapter
    from vagentrl.models.packing import allow_packing

    avoid_cudnn_attention()
    config = load_config(model)
    _check_head(config, model)
    if meta:
        policy = _empty_model(config, dtype)
    else:
        policy = _model_with_weights(model, config, dtype, attn_implementation)
    if (head_dtype := head_dtype or head_dtype_of(config)) is not None:
        set_head_dtype(policy, head_dtype)
    if freeze_vision:
        if not reads_images(config):
            raise ConfigError(
                f"freeze_vision is set, but model {model!r} reads text only; leave it out, or take "
                "a vision-language model"
            )
        freeze_vision_tower(policy)
    if lora is not None:
        with policy.device if meta else nullcontext():
            add_adapter(policy, lora)
    policy.eval()  # with dropout, replies would be scored by another policy than sampled them
    if gradient_checkpointing:
        _checkpoint_gradients(policy)
    if packing:
        allow_packing(policy)
    return policy


def _empty_model(config: PretrainedConfig, dtype: torch.dtype | None) -> PreTrainedModel:
    """The architecture on the meta device.

    Its attention is the default one: a dry run is for another machine, which may have kernels that
    this one lacks.
    """
    import torch

    with torch.device("meta"):
        return _auto_class(config).from_config(config, dtype=dtype or torch.float32)


def _model_with_weights(
    model: str,
    config: PretrainedConfig,
    dtype: torch.dtype | None,
    attn_implementation: str | None,
) -> PreTrainedModel:
    attention = {"attn_implementation": attn_implementation} if attn_implementation else {}
    try:
        return _auto_class(config).from_pretrained(
            checkpoint_path(model), dtype=dtype or "auto", **attention
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the weights of {model!r} cannot be loaded: {error}") from error
    except ImportError as error:
        raise ConfigError(
            f"model.attn_implementation is {attn_implementation!r}, which does not work here: "
            f"{error}. Leave it out for what transformers chooses"
        ) from error


def _auto_class(config: PretrainedConfig) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM


def _checkpoint_gradients(policy: PreTrainedModel) -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    policy.gradient_checkpointing_enable({"use_reentrant": False})
    for module in policy.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # it checkpoints only then; its parts stay in eval mode


def _check_head(config: PretrainedConfig, model: str) -> None:
    """Refuse a model that changes its logits after the head: the trainer calls only the head."""
    text = config.get_text_config()
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if (value := getattr(text, name, None)) not in (None, 1.0):
            raise ConfigError(
                f"model {model!r} changes its logits after the head ({name} is {value}), which the "
                "trainer would not see; take a model whose head is one linear layer"
            )


def freeze_vision_tower(policy: PreTrainedModel) -> None:
    """Do not train the vision tower, and let it encode each image once."""
    from vagentrl.models.vision_memory import remember_images

    tower = policy.base_model.get_submodule("visual").requires_grad_(False)
    if policy.device.type != "meta":
        remember_images(tower)
