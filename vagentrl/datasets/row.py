"""What a row says: the messages of the prompt, its images, and who answers the agent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, get_args

from PIL.Image import Image

from vagentrl.environment import Split
from vagentrl.errors import ConfigError, RowError, seen
from vagentrl.interactions.tasks import turns_problem
from vagentrl.types import IMAGE_PLACEHOLDER

Form = Literal["auto", "verl", "plain"]

_SPLITS: dict[str, Split] = {
    **{split: split for split in get_args(Split)},
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
}
_CANONICAL = json.JSONEncoder(sort_keys=True, default=repr)
_VERLS = ("extra_info", "interaction_kwargs", "reward_model")
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a row.

    Args:
        prompt: The prompt: a text, or a list of messages.
        answer: The right answer, which the interaction gets as ``ground_truth``; null if there is
            none.
        images: The images of the prompt: one, or a list.
        split: The split that the row belongs to; null: its content decides.
    """

    prompt: str = "prompt"
    answer: str | None = "answer"
    images: str = "images"
    split: str | None = None

    def __post_init__(self) -> None:
        names = [name for name in vars(self).values() if name is not None]
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"fields has an empty name, or one that is no text: {names}")
        if len(set(names)) < len(names):
            raise ConfigError(f"fields names one field twice: {', '.join(names)}")


@dataclass(frozen=True)
class ImageReference:
    """An image of a row: its file's content, or where it is.

    Attributes:
        content: The content of an image file; None if only its place is known.
        place: A path, a URL or a data URI; empty if the content is known.
    """

    content: bytes | None
    place: str = ""

    @property
    def identity(self) -> str:
        """A text that is equal for equal contents, or for equal places."""
        if self.content is None:
            return self.place
        return hashlib.blake2b(self.content, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Row:
    """A row that was read, with images that were not yet opened.

    Attributes:
        messages: The messages of the prompt, each with ``role`` and ``content``, a text with one
            ``<image>`` placeholder for each image.
        images: The images, in the order of their placeholders.
        interaction: The row's ``interaction_kwargs``.
        split: The split that the row names; None if it names none.
    """

    messages: tuple[Mapping[str, str], ...]
    images: tuple[ImageReference, ...]
    interaction: Mapping[str, Any]
    split: Split | None = None

    def question(self) -> str:
        """The content that decides the split: equal for rows that ask the same.

        System prompts, answers, case and the amount of white space do not matter.
        """
        asked = [
            (message["role"], " ".join(message["content"].split()).casefold())
            for message in self.messages
            if message["role"] != "system"
        ]
        return json.dumps([asked, self._identities()])

    def content(self) -> bytes:
        """A hash of all that the row says, of 8 bytes.

        Raises:
            RowError: When the interaction's arguments are nested too deeply, or have strange keys.
        """
        everything = [self.messages, self._identities(), self.interaction]
        try:
            text = _CANONICAL.encode(everything)
        except (TypeError, ValueError, RecursionError) as error:
            raise RowError(f"the row cannot be written as JSON: {error}") from None
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    def _identities(self) -> list[str]:
        return [image.identity for image in self.images]


def read_row(
    row: Mapping[str, Any],
    fields: Fields = Fields(),
    form: Form = "auto",
    interaction: str | None = None,
) -> Row:
    """Read a row of verl's form or of the plain one.

    Args:
        row: The row, as plain Python values.
        fields: The names of its fields.
        form: ``verl`` accepts messages only, ``plain`` a text only, ``auto`` both.
        interaction: Name of the interaction of rows that name none.

    Raises:
        RowError: When it cannot be used. The message does not say where the row is.
    """
    prompt = row.get(fields.prompt)
    if prompt is None:
        there = ", ".join(map(str, row)) or "none"
        raise RowError(
            f"there is no {fields.prompt!r} (the fields are {there[:200]}); set fields.prompt"
        )
    images = _Images(row.get(fields.images))
    messages = _messages(prompt, form)
    read = tuple(_message(message, images) for message in messages)
    images.check_all_shown()
    if problem := turns_problem([message["role"] for message in read]):
        raise RowError(problem)
    return Row(
        read,
        tuple(images.shown),
        _interaction(row, fields, form, interaction),
        _split(row, fields.split),
    )


# -------------------------------------------------------------------------------------- messages


def _messages(prompt: Any, form: Form) -> list[Any]:
    """The messages of a prompt in any of its spellings."""
    if isinstance(prompt, str) and form != "plain" and prompt.lstrip().startswith("["):
        decoded = _from_json(prompt)  # some writers keep messages as JSON
        if isinstance(decoded, list) and all(isinstance(each, Mapping) for each in decoded):
            prompt = decoded
    if isinstance(prompt, str):
        if form == "verl":
            raise RowError(f"the prompt is {seen(prompt)}; verl's form wants a list of messages")
        if not prompt.strip():
            raise RowError("the prompt is empty")
        return [{"role": "user", "content": prompt}]
    if form == "plain":
        raise RowError(f"the prompt is {seen(prompt)}; the plain form wants a text")
    if isinstance(prompt, Mapping):  # Hugging Face stores a sequence of records by its fields
        roles, contents = prompt.get("role"), prompt.get("content")
        if isinstance(roles, list) and isinstance(contents, list):
            pairs = zip(roles, contents, strict=False)
            prompt = [{"role": role, "content": content} for role, content in pairs]
    if not isinstance(prompt, list) or not prompt:
        raise RowError(f"the prompt is {seen(prompt)}; give a text or a list of messages")
    return prompt


def _message(message: Any, images: _Images) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise RowError(f"a message is {seen(message)}; give one with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RowError(f"a message's role is {seen(role)}; give one of {', '.join(_ROLES)}")
    shown = images if role == "user" else None
    if isinstance(content, str):
        text = _text(content, shown)
    elif isinstance(content, list) and content:
        text = "".join(_block(block, shown) for block in content)
    else:
        raise RowError(f"a message's content is {seen(content)}; give a text or a list of blocks")
    return {"role": role, "content": _clean(text)}


def _block(block: Any, images: _Images | None) -> str:
    """A content block as text, with a placeholder where it is an image."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return _text(block["text"], images)
    if kind not in ("image", "image_url"):
        raise RowError(f"a content block is {seen(block)}; give one of type 'text' or 'image'")
    if images is None:
        raise RowError("an image stands in a message that is not the user's; move it to one")
    image = block.get(kind)
    return images.show(
        image.get("url") if isinstance(image, Mapping) and kind != "image" else image
    )


def _text(text: str, images: _Images | None) -> str:
    """A text; in the user's messages each placeholder in it shows an image."""
    return text if images is None else images.show_in(text)


def _clean(text: str) -> str:
    """The text, if it can be tokenised.

    Raises:
        RowError: When it has a NUL character, or is no valid Unicode.
    """
    if "\0" in text:
        raise RowError("a message has a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"a message is no valid Unicode: {error}") from None
    return text


class _Images:
    """Deals the images of a row to the placeholders in its messages.

    Args:
        column: The row's images, as it gives them.
    """

    def __init__(self, column: Any) -> None:
        column = [] if column is None else column
        listed = column if isinstance(column, list) else [column]
        self._column: Iterator[ImageReference] = iter([_reference(image) for image in listed])
        self._count = len(listed)
        self.shown: list[ImageReference] = []

    def show_in(self, text: str) -> str:
        """Give an image of the column to each placeholder in the text."""
        for _ in range(text.count(IMAGE_PLACEHOLDER)):
            self.show(None)
        return text

    def show(self, image: Any) -> str:
        """Show an image, or the next one of the column; returns the placeholder."""
        shown = next(self._column, None) if image is None else _reference(image)
        if shown is None:
            raise RowError(
                f"the messages have more {IMAGE_PLACEHOLDER} placeholders than the row has images "
                f"({self._count})"
            )
        self.shown.append(shown)
        return IMAGE_PLACEHOLDER

    def check_all_shown(self) -> None:
        left = sum(1 for _ in self._column)
        if left:
            raise RowError(
                f"{left} of {self._count} images have no {IMAGE_PLACEHOLDER} placeholder in the "
                "messages"
            )


def _reference(image: Any) -> ImageReference:
    """An image in any of its spellings.

    Raises:
        RowError: When it is none.
    """
    if isinstance(image, Mapping):
        if image.get("bytes") is not None:
            image = image["bytes"]
        else:
            image = image.get("path") or image.get("image") or image.get("url")
    if isinstance(image, Image):
        image = _as_png(image)
    if isinstance(image, bytes | bytearray):
        return ImageReference(bytes(image))
    if isinstance(image, str) and image.strip() and "\0" not in image:
        return ImageReference(None, image)
    raise RowError(f"an image is {seen(image)}; give a path, a URL, or the bytes of a file")


def _as_png(image: Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


# ----------------------------------------------------------------------------- the other fields


def _interaction(
    row: Mapping[str, Any], fields: Fields, form: Form, interaction: str | None
) -> dict[str, Any]:
    """The row's ``interaction_kwargs``, with a name and a ground truth if they can be found."""
    extra = _mapping(row, "extra_info")
    arguments = {
        **_mapping(row, "interaction_kwargs"),
        **_mapping(extra, "interaction_kwargs"),
    }
    name = arguments.pop("name", None)
    name = interaction if name is None else name
    if name is not None:
        if not isinstance(name, str) or not name:
            raise RowError(f"the interaction's name is {seen(name)}; give a text")
        arguments = {"name": name, **arguments}
    if arguments.get("ground_truth") is None:
        truth = _mapping(row, "reward_model").get("ground_truth")
        if truth is None and fields.answer is not None:
            truth = row.get(fields.answer)
        if truth is not None:
            arguments["ground_truth"] = truth
        elif fields.answer is not None and (form == "plain" or not _is_verl(row)):
            raise RowError(
                f"there is no {fields.answer!r}; set fields.answer to the name of the field with "
                "the answer, or to null if there is none"
            )
    return arguments


def _is_verl(row: Mapping[str, Any]) -> bool:
    """Whether the row has one of the fields that only verl's form has."""
    return any(row.get(name) is not None for name in _VERLS)


def _mapping(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object, or one as JSON; empty if there is none.

    Raises:
        RowError: When it is anything else.
    """
    value = row.get(name)
    if isinstance(value, str):
        value = _from_json(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RowError(f"{name!r} is {seen(row.get(name))}; give an object, or one as JSON")
    return dict(value)


def _from_json(text: str) -> Any:
    """The value of a JSON text; the text itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _split(row: Mapping[str, Any], name: str | None) -> Split | None:
    if name is None:
        return None
    split = row.get(name)
    if not isinstance(split, str) or split.casefold() not in _SPLITS:
        raise RowError(f"{name!r} is {seen(split)}; give train, validation or test")
    return _SPLITS[split.casefold()]
