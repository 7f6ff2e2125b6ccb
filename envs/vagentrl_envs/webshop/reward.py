"""What a purchase earns, by the definition in WebShop (Yao et al. 2022, arXiv:2207.01206).

    reward = type · (attributes + options + price) / (wanted attributes + wanted options + 1)

with the number of wanted attributes and options that the purchase has, and 1 if its price is not
above the limit. The original finds the nouns of a title by a language model and knows which
colours are alike; here all words of a title count but the smallest ones and those of the product's
attributes, which are mostly adjectives, and colours must agree in their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from vagentrl_envs.bm25 import words
from vagentrl_envs.webshop.catalogue import Product

ALIKE = 0.85
"""Two phrases mean the same above this likeness."""
_SMALL_WORDS = frozenset((
    "a", "an", "and", "at", "by", "for", "from", "in", "it", "its", "of", "on", "or", "that",
    "the", "this", "to", "with", "without", "your",
))  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """What the customer wants.

    Attributes:
        product: A product that fulfils it.
        attributes: What the product must be like.
        options: What must be chosen: names with their values. The name is empty where the wish
            tells only the value.
        limit: The highest price in dollars.
        wish: What is asked for in words, but for the limit.
    """

    product: Product
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    limit: float
    wish: str

    @property
    def text(self) -> str:
        """The wish with the limit, as the customer says it."""
        return f"{self.wish}, for at most ${self.limit:.0f}."


@dataclass(frozen=True)
class Score:
    """The parts of a reward, each from 0 to 1.

    Attributes:
        total: The reward.
        type: How far the product is of the wanted type: 0, 0.1, 0.5 or 1.
        attributes: Share of the wanted attributes that it has.
        options: Share of the wanted options that were chosen.
        price: 1 if it costs no more than the limit, else 0.
    """

    total: float
    type: float
    attributes: float
    options: float
    price: float


def score(goal: Goal, bought: Product, chosen: Sequence[str]) -> Score:
    """What a purchase earns.

    Args:
        goal: What was wanted.
        bought: The product.
        chosen: The values of its options that were chosen.
    """
    type_score = type_match(goal.product, bought)
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    options = sum(any(alike(value, each) for each in chosen) for _, value in goal.options)
    price = float(bought.price <= goal.limit)
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Score(
        total=type_score * (attributes + options + price) / wanted,
        type=type_score,
        attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        options=options / len(goal.options) if goal.options else 1.0,
        price=price,
    )


def type_match(wanted: Product, bought: Product) -> float:
    """How far two products are of one type.

    With the share of the wanted title's words that the other title has: 0 if there is none, 0.1 if
    it is below 0.1, 0.5 if it is at most 0.2 and neither the query nor two levels of the category
    agree, and else 1. A wanted title without such a word counts as sharing 0.2.
    """
    title = wanted.title_words - _SMALL_WORDS - set(words(" ".join(wanted.attributes)))
    shared = len(title & bought.title_words) / len(title) if title else 0.2
    if shared < 0.1:
        return 0.1 if shared else 0.0
    same_query = wanted.query == bought.query != ""
    same_category = len(set(wanted.path) & set(bought.path)) >= 2
    return 1.0 if shared > 0.2 or same_query or same_category else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether one of the product's attributes is like this one, or its texts contain it."""
    if any(alike(attribute, each) for each in product.attributes):
        return True
    texts = (product.name, product.description, *product.features)
    return any(attribute.casefold() in text.casefold() for text in texts)


@lru_cache(maxsize=8192)
def alike(one: str, other: str) -> bool:
    """Whether two phrases are alike in their words, whatever the order and the repetitions.

    The shared words are compared with each phrase, and the phrases with each other, as sorted
    text; the best counts (token-set similarity). So a phrase is like one that contains its words.
    """
    mine, theirs = set(words(one)), set(words(other))
    if not mine or not theirs:  # such as "+" and "++"
        return one.casefold() == other.casefold()
    shared = " ".join(sorted(mine & theirs))
    mine_whole, theirs_whole = (
        f"{shared} {' '.join(sorted(rest))}".strip() for rest in (mine - theirs, theirs - mine)
    )
    pairs = [(mine_whole, theirs_whole)]
    if shared:
        pairs += [(shared, mine_whole), (shared, theirs_whole)]
    return any(SequenceMatcher(None, *pair, autojunk=False).ratio() > ALIKE for pair in pairs)
