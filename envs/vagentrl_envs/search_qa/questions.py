"""Questions with their answers, and the files they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

from vagentrl.environment import Split, split_of_state
from vagentrl.errors import ConfigError, seen
from vagentrl_envs.json_lines import Record, read_records
from vagentrl_envs.search_qa.scoring import normalised
from vagentrl_envs.text_actions import LONGEST_ARGUMENT, readable

_SPLITS: dict[str, Split] = {
    **{split: split for split in get_args(Split)},
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
}
_LONGEST_QUESTION = 2000


@dataclass(frozen=True)
class Question:
    """A question with its answers.

    Attributes:
        text: The question.
        answers: All right answers.
        support: The titles of the passages that the answer follows from, in the order in which
            they must be found; empty if they are unknown.
        kind: What sort of question it is, such as ``one-hop`` or ``comparison``; may be empty.
        split: The split that it belongs to.
    """

    text: str
    answers: tuple[str, ...]
    support: tuple[str, ...]
    kind: str
    split: Split

    @classmethod
    def read(cls, record: Record) -> Question:
        """The question in a record; see `read_questions` for its fields.

        Raises:
            ConfigError: If a field is missing or is not what it should be.
        """
        text = readable((record.text("question", "query") or "")[:_LONGEST_QUESTION])
        if not text:
            raise record.error("there is no 'question', or it is empty")
        answers = tuple(
            dict.fromkeys(
                readable(answer[:LONGEST_ARGUMENT])
                for name in ("answer", "answers", "golden_answers")
                for answer in record.texts(name)
            )
        )
        if not any(answers):
            raise record.error(
                "there is no answer, or it is empty; give 'answer' as a string, or 'answers' or "
                "'golden_answers' as a list of strings"
            )
        return cls(text, answers, _support(record), record.text("type") or "", _split(record, text))


def _support(record: Record) -> tuple[str, ...]:
    """The titles of the supporting facts, without repetitions."""
    facts = record.fields.get("supporting_facts") or []
    if isinstance(
        facts, dict
    ):  # as in Hugging Face's data sets: {"title": [...], "sent_id": [...]}
        facts = facts.get("title")
    if not isinstance(facts, list):
        raise record.error(
            f"'supporting_facts' is {seen(facts)}; give a list of titles, or of [title, sentence "
            "number]"
        )
    titles = [fact[0] if isinstance(fact, list) and fact else fact for fact in facts]
    texts = [title for title in titles if isinstance(title, str)]
    if len(texts) < len(titles):
        raise record.error("a title in 'supporting_facts' is no string")
    return tuple(dict.fromkeys(map(readable, texts)))


def _split(record: Record, text: str) -> Split:
    name = record.text("split")
    if name is None:
        return split_of_state(normalised(text))
    if name.casefold() not in _SPLITS:
        raise record.error(f"'split' is {name!r}; give train, validation or test")
    return _SPLITS[name.casefold()]


@lru_cache(maxsize=8)
def read_questions(path: str, kinds: tuple[str, ...] | None = None) -> Questions:
    """The questions of a JSON Lines file, or of a JSON file with one list, by split.

    The fields are those of HotpotQA (Yang et al. 2018, arXiv:1809.09600): ``question``, ``answer``,
    and if there are any, ``type`` and ``supporting_facts``. In place of ``answer``, ``answers`` or
    ``golden_answers`` give several. ``split`` is train, validation or test; a question without it
    belongs to the split that a hash of its text decides: a tenth each for validation and test.

    Args:
        path: The file.
        kinds: Keep only questions of these types; None for all.

    Raises:
        ConfigError: If a line is wrong, if one question is in two splits, or if there is none.
    """
    places: dict[str, tuple[Split, str]] = {}
    found: defaultdict[Split, list[Question]] = defaultdict(list)
    types: set[str] = set()
    for record in read_records(Path(path)):
        question = Question.read(record)
        split, place = places.setdefault(normalised(question.text), (question.split, record.place))
        if split != question.split:
            raise record.error(
                f"the question is in split {question.split!r}, but it is in {split!r} too "
                f"({place}); an evaluation would then ask what was trained on"
            )
        types.add(question.kind)
        if kinds is None or question.kind in kinds:
            found[question.split].append(question)
    if not found:
        wanted = "" if kinds is None else f" of the kinds {', '.join(kinds)}"
        raise ConfigError(
            f"{path} holds no question{wanted}; its kinds are {', '.join(sorted(types)) or 'none'}"
        )
    return Questions(path, {split: tuple(each) for split, each in found.items()})


@dataclass(frozen=True)
class Questions:
    """The questions of a file.

    Attributes:
        path: The file.
        by_split: The questions of each split; a split without any is left out.
    """

    path: str
    by_split: dict[Split, tuple[Question, ...]]

    def of(self, split: Split) -> Sequence[Question]:
        """The questions of a split.

        Raises:
            ConfigError: If there is none.
        """
        if split not in self.by_split:
            there = ", ".join(f"{len(each)} for {name}" for name, each in self.by_split.items())
            raise ConfigError(
                f"{self.path} has no question for {split} (it has {there}); give some records "
                f'"split": "{split}", or leave \'split\' out so that the questions are divided'
            )
        return self.by_split[split]
