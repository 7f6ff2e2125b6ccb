"""Customers who act as the oracle of the shop: one knows all products, the other reads pages."""

from __future__ import annotations

from vagentrl_envs.text_actions import TextAction
from vagentrl_envs.webshop.catalogue import Product
from vagentrl_envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, Choice, Page, Shop, labels
from vagentrl_envs.webshop.reward import Goal, alike, score

_LONGEST_PLAN = 60


class Shopper:
    """Buys the first product among the results that fulfils a goal.

    Args:
        shop: Where to buy.
        goal: What to buy.
    """

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self._shop = shop
        self._goal = goal
        self._fits: dict[int, bool] = {}

    def plan(self, page: Page) -> tuple[str, ...] | None:
        """The actions from a page to the purchase; None if there is no way."""
        plan = []
        while len(plan) < _LONGEST_PLAN:
            action = self._next(page)
            plan.append(str(action))
            if action.argument == BUY:
                return tuple(plan)
            after = self._shop.turn(page, action)
            if after is None or after == page:
                return None
            page = after
        return None

    def _next(self, page: Page) -> TextAction:
        match page.kind:
            case "search":
                return TextAction("search", self._query())
            case "results":
                return TextAction("click", self._towards(page))
            case "detail":
                return TextAction("click", PREVIOUS)
            case "product":
                return TextAction("click", self._at_product(page))

    def _query(self) -> str:
        """The first query that finds a product that fits: the type with the attributes, as a drawn
        wish orders them; the wish; or else the name of the product that it was made from."""
        goal, index = self._goal, self._shop.catalogue.index
        for query in (" ".join((goal.product.query, *goal.attributes)), goal.text):
            if any(map(self._is_fit, index.top(query, self._shop.results))):
                return query
        return goal.product.name

    def _towards(self, page: Page) -> str:
        """The button that leads from a page of results towards the first product that fits."""
        rank = next((rank for rank, each in enumerate(page.found) if self._is_fit(each)), None)
        if rank is None:
            return BACK
        number = rank // self._shop.page_size
        if number == page.number:
            return self._shop.catalogue.products[page.found[rank]].asin
        return NEXT if number > page.number else PREVIOUS

    def _at_product(self, page: Page) -> str:
        """The button to press on the page of a product."""
        product = self._shop.product(page)
        if page.product is None or not self._is_fit(page.product):
            return PREVIOUS
        by_choice = {choice: label for label, choice in labels(product).items()}
        chosen = [choice.value for choice in page.chosen]
        for choice in self._choices(product):
            if not any(alike(choice.value, each) for each in chosen):
                return by_choice[choice]
        return BUY

    def _is_fit(self, position: int) -> bool:
        """Whether a product can earn everything, or is the one that the goal was made from."""
        if position not in self._fits:
            product = self._shop.catalogue.products[position]
            values = [choice.value for choice in self._choices(product)]
            fits = score(self._goal, product, values).total == 1
            self._fits[position] = fits or product.asin == self._goal.product.asin
        return self._fits[position]

    def _choices(self, product: Product) -> list[Choice]:
        """For each wanted option the product's choice that is most like it, if any is."""
        found = []
        for wanted, value in self._goal.options:
            choices = [
                Choice(option, each)
                for option, values in product.options
                if wanted in ("", option)
                for each in sorted(values, key=lambda each: each != value)
                if alike(value, each)
            ]
            found += choices[:1]
        return found


class ReadingShopper(Shopper):
    """Searches for the wish, opens what was found first, and buys it if it comes as wished.

    Otherwise it goes back, and opens the first one that it has not opened yet. Whatever decides its
    actions was shown to the agent, and nearly always on the same page, so a model can copy it.

    Args:
        shop: Where to buy.
        goal: What to buy.
    """

    def __init__(self, shop: Shop, goal: Goal) -> None:
        super().__init__(shop, goal)
        self._opened: set[int] = set()

    def plan(self, page: Page) -> tuple[str, ...] | None:
        if page.product is not None:
            self._opened.add(page.product)
        opened = set(self._opened)
        plan = super().plan(page)
        self._opened = opened  # without those that only the plan opens
        return plan

    def _next(self, page: Page) -> TextAction:
        if page.product is not None:
            self._opened.add(page.product)
        return super()._next(page)

    def _query(self) -> str:
        return self._goal.text

    def _at_product(self, page: Page) -> str:
        button = super()._at_product(page)
        return BACK if button == PREVIOUS else button

    def _is_fit(self, position: int) -> bool:
        product = self._shop.catalogue.products[position]
        complete = len(self._choices(product)) == len(self._goal.options)
        return complete or position not in self._opened
