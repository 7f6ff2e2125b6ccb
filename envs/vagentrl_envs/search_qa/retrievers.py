"""Where passages come from: an index in this process, or a retrieval server."""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from vagentrl.errors import ConfigError, EnvError, seen
from vagentrl_envs.bm25 import BM25Index
from vagentrl_envs.json_lines import Record, read_records
from vagentrl_envs.text_actions import readable

LONGEST_PASSAGE = 4000
"""Characters of a passage that are kept."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


class Passage(NamedTuple):
    """A piece of text that a search can find."""

    title: str
    text: str

    @classmethod
    def read(cls, record: Record) -> Passage:
        """The passage in a record with ``title`` and ``text``, or with ``contents``, whose first
        line is the title.

        Raises:
            ConfigError: If there is no text.
        """
        title, text = record.text("title"), record.text("text")
        if text is None:
            contents = record.text("contents")
            if contents is None:
                raise record.error(
                    f"the fields are {', '.join(record.fields) or 'none'}; give 'title' and "
                    "'text', or 'contents' with the title in its first line"
                )
            first, _, text = contents.partition("\n")
            title = title or first.strip().strip('"')
        return cls(readable(title or ""), readable(text[:LONGEST_PASSAGE]))


class Retriever(ABC):
    """Finds passages for a query."""

    @property
    def waits_s(self) -> float:
        """Seconds that a search may take beyond `data.timeout_s`."""
        return 0.0

    @abstractmethod
    def search(self, query: str, limit: int) -> Sequence[Passage]:
        """The best passages for a query, best first; at most `limit`.

        Raises:
            EnvError: If the search fails. The episode then fails too; it is no bad reward.
        """


class BM25Retriever(Retriever):
    """BM25 over passages in memory (extra ``search``).

    Args:
        corpus: A JSON Lines file with ``title`` and ``text`` in each line, or with ``contents``,
            whose first line is the title (the format of Search-R1's corpora). A file of
            HotpotQA's questions does too: the passages are the paragraphs in their ``context``.
        title_weight: How often the words of a title count.
        k1: How soon a repeated word stops counting.
        b: How much long passages are marked down, from 0 to 1.
    """

    def __init__(
        self, corpus: str, title_weight: int = 2, k1: float = 1.2, b: float = 0.75
    ) -> None:
        if title_weight < 0:
            raise ConfigError(f"title_weight is {title_weight}; give 0 or more")
        if k1 < 0 or not 0 <= b <= 1:
            raise ConfigError(f"k1 is {k1} and b {b}; give k1 of 0 or more, and b from 0 to 1")
        # Environments of one process share the index.
        self.passages = _read_corpus(corpus)
        self._index = _indexed(self.passages, title_weight, k1, b)

    def search(self, query: str, limit: int) -> list[Passage]:
        return [self.passages[position] for position in self._index.top(query, limit)]


@lru_cache(maxsize=8)
def _read_corpus(corpus: str) -> tuple[Passage, ...]:
    passages = tuple(dict.fromkeys(chain.from_iterable(map(_read, read_records(Path(corpus))))))
    if not passages:
        raise ConfigError(f"{corpus} holds no passage; give one JSON object per line")
    return passages


def _read(record: Record) -> list[Passage]:
    """The passages of a line: the line itself, or the paragraphs in its ``context``."""
    context = record.fields.get("context")
    if context is None:
        return [Passage.read(record)]
    try:
        if isinstance(context, dict):  # as in Hugging Face's data sets
            context = list(zip(context["title"], context["sentences"], strict=True))
        return [
            Passage(readable(title), readable(" ".join(sentences)[:LONGEST_PASSAGE]))
            for title, sentences in context
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise record.error(
            f"'context' is {seen(context)}; give a list of [title, [sentence, …]], as HotpotQA does"
        ) from error


@lru_cache(maxsize=8)
def _indexed(passages: tuple[Passage, ...], title_weight: int, k1: float, b: float) -> BM25Index:
    texts = [" ".join((*[title] * title_weight, text)) for title, text in passages]
    return BM25Index(texts, k1, b)


class HttpRetriever(Retriever):
    """A retrieval server that answers like Search-R1's (Jin et al. 2025, arXiv:2503.09516).

    It is asked by POST with ``{"queries": [query], "topk": k, "return_scores": true}`` and answers
    ``{"result": [[{"document": {"contents": "Title\\ntext"}, "score": 1.5}, ...]]}``; a document
    may have ``title`` and ``text`` instead, and may stand there without a score. The index behind
    it should not change during a run, or episodes cannot be repeated.

    Args:
        url: The address of the endpoint, such as ``http://127.0.0.1:8000/retrieve``.
        timeout_s: Seconds to wait for one answer.
        retries: How often to ask again after a failed connection, a time-out, or a status of 429
            or 500 and above. The pause before each doubles, from half a second to 8 seconds.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000/retrieve",
        timeout_s: float = 20.0,
        retries: int = 3,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url is {url!r}; it starts with http:// or https://")
        if not 0 < timeout_s < float("inf") or retries < 0:
            raise ConfigError(
                f"timeout_s is {timeout_s} and retries {retries}; give more than 0 seconds, and 0 "
                "or more retries"
            )
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self.transport: httpx.BaseTransport | None = None  # the network

    @property
    def waits_s(self) -> float:
        # httpx applies the time-out to connecting, to writing and to reading.
        return 3 * self.timeout_s * (1 + self.retries) + sum(map(_pause_s, range(self.retries)))

    def search(self, query: str, limit: int) -> list[Passage]:
        answer = self._ask({"queries": [query], "topk": limit, "return_scores": True})
        try:
            (found,) = _list(answer["result"])
            return [self._passage(each, number) for number, each in enumerate(_list(found), 1)][
                :limit
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(
                f"{self.url} answered {seen(answer)}; wanted one list of documents for the one "
                'query, as in {"result": [[{"document": {"contents": "…"}, "score": 1.0}]]}: '
                f"{error}"
            ) from error

    def _ask(self, request: dict[str, Any]) -> Any:
        """The server's answer, after as many tries as it takes and is allowed."""
        # One retriever serves many environments and is sent to other processes, so it keeps no
        # connection.
        with httpx.Client(
            timeout=self.timeout_s, transport=self.transport, verify=_certificates()
        ) as client:
            for attempt in count():
                try:
                    response = client.post(self.url, json=request)
                    response.raise_for_status()
                    return response.json()
                except (httpx.HTTPError, ValueError, RecursionError) as error:
                    if attempt == self.retries or not _may_pass(error):
                        raise EnvError(
                            f"the retrieval server at {self.url} gave no passages in try "
                            f"{attempt + 1}: {type(error).__name__}: {error}. {self._hint(error)}"
                        ) from error
                time.sleep(_pause_s(attempt))

    def _hint(self, error: Exception) -> str:
        """What to look at after a failed request."""
        if isinstance(error, httpx.HTTPStatusError):
            return f"It said {error.response.text[:200]!r}; is this the right path?"
        if isinstance(error, httpx.TransportError):
            return f"Is it running, and does it answer within {self.timeout_s:g} s?"
        return "It must answer in JSON; is this the right server?"

    def _passage(self, found: Any, number: int) -> Passage:
        if isinstance(found, dict) and "document" in found:
            found = found["document"]
        if isinstance(found, str):
            found = {"contents": found}
        if not isinstance(found, dict):
            raise TypeError(f"document {number} is {seen(found)}")
        return Passage.read(Record(found, f"document {number}"))


def _list(answered: Any) -> list[Any]:
    if not isinstance(answered, list):
        raise TypeError(f"{seen(answered)} is no list")
    return answered


@cache
def _certificates() -> ssl.SSLContext:
    """Read once, because reading them takes longer than most searches."""
    return ssl.create_default_context()


def _pause_s(attempt: int) -> float:
    return min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)
