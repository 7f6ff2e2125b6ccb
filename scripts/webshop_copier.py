"""What an agent earns in WebShop that only copies: how far reading is not needed.

    python scripts/webshop_copier.py

It searches for the words of the wish, opens the first product that is found, presses the options
that the wish names, and buys. Prints a Markdown table of its success and score over held-out
wishes, for shops of several sizes, and the success of the oracle that goes by pages, which searches
for the whole wish and goes back where a product does not come as wished.
"""

from __future__ import annotations

import argparse
import re

from vagentrl.environment import seed_of
from vagentrl.formats import NoThink
from vagentrl.types import Reply, StepResult
from vagentrl_envs.webshop import WebShop

_WISH = re.compile(r"Wish: (.*), for at most")
_BUTTON = re.compile(r"\[([^\]]+)\]")


def play(shop: WebShop, seed: int) -> StepResult:
    """Play an episode; returns its last step."""

    def do(action: str) -> StepResult:
        return shop.step(Reply("", actions=(action,)))

    wished = _WISH.match(shop.reset(seed).text)
    assert wished is not None
    wish = wished[1]
    found = do(f"search[{wish}]").observation.text
    page = do(f"click[{_BUTTON.findall(found)[0]}]").observation.text
    for line in page.split("\n")[2:]:
        name, colon, values = line.partition(": ")
        for value in _BUTTON.findall(values) if colon else ():
            if re.search(rf"\b{re.escape(f'{name} {value}')}( and|,|$)", wish):
                do(f"click[{value}]")
    return do("click[buy now]")


def play_oracle(shop: WebShop, seed: int) -> StepResult:
    """Play an episode by the oracle's advice; returns its last step."""
    shop.reset(seed)
    while True:
        action = (shop.oracle() or ("click[back to search]",))[0]
        step = shop.step(Reply("", actions=(action,)))
        if step.terminated or step.truncated:
            return step


def main() -> None:
    parser = argparse.ArgumentParser(description="What copying alone earns in WebShop.")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--products", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--attributes", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    print("| products | attributes | success | score | success of the oracle |")
    print("|--:|--:|--:|--:|--:|")
    for products in arguments.products:
        for attributes in arguments.attributes:
            shop = WebShop(
                products=products,
                attributes=attributes,
                page_size=4,
                results=25,
                turn_limit=10,
                oracle="pages",
                format=NoThink(action_separator=None),
            )
            ends = [play(shop, seed_of("validation", n)) for n in range(arguments.episodes)]
            success = sum(end.metrics["success"] for end in ends) / len(ends)
            score = sum(end.reward for end in ends) / len(ends)
            advised = [play_oracle(shop, seed_of("validation", n)) for n in range(len(ends))]
            read = sum(end.metrics["success"] for end in advised) / len(ends)
            cells = (products, attributes, f"{success:.2f}", f"{score:.2f}", f"{read:.2f}")
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
