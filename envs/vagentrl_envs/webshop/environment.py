"""A web shop in text: find the product that a customer wants, choose its options and buy it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from vagentrl.environment import Outcome
from vagentrl.errors import ConfigError
from vagentrl.formats import ReplyFormat
from vagentrl.types import Observation, Reply, State, StepResult
from vagentrl_envs.bm25 import words
from vagentrl_envs.text_actions import TextAction, TextActionEnvironment
from vagentrl_envs.webshop.catalogue import Catalogue, read_catalogue
from vagentrl_envs.webshop.goals import Goals
from vagentrl_envs.webshop.pages import (
    BUY,
    SEARCH,
    Page,
    Shop,
)
from vagentrl_envs.webshop.reward import Goal, Score, score
from vagentrl_envs.webshop.shopper import ReadingShopper, Shopper

SHOPPERS = {"catalogue": Shopper, "pages": ReadingShopper}
"""Who acts as the oracle, by what it goes by."""


@lru_cache(maxsize=8)
def _goals(catalogue: Catalogue, attributes: int, written: bool, split_products: bool) -> Goals:
    """Cached, so that equal environments share the check."""
    return Goals(catalogue, attributes, written, split_products)


class WebShop(TextActionEnvironment):
    """Buy what a customer wants, with ``search[…]`` and ``click[…]``.

    The pages, the actions and the reward are those of WebShop (Yao et al. 2022, arXiv:2207.01206),
    written anew; `vagentrl_envs.webshop.reward` says where scores differ from published ones. Only
    buying earns a reward and ends the episode; success is a score of 1. The splits share no wanted
    product and no wish.

    Args:
        items: Products in the format of WebShop's ``items_shuffle.json``; None for the shipped
            catalogue of 1,000 invented ones.
        instructions: Attributes and instructions in the format of ``items_ins_v2.json`` or
            ``items_human_ins.json``; with a list of files, those of each product are taken from the
            first that has any. Goals are drawn if they hold no instruction.
        products: Sell only so many products, from the first; None for all. The shipped ones stand
            by their 40 types, 25 of each.
        attributes: Attributes that a drawn goal asks for; written instructions have their own.
        results: Most products that a search finds.
        page_size: Products on a page of results.
        split_products: Whether the splits share no wanted product. A shop of a few products needs
            False; the splits then still share no wish, whatever its price limit.
        reward: What a purchase earns: its ``score`` from 0 to 1, as published, or with ``success``
            1 for a score of 1 and nothing for less.
        oracle: What the oracle goes by: the whole ``catalogue``, so that it always succeeds, or the
            ``pages`` that were shown, as a model must that learns from it. This one takes a name
            that was found for what the wish says, and succeeds in most episodes.
        **settings: The settings of ``ActionEnvironment``.
    """

    def __init__(
        self,
        items: str | None = None,
        instructions: str | list[str] | None = None,
        products: int | None = None,
        attributes: int = 2,
        results: int = 50,
        page_size: int = 10,
        split_products: bool = True,
        reward: Literal["score", "success"] = "score",
        oracle: Literal["catalogue", "pages"] = "catalogue",
        turn_limit: int = 15,
        format: ReplyFormat | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            ("search[words]", "click[button]"), format=format, turn_limit=turn_limit, **settings
        )
        if reward not in ("score", "success"):
            raise ConfigError(f"reward is {reward!r}; choose 'score' or 'success'")
        if oracle not in SHOPPERS:
            raise ConfigError(f"oracle is {oracle!r}; choose 'catalogue' or 'pages'")
        self._reward = reward
        self._shopper_class = SHOPPERS[oracle]
        numbers = {"products": products, "results": results, "page_size": page_size}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ConfigError(f"{name} is {number}; give at least 1")
        if attributes < 0:
            raise ConfigError(f"attributes is {attributes}; give 0 or more")
        if items is None and instructions is not None:
            raise ConfigError(
                f"instructions is {instructions!r}, but there are no items that it belongs to; "
                "give both, or neither for the shipped catalogue"
            )
        files = tuple(instructions) if isinstance(instructions, list) else instructions
        catalogue = read_catalogue(items, files, products)
        _ = catalogue.index  # made here, where a missing library ends no episode
        written = any(product.instructions for product in catalogue.products)
        self.shop = Shop(catalogue, results, page_size)
        self._goals = _goals(catalogue, attributes, written, split_products)
        self._goal: Goal
        self._page: Page
        self._shopper: Shopper
        self._bought: Score | None = None

    # -------------------------------------------------------------------------------- the episode

    @property
    def goal(self) -> Goal:
        """What the customer of this episode wants."""
        return self._goal

    @property
    def page(self) -> Page:
        """The page that is shown."""
        return self._page

    def initial_state(self, seed: int) -> str:
        return self._goals.draw(seed).text

    def step(self, reply: Reply) -> StepResult:
        result = super().step(reply)
        if not (result.terminated or result.truncated):
            return result
        bought = self._bought
        # These describe the whole episode, so only its last turn reports them.
        parts = {
            "score": bought.total if bought else 0.0,
            "score_type": bought.type if bought else 0.0,
            "score_attributes": bought.attributes if bought else 0.0,
            "score_options": bought.options if bought else 0.0,
            "score_price": bought.price if bought else 0.0,
            "bought": float(bought is not None),
        }
        return replace(result, metrics={**result.metrics, **parts})

    def oracle(self) -> tuple[str, ...] | None:
        """Find a product that fulfils the goal, choose its options, and buy it."""
        return () if self._over else self._shopper.plan(self._page)

    def _start(self, seed: int, transition_seed: int) -> None:
        self._goal = self._goals.draw(seed)
        self._shopper = self._shopper_class(self.shop, self._goal)
        self._bought = None
        self._go(SEARCH)

    def _asked(self, reply: Reply) -> list[str | None]:
        read = [self._read(action) for action in reply.actions[:1]]
        possible = [action is not None and self.shop.can(self._page, action) for action in read]
        return [str(a) if can else None for a, can in zip(read, possible, strict=True)]

    def _wrong_action(self) -> str:
        return "that is not possible on this page"

    def _act(self, action: str) -> Outcome:
        read = self._read(action)
        after = None if read is None else self.shop.turn(self._page, read)
        if read is None or after is None:
            return Outcome(0.0, changed=False)
        if read.verb == "click" and read.argument.casefold() == BUY and after.kind == "product":
            chosen = [choice.value for choice in after.chosen]
            self._bought = score(self._goal, self.shop.product(after), chosen)
            success = self._bought.total == 1
            earned = self._bought.total if self._reward == "score" else float(success)
            return Outcome(earned, done=True, success=success)
        changed = after != self._page
        self._go(after)
        return Outcome(0.0, changed=changed)

    def _go(self, page: Page) -> None:
        """Show a page, and suggest what can be done there."""
        self._page = page
        actions = [TextAction("click", button) for button in self.shop.buttons(page)]
        if page.kind == "search":
            pairs = pairwise(words(self._goal.text))
            actions = [TextAction("search", query) for query in map(" ".join, pairs)]
            actions.append(TextAction("search", self._goal.text))
        self._suggest(actions)

    # ------------------------------------------------------------------------------ what is shown

    def state(self) -> State:
        page = self._page
        shown: dict[str, Any] = {"page": page.kind}
        told = [f"the {page.kind} page is open"]
        symbols = [f"page={page.kind}"]
        if page.kind == "results":
            products = [self.shop.catalogue.products[each].asin for each in self.shop.shown(page)]
            shown |= {"number": page.number + 1, "products": products}
            told.append(f"it is number {page.number + 1} and lists {', '.join(products) or 'none'}")
            symbols += [f"number={page.number + 1}", *products]
        elif page.kind in ("product", "detail"):
            asin, chosen = self.shop.product(page).asin, dict(page.chosen)
            shown |= {"product": asin, "chosen": chosen}
            choices = " and ".join(f"{name} {value}" for name, value in chosen.items())
            told.append(f"the product is {asin}, with {choices or 'nothing'} chosen")
            symbols += [asin, *(f"{name}={value}" for name, value in chosen.items())]
            if page.detail:
                shown["detail"] = page.detail
                told.append(f"it shows the {page.detail}")
                symbols.append(f"detail={page.detail}")
        structured = json.dumps(shown, separators=(",", ":"), ensure_ascii=False)
        return State(natural="; ".join(told), structured=structured, symbolic=" ".join(symbols))

    def rubric(self) -> str:
        return (
            "It says which kind of page is open: search, results, product, or a detail of a "
            "product. For results it names every listed product by its number; for a product, its "
            "number and every option that is chosen, with none added. Wording and order do not "
            "matter."
        )

    def _observe(self) -> Observation:
        return Observation(f"Wish: {self._goal.text}\n{self.shop.text(self._page)}")

    def system_prompt(self) -> str:
        return "\n".join(
            [
                "You are in a web shop. Buy the product that fits the wish best, with its options "
                "chosen. On the search page, search[words] finds products; everywhere else, "
                "click[button] presses one of the [buttons]. Each product's number is a button. "
                f"click[{BUY}] ends the task; you have {self.turn_limit} turns.",
                self.format.instructions(self.actions_per_turn, self._schema()),
            ]
        )

    def _schema(self) -> str | None:
        match self.format.state:
            case "natural":
                return (
                    "the page that is open, the numbers of the products that it lists, or the "
                    "product with its chosen options, for example: the product page is open; the "
                    "product is W0001, with color red chosen"
                )
            case "structured":
                return (
                    '{"page":"search"}, {"page":"results","number":1,"products":["W0001"]} or '
                    '{"page":"product","product":"W0001","chosen":{"color":"red"}}.'
                )
            case "symbolic":
                return "on one line, for example: page=product W0001 color=red"
            case None:
                return None
