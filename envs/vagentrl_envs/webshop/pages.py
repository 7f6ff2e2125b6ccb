"""The pages of the shop, and where their buttons lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from vagentrl_envs.text_actions import TextAction
from vagentrl_envs.webshop.catalogue import Catalogue, Product

BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
DETAILS = ("description", "features", "attributes")


class Choice(NamedTuple):
    """A value of a product's option."""

    option: str
    value: str


@dataclass(frozen=True)
class Page:
    """A page, with all that decides what it shows.

    Attributes:
        kind: The search box, a page of results, a product, or one of its details.
        found: The positions in the catalogue of all that was found, best first.
        number: The page of results, from 0.
        product: The position in the catalogue of the product that is shown; None without one.
        detail: Which of `DETAILS` is shown; empty for none.
        chosen: The options that were chosen for the product.
    """

    kind: Literal["search", "results", "product", "detail"] = "search"
    found: tuple[int, ...] = ()
    number: int = 0
    product: int | None = None
    detail: str = ""
    chosen: tuple[Choice, ...] = ()


SEARCH = Page()
"""The page at which every episode starts."""


@dataclass(frozen=True)
class Shop:
    """A catalogue with the rules of its pages.

    Attributes:
        catalogue: What is sold.
        results: Most products that a search finds.
        page_size: Products on a page of results.
    """

    catalogue: Catalogue
    results: int
    page_size: int

    def product(self, page: Page) -> Product:
        """The product that a page shows.

        Raises:
            ValueError: If it shows none.
        """
        if page.product is None:
            raise ValueError(f"a {page.kind} page shows no product")
        return self.catalogue.products[page.product]

    def shown(self, page: Page) -> tuple[int, ...]:
        """The products on a page of results."""
        start = page.number * self.page_size
        return page.found[start : start + self.page_size]

    def pages(self, page: Page) -> int:
        """How many pages of results there are."""
        return -(-len(page.found) // self.page_size)

    def buttons(self, page: Page) -> tuple[str, ...]:
        """All that can be clicked, in the order in which it is shown."""
        match page.kind:
            case "search":
                return ()
            case "results":
                asins = [self.catalogue.products[each].asin for each in self.shown(page)]
                later = [NEXT] if page.number + 1 < self.pages(page) else []
                earlier = [PREVIOUS] if page.number else []
                return (*asins, BACK, *earlier, *later)
            case "product":
                return (*labels(self.product(page)), *DETAILS, BUY, BACK, PREVIOUS)
            case "detail":
                return (BACK, PREVIOUS)

    def can(self, page: Page, action: TextAction) -> bool:
        """Whether an action is possible on a page."""
        if action.verb == "search":
            return page.kind == "search"
        return action.argument.casefold() in map(str.casefold, self.buttons(page))

    def turn(self, page: Page, action: TextAction) -> Page | None:
        """The page that an action leads to; None if it is not possible here.

        Buying leads to the same page.
        """
        if not self.can(page, action):
            return None
        if action.verb == "search":
            return Page("results", tuple(self.catalogue.index.top(action.argument, self.results)))
        spelt = {button.casefold(): button for button in self.buttons(page)}
        return self._clicked(page, spelt[action.argument.casefold()])

    def _clicked(self, page: Page, button: str) -> Page:
        if button == BACK:
            return SEARCH
        match page.kind:
            case "results" if button in (NEXT, PREVIOUS):
                return replace(page, number=page.number + (1 if button == NEXT else -1))
            case "results":
                asins = {self.catalogue.products[each].asin: each for each in self.shown(page)}
                return replace(page, kind="product", product=asins[button])
            case "product" if button == PREVIOUS:
                return replace(page, kind="results", product=None, chosen=())
            case "product" if button in DETAILS:
                return replace(page, kind="detail", detail=button)
            case "product" if button != BUY:
                choice = labels(self.product(page))[button]
                others = tuple(each for each in page.chosen if each.option != choice.option)
                return replace(page, chosen=(*others, choice))
            case "detail":
                return replace(page, kind="product", detail="")
        return page

    def text(self, page: Page) -> str:
        """What a page shows, with all buttons in brackets."""
        match page.kind:
            case "search":
                return "Search page: search[words] finds products."
            case "results":
                lines = [f"Page {page.number + 1} of {self.pages(page)}"] if page.found else []
                for each in self.shown(page):
                    product = self.catalogue.products[each]
                    lines.append(f"[{product.asin}] {product.name}, {product.price_tag}")
                lines = lines or ["Nothing was found."]
                moves = [button for button in (PREVIOUS, NEXT) if button in self.buttons(page)]
                return "\n".join([*lines, _row((BACK, *moves))])
            case "product":
                return self._product_text(page)
            case "detail":
                product = self.product(page)
                texts = {
                    "description": (product.description,),
                    "features": product.features,
                    "attributes": product.attributes,
                }[page.detail]
                lines = [f"- {text}" for text in texts if text] or ["Nothing is said."]
                heading = f"{product.name}: {page.detail}"
                return "\n".join([heading, *lines, _row(self.buttons(page))])

    def _product_text(self, page: Page) -> str:
        product = self.product(page)
        rows = [f"{product.name}, {product.price_tag}"]
        by_choice = {choice: label for label, choice in labels(product).items()}
        for option, values in product.options:
            shown = (
                f"[{by_choice[Choice(option, value)]}]"
                + (" (chosen)" if Choice(option, value) in page.chosen else "")
                for value in values
            )
            rows.append(f"{option}: {' '.join(shown)}")
        return "\n".join([*rows, _row(DETAILS), _row((BUY, BACK, PREVIOUS))])


@lru_cache(maxsize=256)
def labels(product: Product) -> Mapping[str, Choice]:
    """What to click for each choice: the value, or ``option: value`` where another button of the
    page is or may be called the same."""
    choices = [Choice(option, value) for option, values in product.options for value in values]
    whole = [": ".join(choice) for choice in choices]
    values = [choice.value for choice in choices]
    names = Counter(map(str.casefold, (*values, *whole, *DETAILS, BUY, BACK, PREVIOUS)))
    named: dict[str, Choice] = {}
    for choice, label in zip(choices, whole, strict=True):
        if names[choice.value.casefold()] == 1:
            label = choice.value
        while label in named:  # option "a: b" with value "c", beside option "a" with value "b: c"
            label += "*"
        named[label] = choice
    return named


def _row(buttons: tuple[str, ...]) -> str:
    return " ".join(f"[{button}]" for button in buttons)
