"""Questions whose answers must be searched for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vagentrl.environment import Outcome, Split, split_of
from vagentrl.errors import ConfigError
from vagentrl.formats import ReplyFormat
from vagentrl.types import Observation, Reply, StepResult
from vagentrl_envs.search_qa.questions import Question, read_questions
from vagentrl_envs.search_qa.retrievers import BM25Retriever, Passage, Retriever
from vagentrl_envs.search_qa.scoring import exact_match, f1
from vagentrl_envs.text_actions import TextAction, TextActionEnvironment

DATA = Path(__file__).parent / "data"
SHIPPED = ("standard", "terse")
"""The question sets that come with the package; both are made by `scripts/make_search_qa.py`."""
_NAME = re.compile(r"[A-Z][\w'-]*(?: (?:of |the )?[A-Z][\w'-]*)*")
_MOST_SUGGESTED = 12


class SearchQA(TextActionEnvironment):
    """Answer a question by searching a corpus.

    A turn is ``search[query]``, which shows the best passages, or ``answer[text]``, which ends the
    episode and earns its score. The setting is that of Search-R1 (Jin et al. 2025,
    arXiv:2503.09516). Success is an exact match after SQuAD's normalisation. The question is drawn
    from the seed; training, validation and test share no question, and the shipped sets share no
    answer and no entity on the way to it either.

    Args:
        questions: ``standard`` (English sentences), ``terse`` (short names and phrases, for tiny
            models), or a JSON Lines file in HotpotQA's format (see `read_questions`).
        retriever: Finds the passages; None for BM25 over the shipped corpus.
        kinds: Ask only questions of these types; None for all. The shipped ones are ``one-hop``,
            ``two-hop`` and ``comparison``.
        passages: Passages that a search shows.
        passage_characters: Most characters of a passage that are shown.
        reward: ``exact_match`` (0 or 1) or ``f1`` (0 to 1) of the answer.
        search_cost: Subtracted for each search.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        questions: str = "standard",
        retriever: Retriever | None = None,
        kinds: list[str] | None = None,
        passages: int = 3,
        passage_characters: int = 1000,
        reward: Literal["exact_match", "f1"] = "exact_match",
        search_cost: float = 0.0,
        turn_limit: int = 5,
        format: ReplyFormat | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            ("search[query]", "answer[text]"), format=format, turn_limit=turn_limit, **settings
        )
        if passages < 1 or passage_characters < 1 or search_cost < 0:
            raise ConfigError(
                f"passages is {passages}, passage_characters {passage_characters} and search_cost "
                f"{search_cost}; give 1 or more, 1 or more, and 0 or more"
            )
        if reward not in ("exact_match", "f1"):
            raise ConfigError(f"reward is {reward!r}; give exact_match or f1")
        shipped = questions in SHIPPED
        if retriever is None and not shipped:
            raise ConfigError(
                f"questions is {questions!r} and there is no retriever; give one over its corpus, "
                "such as BM25Retriever(corpus=…) or HttpRetriever(url=…), or ask the shipped "
                f"questions: {' or '.join(SHIPPED)}"
            )
        path = str(DATA / f"{questions}_questions.jsonl.gz") if shipped else questions
        self.questions = read_questions(path, None if kinds is None else tuple(kinds))
        self.retriever = retriever or BM25Retriever(str(DATA / f"{questions}_corpus.jsonl.gz"))
        self.passages = passages
        self.passage_characters = passage_characters
        self.reward = reward
        self.search_cost = search_cost
        self._question: Question
        self._searched: set[str] = set()
        self._retrieved: set[str] = set()
        self._found: Sequence[Passage] | None = None
        self._given: str | None = None

    # -------------------------------------------------------------------------------- the episode

    @property
    def question(self) -> Question:
        """The question of this episode."""
        return self._question

    @property
    def waits_s(self) -> float:
        return self.retriever.waits_s

    def oracle(self) -> tuple[str, ...] | None:
        """Search for each supporting passage that has not been shown, then answer.

        Where the support is unknown the one search is for the question itself, which may not find
        it.
        """
        if self._over:
            return ()
        wanted = self._question.support or (self._question.text,)
        missing = [title for title in wanted if title not in self._retrieved | self._searched]
        searches = [TextAction("search", title) for title in missing]
        return tuple(map(str, (*searches, TextAction("answer", self._question.answers[0]))))

    def initial_state(self, seed: int) -> str:
        return self._draw(seed).text

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if not (result.terminated or result.truncated):
            return result
        answer, references = self._given or "", self._question.answers
        # These describe the whole episode, so only its last turn reports them.
        scores = {"exact_match": exact_match(answer, references), "f1": f1(answer, references)}
        if support := self._question.support:
            shown = sum(title in self._retrieved for title in support)
            scores["support_found"] = shown / len(support)
        scores["answered"] = float(self._given is not None)
        return replace(result, metrics={**result.metrics, **scores})

    def _draw(self, seed: int) -> Question:
        split: Split = split_of(seed)
        questions = self.questions.of(split)
        return questions[int(np.random.default_rng(seed).integers(len(questions)))]

    def _start(self, seed: int, transition_seed: int) -> None:
        self._question = self._draw(seed)
        self._searched, self._retrieved = set(), set()
        self._found = self._given = None
        self._suggest_names()

    def _act(self, action: str) -> Outcome:
        verb, argument = self._read(action) or TextAction("", "")
        if verb == "answer":
            self._given = argument
            right = exact_match(argument, self._question.answers)
            score = right if self.reward == "exact_match" else f1(argument, self._question.answers)
            return Outcome(score, done=True, success=bool(right))
        self._found = self.retriever.search(argument, self.passages)
        self._searched.add(argument)
        before = len(self._retrieved)
        self._retrieved |= {passage.title for passage in self._found}
        self._suggest_names()
        return Outcome(-self.search_cost, changed=len(self._retrieved) > before)

    # ------------------------------------------------------------------------------ what is shown

    def _observe(self) -> Observation:
        lines = [f"Question: {self._question.text}"]
        if self._found is not None:
            lines += [
                f"[{number}] {title}: {text[: self.passage_characters]}"
                for number, (title, text) in enumerate(self._found, 1)
            ] or ["No passage was found."]
        return Observation("\n".join(lines))

    def _suggest_names(self) -> None:
        """Suggest to search for, and to answer with, the names in the question and in what was
        found."""
        # The first word of a question has a capital letter without being a name.
        asked = [name[0] for name in _NAME.finditer(self._question.text) if name.start() > 0]
        found = [
            name for title, text in self._found or () for name in (title, *_NAME.findall(text))
        ]
        names = list(dict.fromkeys([*asked, *found]))[:_MOST_SUGGESTED] or [self._question.text]
        self._suggest([TextAction(verb, name) for name in names for verb in ("search", "answer")])

    def system_prompt(self) -> str:
        plural = "passage" if self.passages == 1 else f"{self.passages} passages"
        return "\n".join(
            [
                "Answer the question. search[query] shows the best "
                f"{plural} for a query; answer[text] gives your answer, which ends the task. "
                f"Answer with a name or a few words, in at most {self.turn_limit} turns.",
                self.format.instructions(self.actions_per_turn),
            ]
        )
