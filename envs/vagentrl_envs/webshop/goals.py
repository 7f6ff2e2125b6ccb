"""What customers want: drawn from the attributes of a product, or written for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import get_args

import numpy as np

from vagentrl.environment import Split, split_of, split_of_state
from vagentrl.errors import ConfigError, EnvError
from vagentrl_envs.webshop.catalogue import Catalogue, Instruction, Product
from vagentrl_envs.webshop.reward import Goal

_DRAWS = 2000
_STEP = 10
_HIGHEST_STEPS = 4
"""The price limit is one of so many multiples of `_STEP` dollars above the price."""


class Goals:
    """Draws goals, of which no two splits share a wish.

    Args:
        catalogue: The products.
        attributes: How many attributes a drawn goal asks for.
        written: Use the instructions that come with the products; else goals are drawn.
        split_products: Whether the splits share no wanted product either: the number of a product
            decides its split, and a wish that products of several splits fulfil to the letter
            belongs to test, or else to validation. Without it the wish decides its split. Both give
            a tenth to validation and test each.

    Raises:
        ConfigError: If a split has no product.
    """

    def __init__(
        self, catalogue: Catalogue, attributes: int, written: bool, split_products: bool
    ) -> None:
        self._attributes = attributes
        self._written = written
        self._split_products = split_products
        self._products: dict[Split, list[Product]] = {split: [] for split in get_args(Split)}
        self._by_topic: defaultdict[tuple[Split, str], list[Product]] = defaultdict(list)
        for product in catalogue.products:
            if not self._fits(product):
                continue
            own: Sequence[Split] = get_args(Split)
            if split_products:
                own = (split_of_state(product.asin),)
            for split in own:
                self._products[split].append(product)
                for topic in self._topics(product):
                    self._by_topic[split, topic].append(product)
        counts = {split: len(products) for split, products in self._products.items()}
        if not all(counts.values()):
            what = "an instruction" if written else f"a query and {attributes} attributes"
            there = ", ".join(f"{count} for {split}" for split, count in counts.items())
            raise ConfigError(
                f"the {len(catalogue.products)} products have these numbers with {what}: {there}; "
                "each split needs one. Give more products, ask for fewer attributes, or set "
                "split_products to false"
            )

    def draw(self, seed: int) -> Goal:
        """The goal of a seed.

        Raises:
            EnvError: If no wish of the seed's split is found.
        """
        rng, split = np.random.default_rng(seed), split_of(seed)
        products = self._products[split]
        for _ in range(_DRAWS):
            goal, topic = self._goal(products[rng.integers(len(products))], rng)
            if self._owner(goal, topic) == split:
                return goal
        raise EnvError(
            f"no goal for {split} in {_DRAWS} draws from {len(products)} products (seed {seed}): "
            "their wishes belong to other splits; give more products, or ask for more attributes"
        )

    def _owner(self, goal: Goal, topic: str) -> Split:
        """The split that a goal belongs to."""
        if not self._split_products:
            return split_of_state(goal.wish)
        for split in ("test", "validation"):
            if any(self._may_ask(product, goal) for product in self._by_topic[split, topic]):
                return split
        return "train"

    def _may_ask(self, product: Product, goal: Goal) -> bool:
        """Whether the same may be asked of this product, which shares a topic with the goal's."""
        options = dict(product.options)
        return self._written or (
            set(goal.attributes) <= set(product.attributes)
            and options.keys() == dict(goal.options).keys()
            and all(value in options[name] for name, value in goal.options)
        )

    def _topics(self, product: Product) -> set[str]:
        """What decides whether two products can be asked for alike: instructions, or the query."""
        if self._written:
            return {instruction.text for instruction in product.instructions}
        return {product.query}

    def _fits(self, product: Product) -> bool:
        if self._written:
            return bool(product.instructions)
        return len(product.attributes) >= self._attributes and bool(product.query)

    def _goal(self, product: Product, rng: np.random.Generator) -> tuple[Goal, str]:
        """A goal and its topic."""
        limit = float(_STEP * (int(product.price // _STEP) + int(rng.integers(_HIGHEST_STEPS)) + 1))
        if self._written:
            instruction = product.instructions[rng.integers(len(product.instructions))]
            return _written(product, instruction, limit, rng), instruction.text
        order = rng.permutation(len(product.attributes))[: self._attributes]
        attributes = tuple(product.attributes[index] for index in sorted(order.tolist()))
        options = _choices(product, rng)
        wanted = product.query
        if attributes:
            wanted += f" that is {' and '.join(attributes)}"
        if options:
            wanted += f", with {' and '.join(f'{name} {value}' for name, value in options)}"
        return Goal(product, attributes, options, limit, wanted), product.query


def _choices(product: Product, rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """A value of each option."""
    return tuple((name, values[rng.integers(len(values))]) for name, values in product.options)


def _written(
    product: Product, instruction: Instruction, limit: float, rng: np.random.Generator
) -> Goal:
    """The goal of an instruction; options that it does not tell are drawn and told after it."""
    text = instruction.text
    if instruction.options is None:
        options: Sequence[tuple[str, str]] = _choices(product, rng)
        told = " and ".join(f"{name} {value}" for name, value in options)
        text = f"{text}, with {told}" if told else text
    else:
        options = [("", value) for value in instruction.options]
    return Goal(product, instruction.attributes, tuple(options), limit, text)
