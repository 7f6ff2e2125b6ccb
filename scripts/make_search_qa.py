"""Makes the corpora and questions of `vagentrl_envs.search_qa`, from seeds and nothing else.

    python scripts/make_search_qa.py

A world is a graph of invented entities: one passage for each of them, and questions along its
edges. Every split has a world of its own, and no edge leads from one to another. So an entity that
a held-out question asks for, answers with or passes through occurs in no question of training. The
passages of all worlds are one corpus.

The set `standard` is written in English sentences, and `terse` in short phrases for tiny models.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

TARGET = Path(__file__).parents[1] / "envs/vagentrl_envs/search_qa/data"
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
T = TypeVar("T")

VOWELS = "aeiou"
CONSONANTS = "bdfgklmnprstvz"
CAPITALS = "BCDFGHJKLMNPQRSTVWXZ"
GIVEN = (
    "Adan", "Berta", "Cyra", "Dario", "Edda", "Falk", "Gilda", "Hannes", "Ilya", "Jorun",
    "Kaia", "Lorenz", "Marit", "Nils", "Odile", "Pavel", "Runa", "Selma", "Tomas", "Ulla",
    "Viktor", "Wanda", "Yara", "Zeno",
)  # fmt: skip
COLOURS = (
    "Amber", "Ashen", "Bitter", "Broken", "Copper", "Distant", "Frozen", "Gilded", "Hollow",
    "Iron", "Quiet", "Salt",
)  # fmt: skip
THINGS = (
    "Anchor", "Bridge", "Candle", "Compass", "Door", "Feather", "Garden", "Harbor", "Lantern",
    "Ledger", "Mirror", "Orchard", "Quarry", "Ribbon", "Shore", "Staircase", "Thread", "Tower",
    "Violin", "Window",
)  # fmt: skip
RUDE = (  # short names that would be words
    "COC", "COX", "CUM", "DIC", "DIK", "FAG", "FAP", "FUC", "FUK", "JAP", "JEW", "JIZ", "KUK",
    "NAZ", "NIG", "RAP", "SEX", "SUK", "TIT", "VAG", "WOG", "WOP",
)  # fmt: skip
JOBS = (
    "architect", "botanist", "chemist", "composer", "engineer", "historian", "painter",
    "physician",
)  # fmt: skip


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of the items. `Random.random` alone gives the same numbers in every version of Python."""
    return items[int(rng.random() * len(items))]


def between(rng: Random, low: int, high: int) -> int:
    """A whole number from low to below high."""
    return low + int(rng.random() * (high - low))


@dataclass(frozen=True)
class Relation:
    """An edge of the graph.

    Attributes:
        target: The kind of entity that it leads to.
        sentence: How the passage of its start tells it, with the target in place of ``{}``.
        phrase: The target described by its start, such as ``the author of {}``.
        question: The question for the target, with the start or a phrase for it in place of ``{}``.
    """

    target: str
    sentence: str
    phrase: str
    question: str


@dataclass(frozen=True)
class Kind:
    """A kind of entity.

    Attributes:
        count: How many there are in all worlds.
        name: The form of its name: ``{root}`` is a word of its own, ``{given}``, ``{colour}`` and
            ``{thing}`` are words that others have too.
        lead: The first sentence of its passage, with ``{name}``, ``{number}`` and ``{job}``.
        numbers: The bounds of ``{number}``.
        relations: Its edges.
        compared: The question that compares the numbers of two of them, ``{}`` and ``{}``, and
            whether its answer is the larger; None for none.
    """

    count: int
    name: str
    lead: str
    numbers: tuple[int, int] = (0, 1)
    relations: tuple[Relation, ...] = ()
    compared: tuple[str, bool] | None = None


STANDARD = {
    "person": Kind(
        620, "{given} {root}", "{name} was a {job}, born in {number}.", (1700, 1980),
        (
            Relation("town", "The birthplace was {}.", "the birthplace of {}",
                     "In which town was {} born?"),
            Relation("school", "There were years of study at {}.", "the school where {} studied",
                     "At which school did {} study?"),
        ),
        ("Who was born earlier, {} or {}?", False),
    ),
    "town": Kind(
        340, "{root}", "{name} is a town of {number} inhabitants.", (2_000, 900_000),
        (
            Relation("country", "It lies in {}.", "the country of {}", "In which country is {}?"),
            Relation("river", "Its old quarter stands on the banks of the {}.",
                     "the river that flows through {}", "Which river flows through {}?"),
        ),
        ("Which town has more inhabitants, {} or {}?", True),
    ),
    "country": Kind(
        40, "{root}ia", "{name} is a country of {number} square kilometres.", (9_000, 700_000),
        (Relation("town", "Its capital is {}.", "the capital of {}",
                  "What is the capital of {}?"),),
        ("Which country is larger, {} or {}?", True),
    ),
    "river": Kind(
        120, "{root} River", "{name} is {number} kilometres long.", (40, 2_400),
        (Relation("mountain", "It rises on {}.", "the mountain on which {} rises",
                  "On which mountain does {} rise?"),),
        ("Which is longer, {} or {}?", True),
    ),
    "mountain": Kind(
        120, "Mount {root}", "{name} is {number} metres high.", (900, 7_800),
        (Relation("person", "It was first climbed by {}.", "the first climber of {}",
                  "Who first climbed {}?"),),
        ("Which is higher, {} or {}?", True),
    ),
    "school": Kind(
        120, "{root} Academy", "{name} was opened in {number}.", (1500, 1950),
        (
            Relation("town", "Its buildings are in {}.", "the town of {}", "In which town is {}?"),
            Relation("person", "It was founded by {}.", "the founder of {}", "Who founded {}?"),
        ),
        ("Which is older, {} or {}?", False),
    ),
    "company": Kind(
        180, "{root} Works", "{name} is a company that was registered in {number}.", (1800, 2015),
        (
            Relation("town", "Its headquarters are in {}.", "the town with the headquarters of {}",
                     "In which town are the headquarters of {}?"),
            Relation("person", "It was started by {}.", "the person who started {}",
                     "Who started {}?"),
        ),
        ("Which was registered earlier, {} or {}?", False),
    ),
    "book": Kind(
        200, "The {colour} {thing}", "{name} is a novel that appeared in {number}.", (1850, 2020),
        (
            Relation("person", "The author is {}.", "the author of {}", "Who wrote {}?"),
            Relation("company", "It was printed by {}.", "the company that printed {}",
                     "Which company printed {}?"),
        ),
        ("Which novel appeared earlier, {} or {}?", False),
    ),
    "film": Kind(
        180, "{thing} of {root}", "{name} is a film of {number} minutes.", (70, 240),
        (
            Relation("person", "Its director is {}.", "the director of {}", "Who directed {}?"),
            Relation("book", "The story is that of {}.", "the novel that {} is based on",
                     "Which novel is {} based on?"),
        ),
        ("Which film is longer, {} or {}?", True),
    ),
    "band": Kind(
        180, "{root} Quartet", "{name} has made {number} records.", (1, 90),
        (
            Relation("person", "It is led by {}.", "the leader of {}", "Who leads {}?"),
            Relation("town", "It rehearses in {}.", "the town where {} rehearses",
                     "In which town does {} rehearse?"),
        ),
        ("Which has made more records, {} or {}?", True),
    ),
}  # fmt: skip

TERSE = {
    "book": Kind(
        400, "{short}", "book",
        relations=(
            Relation("person", "author {}", "author of {}", "author of {}"),
            Relation("town", "scene {}", "scene of {}", "scene of {}"),
        ),
    ),
    "person": Kind(
        300, "{short}", "person",
        relations=(
            Relation("town", "home {}", "home of {}", "home of {}"),
            Relation("person", "friend {}", "friend of {}", "friend of {}"),
        ),
    ),
    "town": Kind(
        200, "{short}", "town",
        relations=(
            Relation("land", "land {}", "land of {}", "land of {}"),
            Relation("person", "mayor {}", "mayor of {}", "mayor of {}"),
        ),
    ),
    "land": Kind(
        100, "{short}", "land",
        relations=(Relation("town", "capital {}", "capital of {}", "capital of {}"),),
    ),
}  # fmt: skip


@dataclass
class Entity:
    """An entity of a world; its edges are added when all entities are there."""

    kind: Kind
    name: str
    number: int
    job: str
    edges: list[tuple[Relation, Entity]] = field(default_factory=list)

    def passage(self, separator: str) -> dict[str, str]:
        lead = self.kind.lead.format(name=self.name, number=self.number, job=self.job)
        told = [relation.sentence.format(target.name) for relation, target in self.edges]
        return {"title": self.name, "text": separator.join([lead, *told])}


@dataclass(frozen=True)
class Set:
    """A set of passages and questions.

    Attributes:
        kinds: The kinds of entities.
        separator: What stands between the sentences of a passage.
        questions: How many questions of each type there are in all splits.
        seed: Decides everything.
    """

    kinds: dict[str, Kind]
    separator: str
    questions: dict[str, int]
    seed: int


SETS = {
    "standard": Set(STANDARD, " ", {"one-hop": 400, "two-hop": 900, "comparison": 300}, 1),
    "terse": Set(TERSE, "; ", {"one-hop": 800, "two-hop": 1600}, 2),
}


class Names:
    """Draws names that no two entities share."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def draw(self, form: str) -> str:
        while True:
            word = self._short() if "{short}" in form else self._root()
            name = form.format(
                root=word,
                short=word,
                given=pick(self._rng, GIVEN),
                colour=pick(self._rng, COLOURS),
                thing=pick(self._rng, THINGS),
            )
            # A name with a word of its own may share the others.
            key = name if "{thing}" in form and "{root}" not in form else word
            if key not in self._used and word not in RUDE:
                self._used.add(key)
                return name

    def _root(self) -> str:
        syllables = 2 if self._rng.random() < 0.6 else 3
        body = "".join(
            pick(self._rng, CONSONANTS) + pick(self._rng, VOWELS) for _ in range(syllables)
        )
        return (body + pick(self._rng, CONSONANTS)).capitalize()

    def _short(self) -> str:
        letters = (CAPITALS, VOWELS.upper(), CAPITALS)
        return "".join(pick(self._rng, each) for each in letters)


def world(kinds: dict[str, Kind], share: float, names: Names, rng: Random) -> list[Entity]:
    """The entities of a world, with their edges."""
    made: dict[str, list[Entity]] = {}
    for name, kind in kinds.items():
        count = max(2, round(share * kind.count))
        made[name] = [
            Entity(kind, names.draw(kind.name), between(rng, *kind.numbers), pick(rng, JOBS))
            for _ in range(count)
        ]
    entities = [entity for each in made.values() for entity in each]
    for entity in entities:
        for relation in entity.kind.relations:
            others = [other for other in made[relation.target] if other is not entity]
            entity.edges.append((relation, pick(rng, others)))
    return entities


def one_hop(entities: Sequence[Entity], rng: Random) -> dict[str, Any]:
    start = pick(rng, entities)
    relation, target = pick(rng, start.edges)
    return {
        "question": relation.question.format(start.name),
        "answer": target.name,
        "supporting_facts": [start.name],
    }


def two_hop(entities: Sequence[Entity], rng: Random) -> dict[str, Any] | None:
    start = pick(rng, entities)
    first, bridge = pick(rng, start.edges)
    second, target = pick(rng, bridge.edges)
    if target is start:  # the question would contain its answer
        return None
    return {
        "question": second.question.format(first.phrase.format(start.name)),
        "answer": target.name,
        "supporting_facts": [start.name, bridge.name],
    }


def comparison(entities: Sequence[Entity], rng: Random) -> dict[str, Any] | None:
    one = pick(rng, [entity for entity in entities if entity.kind.compared])
    other = pick(rng, [entity for entity in entities if entity.kind is one.kind])
    if one.kind.compared is None or one.number == other.number:
        return None
    question, larger = one.kind.compared
    answer = max(one, other, key=lambda entity: entity.number * (1 if larger else -1))
    return {
        "question": question.format(one.name, other.name),
        "answer": answer.name,
        "supporting_facts": [one.name, other.name],
    }


MAKERS = {"one-hop": one_hop, "two-hop": two_hop, "comparison": comparison}


def make(name: str) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """The passages and the questions of a set."""
    plan = SETS[name]
    rng = Random(plan.seed)
    names, passages, questions = Names(rng), [], []
    for split, share in SHARES.items():
        entities = world(plan.kinds, share, names, rng)
        passages += [entity.passage(plan.separator) for entity in entities]
        for kind, count in plan.questions.items():
            asked: dict[str, dict[str, Any]] = {}
            while len(asked) < round(share * count):
                drawn = MAKERS[kind](entities, rng)
                if drawn is not None:
                    asked.setdefault(drawn["question"], drawn)
            questions += [{**each, "type": kind, "split": split} for each in asked.values()]
    return sorted(passages, key=lambda passage: passage["title"]), questions


def files(name: str) -> Iterator[tuple[Path, bytes]]:
    """The files of a set, before they are compressed."""
    for part, records in zip(("corpus", "questions"), make(name), strict=True):
        lines = [json.dumps(record, separators=(",", ":")) for record in records]
        yield TARGET / f"{name}_{part}.jsonl.gz", ("\n".join(lines) + "\n").encode()


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for name in SETS:
        for path, content in files(name):
            path.write_bytes(gzip.compress(content, 9, mtime=0))
            lines = len(content.splitlines())
            print(f"{path.name}: {lines} lines, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
