"""Scores of short answers, as in SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """The answer in lower case, without punctuation, English articles and extra white space."""
    plain = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if the answer equals one of the references after normalisation, else 0."""
    return float(normalised(answer) in map(normalised, references))


def f1(answer: str, references: Sequence[str]) -> float:
    """The largest F1 between the words of the answer and those of a reference.

    A yes or no, and an answer without words, must match exactly, as in HotpotQA's evaluation.
    """
    return max((_f1(normalised(answer), normalised(each)) for each in references), default=0.0)


def _f1(answer: str, reference: str) -> float:
    if {answer, reference} & {"yes", "no", "noanswer", ""}:
        return float(answer == reference)
    said, wanted = answer.split(), reference.split()
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))
