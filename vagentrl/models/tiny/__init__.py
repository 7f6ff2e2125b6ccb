"""Tiny models with the architecture of large ones, and a tokenizer made for their task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vagentrl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from transformers.image_processing_utils import BaseImageProcessor

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@dataclass(frozen=True)
class TinyModel:
    """Shape of a tiny model: Qwen2.5-VL with images, Qwen3 without.

    Args:
        images: Whether it reads images.
        hidden_size: Width of the language model.
        layers: Layers of the language model.
        heads: Attention heads of the language model.
        kv_heads: Key-value heads of the language model.
        intermediate_size: Width inside the MLPs of the language model.
        vocabulary: Number of tokens, with the 256 bytes and the special tokens.
        atoms: Characters that are always tokens of their own, so that a digit or a cell of a grid
            is the same token wherever it stands.
        context_length: Most tokens that it can read.
        vision_hidden_size: Width of the vision tower.
        vision_layers: Layers of the vision tower.
        vision_heads: Attention heads of the vision tower.
        patch: Pixels on a side of a patch.
        merge: Patches on a side of one image token.
        contrast: Standard deviation of the weights that embed a patch, which then ignore its
            brightness; 0 for transformers' own. ``docs/models.md`` says when it helped.
        rope_theta: Base of the language model's rotary frequencies where it reads images. Columns
            of an image turn the slowest of them: with the usual base, those that are 5 tokens
            apart by 0.01 rad, with a base of 30 by 0.5.
    """

    images: bool = True
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate_size: int = 384
    vocabulary: int = 768
    atoms: str = "0123456789"
    context_length: int = 2048
    vision_hidden_size: int = 64
    vision_layers: int = 2
    vision_heads: int = 4
    patch: int = 14
    merge: int = 2
    contrast: float = 0.0
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        if self.contrast < 0:
            raise ConfigError(f"contrast is {self.contrast}, and no standard deviation; try 0.8")
        if self.rope_theta <= 1:
            raise ConfigError(
                f"rope_theta is {self.rope_theta}; with a base of at most 1 no rotation is slower "
                "than another: try 30, or leave it out"
            )


def build_tokenizer(shape: TinyModel, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the texts that the model will read and write.

    Merges may cross words, so a phrase that every prompt repeats becomes few tokens.

    Raises:
        ConfigError: When the vocabulary has no room for the bytes and the special tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if shape.vocabulary < 256 + len(SPECIAL_TOKENS):
        raise ConfigError(
            f"vocabulary is {shape.vocabulary}; {256 + len(SPECIAL_TOKENS)} tokens are the bytes "
            "and the special ones"
        )
    tokenizer = Tokenizer(models.BPE())
    atoms = "".join("\\" + atom if not atom.isalnum() else atom for atom in shape.atoms)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore
        [
            pre_tokenizers.Split(Regex(f"[{atoms}]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = (Path(__file__).parent / "chat_template.jinja").read_text()
    return fast


def build_image_processor(shape: TinyModel) -> BaseImageProcessor:
    """Qwen2-VL's image processor. Images of 1 to 256 tokens keep their size, up to rounding."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    side = shape.patch * shape.merge
    return Qwen2VLImageProcessorPil(
        patch_size=shape.patch,
        merge_size=shape.merge,
        size={"shortest_edge": side**2, "longest_edge": 256 * side**2},
    )


def save_new_model(shape: TinyModel, texts: Iterable[str], folder: str | Path) -> PreTrainedModel:
    """Write a model with random weights, its tokenizer and its image processor to a folder.

    Args:
        shape: The model's.
        texts: What the tokenizer is trained on.
        folder: Where to write a Hugging Face checkpoint.

    Returns:
        The model.

    Raises:
        ConfigError: As in `build_tokenizer`.
    """
    tokenizer = build_tokenizer(shape, texts)
    model = build_model(shape, tokenizer)
    for part in (tokenizer, model, *([build_image_processor(shape)] if shape.images else [])):
        part.save_pretrained(folder)
    return model


def build_model(shape: TinyModel, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A model with random weights, from torch's global generator."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context_length,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    head_dim = shape.hidden_size // shape.heads
    if not shape.images:
        return Qwen3ForCausalLM(Qwen3Config(**text, head_dim=head_dim))
    temporal = head_dim // 8  # of the head_dim / 2 rotary frequencies; the rest for height, width
    spatial = (head_dim // 2 - temporal) // 2
    vision = {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": 2 * shape.vision_hidden_size,
        "num_heads": shape.vision_heads,
        "out_hidden_size": shape.hidden_size,
        "patch_size": shape.patch,
        "spatial_merge_size": shape.merge,
        "fullatt_block_indexes": list(range(shape.vision_layers)),
        "window_size": 64 * shape.patch * shape.merge,
    }
    config = Qwen2_5_VLConfig(
        text_config=text
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": shape.rope_theta,
                "mrope_section": [head_dim // 2 - 2 * spatial, spatial, spatial],
            }
        },
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    if shape.contrast:
        _see_contrast(model.model.visual.patch_embed.proj.weight.detach(), shape.contrast)
    return model


def _see_contrast(filters: Tensor, std: float) -> None:
    """Draw filters of patches, ``(D, colours, 2, side, side)``, that do not see their brightness.

    Random filters answer to a patch's brightness, in which most patches are alike, so that all
    patches have almost the same embedding.
    """
    filters.normal_(0.0, std)
    filters -= filters.mean((2, 3, 4), keepdim=True)
