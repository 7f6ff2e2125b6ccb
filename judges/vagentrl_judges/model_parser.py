"""ModelParser: a language model that extracts relations from text, without judging it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vagentrl.chat import ChatModel, PromptFile, without_thoughts
from vagentrl.errors import ChatError, ConfigError, JudgeError
from vagentrl_judges.questions import fresh_code, probe
from vagentrl_judges.relations import ANY, LESS, MORE, Range, Relation, RelationParser, at

SHOWN = 200
"""Number of characters of a reply that an error quotes."""

_DISTANCES: Mapping[Any, Range] = {"more": MORE, "less": LESS, None: ANY}


class ModelParser(RelationParser):
    """Asks a language model for the relations in a text, as JSON.

    The model sees the text and the names of the classes but never the truth. A text that
    manipulates the model can therefore only change what is claimed, and the claim is still scored
    against the truth. A reply must be exactly the requested JSON; relations with other classes are
    ignored.

    Args:
        model: The chat model to ask.
        prompt: Path of a text file with a custom prompt; it must contain ``$claim``, ``$classes``
            and ``$code``.
        max_tokens: Maximum length of a reply in tokens.
        repeats: How often to ask again after a reply that is not the requested JSON.
    """

    def __init__(
        self, model: ChatModel, prompt: str | None = None, max_tokens: int = 1024, repeats: int = 1
    ) -> None:
        if max_tokens < 1 or repeats < 0:
            raise ConfigError(
                f"max_tokens is {max_tokens} and repeats is {repeats}; give at least 1 and 0"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.repeats = repeats
        self.parsed = 0
        self.unreadable = 0
        self._prompt = PromptFile(
            prompt,
            Path(__file__).with_name("model_parser.txt"),
            needed=("claim", "classes", "code"),
        )

    def identity(self) -> str:
        return f"ModelParser {self._prompt.identity()} {self.max_tokens} {self.model.identity()}"

    def metrics(self) -> Mapping[str, float]:
        own = {"parsed": self.parsed, "unreadable": self.unreadable}
        return {**self.model.metrics(), **own}

    async def probe(self) -> None:
        await probe(self.model)

    async def parse(self, text: str, classes: Collection[str]) -> list[Relation]:
        said = ""
        for _ in range(self.repeats + 1):
            prompt = self._prompt.fill(
                claim=text, classes=", ".join(classes), code=fresh_code(text)
            )
            try:
                reply = await self.model.complete(prompt, max_tokens=self.max_tokens)
            except ChatError as error:
                raise JudgeError(
                    f"ModelParser got no reply: {error}", caused_by_claim=error.caused_by_prompt
                ) from error
            said = without_thoughts(reply.text)
            relations = read_relations(said)
            if relations is not None:
                self.parsed += 1
                return [
                    relation
                    for relation in relations
                    if relation.thing in classes and (relation.of is None or relation.of in classes)
                ]
            self.unreadable += 1
        raise JudgeError(
            f"ModelParser got no relations from {self.repeats + 1} replies; the last one begins "
            f"with {said.strip()[:SHOWN]!r}. Use a model that follows instructions better, request "
            "JSON with OpenAIChat.extra_body, or raise repeats",
            caused_by_claim=True,
        )


def read_relations(reply: str) -> list[Relation] | None:
    """Return the relations in a reply; None if it is not exactly the requested JSON."""
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", reply.strip(), re.DOTALL)
    try:
        written = json.loads(fenced[1] if fenced else reply)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict) or set(written) != {"relations"}:
        return None
    if not isinstance(written["relations"], list):
        return None
    relations = [_relation(one) for one in written["relations"]]
    known = [relation for relation in relations if relation is not None]
    return known if len(known) == len(relations) else None


def _relation(written: Any) -> Relation | None:
    match written:
        case {"thing": str(thing), "row": row, "column": column, **rest} if not rest:
            whole = type(row) is int and type(column) is int
            return at(thing, row, column) if whole else None
        case {"thing": str(thing), "of": str(of), "down": down, "right": right, **rest} if not rest:
            rows, columns = _range(down), _range(right)
            if rows is None or columns is None:
                return None
            return Relation(thing, rows, columns, of)
    return None


def _range(how_far: Any) -> Range | None:
    if type(how_far) is int:
        return (how_far, how_far)
    return _DISTANCES.get(how_far) if how_far is None or isinstance(how_far, str) else None
