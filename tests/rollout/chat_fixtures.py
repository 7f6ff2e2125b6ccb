"""Tokenizers of three model families, built here without downloads."""

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from vagentrl.rollout.images import ImageEncoder

QWEN_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
LLAMA_TOKENS = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
]  # fmt: skip
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "You are a helpful assistant.", "system user assistant\n", "The player is left of a box.",
    "<answer>Up</answer> <answer>Down, Left</answer>\n\n", "What now? Right Right Up\n",
    "<|im_start|>user\nHello<|im_end|>", "one two three  four   five", "déjà vu «é» 12 345",
]  # fmt: skip

CHATML_VISION = """\
{% for message in messages %}\
{% if loop.first and message.role != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}\
{% for block in message.content %}\
{% if block.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% else %}{{ block.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

CHATML_TEXT = """\
{% for message in messages %}\
{% if loop.first and message.role != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}\
{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA_3 = """\
{% for message in messages %}\
{% if loop.first %}<|begin_of_text|>{% endif %}\
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""


def tokenizer(
    special: list[str], eos: str, template: str, added: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """A small byte-level BPE tokenizer, pre-tokenised as Qwen2 and Llama 3 do it."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=special[0], chat_template=template
    )


@cache
def qwen_vl() -> PreTrainedTokenizerFast:
    return tokenizer(QWEN_TOKENS, "<|im_end|>", CHATML_VISION, added=("<think>", "</think>"))


@cache
def qwen_text() -> PreTrainedTokenizerFast:
    return tokenizer(QWEN_TOKENS[:3], "<|endoftext|>", CHATML_TEXT)


@cache
def llama() -> PreTrainedTokenizerFast:
    return tokenizer(LLAMA_TOKENS, "<|eot_id|>", LLAMA_3)


def image_processor(merge_size: int = 2) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(merge_size=merge_size, min_pixels=(14 * merge_size) ** 2)


def image_encoder(merge_size: int = 2) -> ImageEncoder:
    return ImageEncoder(image_processor(merge_size))
