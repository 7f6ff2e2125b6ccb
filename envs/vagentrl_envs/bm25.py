"""Full-text search over a fixed list of texts (extra ``search``)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from vagentrl.errors import ConfigError

LONGEST_QUERY = 64
"""Words of a query that count."""
_ALONE = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters and Japanese syllables: what is written without spaces between words."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def words(text: str) -> list[str]:
    """The words and numbers of a text in lower case, without accents and compatibility forms.

    A Chinese character or a Japanese syllable is a word of its own, as in Lucene's standard
    tokenizer.
    """
    if not text.isascii():  # most texts are, and large corpora take minutes otherwise
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(each for each in decomposed if not unicodedata.combining(each))
    return _WORD.findall(text.casefold())


class BM25Index:
    """Ranks texts by BM25 (Robertson and Zaragoza, 2009), as `bm25s` computes it.

    Equal scores are ordered by the position of the text, so that the ranking is the same on every
    machine. An index never changes; its deep copy is itself.

    Args:
        texts: The texts to search.
        k1: How soon a repeated word stops counting.
        b: How much long texts are marked down, from 0 to 1.

    Raises:
        ConfigError: If `bm25s` is not installed, or no text contains a word.
    """

    def __init__(self, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        try:
            import bm25s  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ConfigError(
                "the search needs bm25s, which is not installed: pip install 'vagentrl[search]'"
            ) from error
        tokens = [words(text) for text in texts]
        if not any(tokens):
            raise ConfigError(f"none of the {len(tokens)} texts to search contains a word")
        self._vocabulary = frozenset(word for text in tokens for word in text)
        self._scorer = bm25s.BM25(k1=k1, b=b)
        self._scorer.index(tokens, show_progress=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> BM25Index:
        return self

    def top(self, query: str, count: int) -> list[int]:
        """The positions of the best texts, best first; only texts that share a word with the query.

        Args:
            query: What to look for; words beyond `LONGEST_QUERY` are ignored.
            count: Most positions to return.
        """
        known = [word for word in words(query)[:LONGEST_QUERY] if word in self._vocabulary]
        if not known:
            return []
        scores = self._scorer.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:count]
        return [int(position) for position in best if scores[position] > 0]
