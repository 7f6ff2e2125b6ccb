"""Turns observations into tokens as the chat template writes them, without re-tokenizing replies.

The template is read once, at start-up. After that every turn only appends tokens to the context;
earlier tokens never change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tokenizers import Tokenizer

from vagentrl.engines.base import Vocabulary
from vagentrl.errors import ConfigError, EnvError
from vagentrl.models.load import checkpoint_path, generation_end_ids, load_config, reads_images
from vagentrl.rollout.chat_template import conversation, read_chat_template, render
from vagentrl.rollout.images import ImageEncoder
from vagentrl.types import (
    IMAGE_PLACEHOLDER,
    Example,
    Observation,
    Pictures,
    VisionInputs,
    encodable,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerFast

    Pieces = list[int | str]

IMAGE_PLUMBING = re.compile(r"image|vision|video", re.IGNORECASE)


class Renderer:
    """Writes the tokens of prompts as the tokenizer's chat template would.

    Text of a system prompt or an observation never becomes a special token, even if it contains
    the name of one.

    Args:
        tokenizer: A fast Hugging Face tokenizer with a chat template.
        images: Encodes images; None for a text-only model.
        image_token: The token that stands in the prompt for one visual token of an image.
        vocabulary_size: Number of rows of the model's embedding. Ids beyond the tokenizer's
            vocabulary are banned.
        end_ids: Additional tokens that end a reply, such as those in the generation config.

    Attributes:
        end_of_turn: The token with which the chat template ends a reply.
        stop_ids: Tokens at which sampling stops: the template's end of turn, the tokenizer's end of
            sequence, and `end_ids`.
        banned_ids: Ids that are never sampled: the special tokens of images and videos, and ids
            without a token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        images: ImageEncoder | None = None,
        image_token: str = "<|image_pad|>",
        vocabulary_size: int = 0,
        end_ids: Iterable[int] = (),
    ) -> None:
        if not tokenizer.is_fast:
            raise ConfigError(
                f"{type(tokenizer).__name__} is a slow tokenizer; convert it to a fast one, which "
                "has a tokenizer.json"
            )
        added = tokenizer.added_tokens_decoder
        special = {id for id, token in added.items() if token.special}
        plumbing = {id for id, token in added.items() if IMAGE_PLUMBING.search(token.content)}
        self.banned_ids = frozenset(plumbing).union(range(len(tokenizer), vocabulary_size))
        self._control = {added[id].content: id for id in special | plumbing}
        self._backend = _backend_without(tokenizer, set(self._control.values()))
        self.tokenizer = tokenizer
        self.images = images

        template = read_chat_template(tokenizer, with_images=images is not None)
        self._template = template
        self._before_user = self._pieces(template.before_user)
        self._before_reply = self._pieces(template.before_reply)
        self._after_reply = self._pieces(template.after_reply)
        self._image = self._pieces(template.image or "")
        self.image_token_id = self._control.get(image_token)
        if images and [piece == self.image_token_id for piece in self._image].count(True) != 1:
            raise ConfigError(
                f"the chat template writes an image as {template.image!r}, which should hold the "
                f"image token {image_token!r} once; give the model's own image_token"
            )
        end = self._after_reply[0]
        if not isinstance(end, int):
            raise ConfigError(
                f"the chat template follows a reply with {template.after_reply!r}; it should begin "
                "with a special token, at which sampling can stop"
            )
        self.end_of_turn = end
        ends = (end, *end_ids, tokenizer.eos_token_id)
        self.stop_ids = frozenset(id for id in ends if isinstance(id, int))

    @cached_property
    def encode_text(self) -> Callable[[str], tuple[int, ...]]:
        """Encodes a text that holds no control token, and remembers what it has encoded."""
        return lru_cache(maxsize=4096)(self._encode_anew)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process starts with: everything but the remembered texts."""
        return {name: part for name, part in self.__dict__.items() if name != "encode_text"}

    @classmethod
    def from_pretrained(cls, model: str | Path) -> Renderer:
        """A renderer with a checkpoint's tokenizer, and its image processor if it reads images."""
        from transformers import AutoImageProcessor, AutoTokenizer

        config = load_config(str(model))
        path = checkpoint_path(str(model))
        tokenizer = AutoTokenizer.from_pretrained(path)
        size = config.get_text_config().vocab_size
        ends = generation_end_ids(str(model))
        if not reads_images(config):
            return cls(tokenizer, vocabulary_size=size, end_ids=ends)
        images = ImageEncoder(AutoImageProcessor.from_pretrained(path))
        image_token = tokenizer.convert_ids_to_tokens(config.image_token_id)
        return cls(tokenizer, images, image_token, size, ends)

    def first(
        self, system: str, observation: Observation, examples: Sequence[Example] = ()
    ) -> tuple[int, ...]:
        """Tokens from the start of the conversation to where the first reply starts.

        With an empty system prompt the template may write a default one. If the template has no
        system role, the system prompt becomes the start of the first user message.

        Args:
            system: The system prompt.
            observation: What the agent sees before its first reply.
            examples: Exchanges between the system prompt and the observation.
        """
        seen = [*(example.observation for example in examples), observation]
        content = self._content(seen[0])
        if not system:
            opening = self._before_user
        elif self._template.around_system is None:
            opening = self._before_user
            content = self._content(seen[0], opening=f"{system}\n\n")
        else:
            before, after = self._template.around_system
            text = system.strip() if self._template.trims_system else system
            opening = [*self._pieces(before), text, *self._pieces(after)]
        pieces = [*opening, *content, *self._before_reply]
        for example, following in zip(examples, seen[1:], strict=True):
            reply = example.reply.strip() if self._template.trims_reply else example.reply
            pieces += [reply, *self._after_reply, *self._content(following), *self._before_reply]
        return self._encode(pieces)

    def next(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        """Tokens between a reply and the next one.

        Args:
            observation: What the agent sees next.
            ended: Whether the reply ends with the template's end of turn. If not, because it was
                cut off or ended with another stop token, these tokens start with an end of turn.
        """
        end, *others = self._after_reply
        opening = others if ended else [end, *others]
        return self._encode([*opening, *self._content(observation), *self._before_reply])

    def decode(self, reply_ids: Sequence[int]) -> str:
        """Text of a reply without its stop token; other special tokens are kept in the text."""
        ended = bool(reply_ids) and reply_ids[-1] in self.stop_ids
        ids = list(reply_ids[:-1] if ended else reply_ids)
        return self._backend.decode(ids, skip_special_tokens=False)

    def token_names(self, ids: list[int]) -> list[str]:
        """The tokens in readable form, as the tokenizer spells them."""
        return list(map(str, self.tokenizer.convert_ids_to_tokens(ids)))

    def vocabulary(self, context_length: int) -> Vocabulary:
        """The token ids and the image encoder that an engine needs."""
        # An engine may pickle this for another process, and the renderer itself cannot be pickled.
        encode = _refuse_images if self.images is None else self.images.encode
        return Vocabulary(self.stop_ids, self.banned_ids, context_length, encode)

    def encode_images(self, images: Sequence[Image]) -> VisionInputs:
        """Encode the images of one context, as one row."""
        return self._encoder().encode(images)

    def pictures(self, rows: Sequence[Sequence[Image]]) -> Pictures:
        """The images of several contexts, to be encoded later; each distinct one is stored once."""
        return self._encoder().pictures(rows)

    def check_images(self, ids: Sequence[int], vision: VisionInputs) -> None:
        """Check that the rows have as many image tokens as their images take.

        Raises:
            ShapeError: When the two numbers differ.
        """
        assert self.image_token_id is not None, "a text-only renderer has no images to check"
        self._encoder().check_room(list(ids).count(self.image_token_id), vision)

    def self_test(self) -> None:
        """Compare this renderer with the chat template on a small conversation.

        Raises:
            ConfigError: When they differ; the message shows the first difference.
        """
        from PIL import Image

        pictures = (Image.new("RGB", (84, 56)),) if self.images else ()
        mark = IMAGE_PLACEHOLDER if self.images else ""
        observations = [
            Observation(f" Turn 1.\n{mark} What now? ", pictures),
            Observation(mark, pictures),
            Observation(f"\n\nNo. 3: «é»{mark}\n", pictures),
            Observation(f"{mark}No. 4\n", pictures, hint="Try up. "),
        ]
        for system in ("", "You play a game.\n"):
            self.compare(system, observations, ["Left.", "Up Up", "Up"])

    def compare(
        self, system: str, observations: Sequence[Observation], replies: Sequence[str]
    ) -> None:
        """Check that the tokens added turn by turn equal the template's for the conversation.

        Args:
            system: The system prompt.
            observations: The observations, first to last.
            replies: The reply to each observation but the last.

        Raises:
            ConfigError: When they differ; the message shows the first difference.
        """
        wanted = self._by_template(system, observations, replies)
        for ended in (True, False):
            end = self._after_reply[:1] if ended else []
            found = list(self.first(system, observations[0]))
            for reply, observation in zip(replies, observations[1:], strict=True):
                found += [*self._encode([reply, *end]), *self.next(observation, ended=ended)]
            if found != wanted:
                pairs = enumerate(zip_longest(found, wanted))
                same = next(index for index, (mine, its) in pairs if mine != its)
                near = slice(max(same - 4, 0), same + 6)
                raise ConfigError(
                    f"tokens added turn by turn differ from the chat template's at token {same} "
                    f"(replies {'with' if ended else 'without'} an end of turn):\n"
                    f"  template  {self.tokenizer.convert_ids_to_tokens(wanted[near])}\n"
                    f"  renderer  {self.tokenizer.convert_ids_to_tokens(found[near])}\n"
                    "The tokenizer or its template treats text next to a special token in a way "
                    "that vagentrl does not support; use another model, or another chat template"
                )

    def _by_template(
        self, system: str, observations: Sequence[Observation], replies: Sequence[str]
    ) -> list[int]:
        texts = [_with_hint(observation.text, observation) for observation in observations]
        if system and self._template.around_system is None:
            texts[0] = f"{system}\n\n{texts[0]}"
            system = ""
        messages = conversation(system, texts, replies, with_images=self.images is not None)
        text = render(self.tokenizer, messages)
        ids: list[int] = []
        images = (image for observation in observations for image in observation.images)
        for id in self.tokenizer.encode(text, add_special_tokens=False):
            repeats = id == self.image_token_id and self._encoder().token_count(next(images))
            ids += [id] * (repeats or 1)
        return ids

    # ------------------------------------------------------------------------ from text to tokens

    def _encode(self, pieces: Iterable[int | str]) -> tuple[int, ...]:
        """Encode texts and keep ids. Adjacent texts are joined first: a token may span both."""
        ids: list[int] = []
        for kind, run in groupby(pieces, key=type):
            if kind is str:
                ids += self.encode_text("".join(map(str, run)))
            else:
                ids += map(int, run)
        return tuple(ids)

    def _encode_anew(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(encodable(text), add_special_tokens=False).ids)

    def _pieces(self, affix: str) -> Pieces:
        """Split a text of the template into special tokens (ids) and the text between them."""
        if not self._control:
            return [affix]
        longest_first = sorted(self._control, key=len, reverse=True)
        pattern = "|".join(re.escape(token) for token in longest_first)
        return [
            self._control.get(piece, piece) for piece in re.split(f"({pattern})", affix) if piece
        ]

    def _content(self, observation: Observation, opening: str = "") -> Pieces:
        """A user message: text, with the tokens that stand for each image."""
        texts = observation.text.split(IMAGE_PLACEHOLDER)
        texts[0] = opening + texts[0]
        # The hint is added after the split: a placeholder inside a hint stands for no image.
        texts[-1] = _with_hint(texts[-1], observation)
        if self._template.trims_user:
            texts[0] = texts[0].lstrip()
            texts[-1] = texts[-1].rstrip()
        pieces: Pieces = [texts[0]]
        for image, text in zip(observation.images, texts[1:], strict=True):
            count = self._image_tokens(image)
            for piece in self._image:
                pieces += [piece] * (count if piece == self.image_token_id else 1)
            pieces.append(text)
        return pieces

    def _image_tokens(self, image: Image) -> int:
        """The number of tokens that an image takes.

        Raises:
            EnvError: When the image processor refuses the image's size.
        """
        encoder = self._encoder()
        try:
            return encoder.token_count(image)
        except (ValueError, ZeroDivisionError) as error:
            width, height = image.size
            raise EnvError(
                f"an observation shows an image of {width} x {height} pixels, which the model's "
                f"image processor refuses: {error}. Crop or pad it in the environment"
            ) from error

    def _encoder(self) -> ImageEncoder:
        return self.images or _refuse_images()


def _refuse_images(images: Sequence[Image] = ()) -> NoReturn:
    raise ConfigError(
        "an observation shows an image but the model reads text only; use a model that reads "
        "images, or let the environment render text"
    )


def _with_hint(text: str, observation: Observation) -> str:
    return f"{text}\n{observation.hint}" if observation.hint else text


def _backend_without(tokenizer: PreTrainedTokenizerFast, control: set[int]) -> Tokenizer:
    """A copy of the tokenizer that encodes the names of these tokens as ordinary text."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["id"] in control
    backend = Tokenizer.from_str(json.dumps(state))
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend
