"""Makes the catalogue of `vagentrl_envs.webshop` from a seed and nothing else.

    python scripts/make_webshop.py

A thousand invented products of forty types, in the format of WebShop's own files: the records of
`items_shuffle.json`, and the attributes of `items_ins_v2.json`, without instructions. Products of a
type stand together, so that the first hundred are of four types.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

TARGET = Path(__file__).parents[1] / "envs/vagentrl_envs/webshop/data"
PER_TYPE = 25
SEED = 3
ARROW = "\u203a"
"""Stands between the levels of a category, as in the original files."""
T = TypeVar("T")

COLORS = (
    "black", "white", "navy", "olive", "coral", "mustard", "teal", "burgundy", "silver", "beige",
)  # fmt: skip
MAKERS = (
    "Alvina", "Brontek", "Calmere", "Dovetide", "Elmsworth", "Fennic", "Galdor", "Hearthby",
    "Ilvana", "Jorvik", "Kestrelle", "Lumora", "Mistral", "Norwell", "Ostara", "Pinebrook",
    "Quillon", "Rosgard", "Solvey", "Tamsin",
)  # fmt: skip
MAKERS_PER_TYPE = 3
"""No maker has two types of a group, so that titles of different types have no maker in common."""


@dataclass(frozen=True)
class Group:
    """Types of products that are described alike.

    Attributes:
        category: The root of their places in the tree of categories; a type is a level below.
        types: What customers call its products.
        attributes: What its products may be like.
        options: What customers may choose, with the values.
        prices: The lowest and the highest price in dollars.
    """

    category: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    prices: tuple[int, int]


# The reward takes two values for the same if one has all words of the other, or nearly so. No two
# values of an option here are alike in this way.
SIZES = ("xs", "s", "m", "l", "xl", "xxl")
PACKS = ("single", "twin", "four-pack", "six-pack", "twelve-pack")
GROUPS = (
    Group(
        "Clothing",
        ("rain jacket", "running shorts", "wool sweater", "yoga pants", "dress shirt",
         "hiking socks"),
        ("machine washable", "slim fit", "water resistant", "breathable", "stretchy",
         "quick drying", "reversible", "thermal"),
        {"color": COLORS, "size": SIZES},
        (12, 90),
    ),
    Group(
        "Shoes",
        ("trail shoes", "ballet flats", "rain boots", "house slippers"),
        ("non slip", "memory foam", "wide fit", "waterproof", "lightweight", "rubber soled",
         "vegan", "arch supporting"),
        {"color": COLORS, "size": ("36", "37", "38", "39", "40", "41", "42", "43")},
        (18, 140),
    ),
    Group(
        "Electronics",
        ("wireless earbuds", "power bank", "usb hub", "desk microphone", "travel adapter",
         "portable speaker"),
        ("fast charging", "noise cancelling", "shock proof", "energy saving", "plug and play",
         "foldable", "splash proof", "long lasting"),
        {"color": COLORS[:6], "cable": ("0.5 m", "1 m", "2 m", "3 m")},
        (9, 160),
    ),
    Group(
        "Home",
        ("desk lamp", "throw blanket", "storage basket", "shower curtain", "wall clock",
         "floor cushion"),
        ("easy to clean", "space saving", "hand made", "stain resistant", "hypoallergenic",
         "fade resistant", "easy to assemble", "child safe"),
        {"color": COLORS, "set": PACKS[:4]},
        (8, 110),
    ),
    Group(
        "Kitchen",
        ("mixing bowl", "chef knife", "water bottle", "coffee grinder", "baking tray",
         "tea kettle"),
        ("dishwasher safe", "bpa free", "rust proof", "heat resistant", "non stick",
         "double walled", "stackable", "ergonomic"),
        {"material": ("steel", "glass", "bamboo", "ceramic", "copper"),
         "capacity": ("small", "medium", "large")},
        (7, 120),
    ),
    Group(
        "Beauty",
        ("hand cream", "bath salt", "lip balm", "hair mask", "body scrub", "face serum"),
        ("cruelty free", "fragrance free", "paraben free", "alcohol free", "fast absorbing",
         "dermatologist tested", "plant based", "long wearing"),
        {"scent": ("lavender", "mint", "rose", "vanilla", "cedar", "citrus"),
         "volume": ("30ml", "75ml", "100ml", "240ml")},
        (4, 60),
    ),
    Group(
        "Grocery",
        ("oat bars", "green tea", "trail mix", "dried mango", "peanut butter", "rice crackers"),
        ("gluten free", "sugar free", "organic", "low sodium", "nut free", "dairy free",
         "high protein", "fair trade"),
        {"flavor": ("plain", "honey", "ginger", "cocoa", "berry", "lemon"), "package": PACKS},
        (3, 45),
    ),
)  # fmt: skip
DETAILS = (
    "It is checked twice before it leaves the workshop.",
    "The box is made from recycled paper.",
    "Spare parts can be ordered from the maker.",
    "A leaflet explains how to take care of it.",
    "It may be returned within thirty days.",
    "The maker has sold it for many years.",
)


def pick(rng: Random, items: Sequence[T]) -> T:
    """One of the items. `Random.random` alone gives the same numbers in every version of Python."""
    return items[int(rng.random() * len(items))]


def some(rng: Random, items: Sequence[T], count: int) -> list[T]:
    """Different items, in an order of their own."""
    left = list(items)
    return [left.pop(int(rng.random() * len(left))) for _ in range(min(count, len(left)))]


def product(group: Group, kind: str, number: int, rng: Random) -> tuple[dict[str, Any], list[str]]:
    """A record and the product's attributes."""
    attributes = some(rng, group.attributes, 4)
    first = MAKERS_PER_TYPE * group.types.index(kind)
    maker, series = (
        pick(rng, MAKERS[first : first + MAKERS_PER_TYPE]),
        f"{pick(rng, 'ABCDEFGHKLMNPRSTUVWXYZ')}{number % 90 + 10}",
    )
    low, high = group.prices
    price = low + int(rng.random() ** 2 * (high - low) * 100) / 100
    options = {
        name: some(rng, values, 3 + int(rng.random() * 3)) for name, values in group.options.items()
    }
    record = {
        "asin": f"W{number:04d}",
        "name": f"{maker} {series} {attributes[0]} {kind}, {attributes[1]}",
        "category": group.category.casefold(),
        "query": kind,
        "product_category": f"{group.category} {ARROW} {kind.title()}",
        "full_description": f"This {kind} by {maker} is {attributes[2]} and {attributes[0]}. "
        + " ".join(some(rng, DETAILS, 2)),
        "small_description": [each.capitalize() + "." for each in sorted(attributes)],
        "pricing": f"${price:.2f}",
        "customization_options": {
            name: [{"value": value} for value in values] for name, values in options.items()
        },
        "images": [],
    }
    return record, attributes


def make() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records, and the attributes of each by its number."""
    rng = Random(SEED)
    records, attributes = [], {}
    for group in GROUPS:
        for kind in group.types:
            for _ in range(PER_TYPE):
                record, found = product(group, kind, len(records) + 1, rng)
                records.append(record)
                attributes[record["asin"]] = {"attributes": found}
    return records, attributes


def files() -> Iterator[tuple[Path, bytes]]:
    """The files, before they are compressed."""
    for name, content in zip(("items", "attributes"), make(), strict=True):
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        yield TARGET / f"{name}.json.gz", f"{text}\n".encode()


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for path, content in files():
        path.write_bytes(gzip.compress(content, 9, mtime=0))
        print(f"{path.name}: {len(content):,} bytes, {path.stat().st_size:,} compressed")


if __name__ == "__main__":
    main()
