"""Low-rank adapters: a few trainable weights beside frozen ones (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LANGUAGE_LAYERS = r"(?!.*visual)(.*\.)?(q|k|v|o|gate|up|down)_proj"


@dataclass(frozen=True)
class LoRA:
    """An adapter on the attention and the MLPs of the language model.

    Args:
        rank: Width of the adapter.
        alpha: The adapter's output is multiplied by ``alpha / rank``.
        targets: A regular expression that the names of adapted layers match in full. The default
            matches the linear layers of the language model and none of a vision tower.

    Raises:
        ConfigError: When ``rank`` is below 1.
    """

    rank: int = 32
    alpha: float = 32.0
    targets: str = LANGUAGE_LAYERS

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"model.lora.rank is {self.rank}; give at least 1 (32 is usual)")


def add_adapter(model: PreTrainedModel, lora: LoRA) -> None:
    """Freeze a model and add an adapter, which at first changes nothing.

    Raises:
        ConfigError: When peft is not installed, or `targets` matches no layer.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ConfigError(
            "model.lora needs peft: pip install 'vagentrl[lora]', or leave lora out"
        ) from error
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets)  # pyright: ignore
    try:
        model.add_adapter(config)
    except ValueError as error:
        raise ConfigError(
            f"model.lora cannot be added to {type(model).__name__}: {error}. `targets` is "
            f"{lora.targets!r} and must match names such as "
            f"{[name for name, _ in model.named_modules() if name.endswith('_proj')][:3]}"
        ) from error


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether the model has an adapter, so that only this learns."""
    return model._hf_peft_config_loaded


def save_adapter(model: PreTrainedModel, folder: str, base: str | None = None) -> None:
    """Write a model's adapter as PEFT would; ``save_pretrained`` writes on the first rank alone.

    If the model is sharded, all ranks must call this together.

    Args:
        model: The model.
        folder: Where to write.
        base: Name of the model without its adapter, for the adapter's configuration.
    """
    from safetensors.torch import save_file

    from vagentrl.models.sharded import full

    [name] = model.active_adapters()
    config: Any = model.peft_config[name]
    if base is not None:
        config = replace(config, base_model_name_or_path=base)
    config.save_pretrained(folder)
    weights = model.get_adapter_state_dict(name)
    named = {f"base_model.model.{key}": full(w).contiguous() for key, w in weights.items()}
    save_file(named, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})


def merge_adapter(model: PreTrainedModel) -> None:
    """Add a model's adapter to its weights, and take it off: the model is a plain one again."""
    from peft.tuners.lora import LoraLayer

    adapted = [
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
    ]
    for name, layer in adapted:
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    del model.peft_config
    model._hf_peft_config_loaded = False


@contextmanager
def without_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Switch the adapter off inside the block: the model is as it was before it learned."""
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()
