"""Products, and the files they come from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from vagentrl.errors import ConfigError, seen
from vagentrl_envs.bm25 import BM25Index, words
from vagentrl_envs.json_lines import Record, read_records, read_text
from vagentrl_envs.text_actions import readable

DATA = Path(__file__).parent / "data"
UNPRICED = 100.0
"""The price of a product that states none, as in WebShop."""
_LONGEST_TEXT = 3000
_LONGEST_VALUE = 200
_ARROW = "\u203a"  # between the levels of a category
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
_PRICES = (re.compile(rf"\$\s*{_NUMBER}"), re.compile(_NUMBER))
"""Numbers after a dollar sign; where there is none, all numbers."""


@dataclass(frozen=True)
class Instruction:
    """A customer's wish that comes with a product.

    Attributes:
        text: What the customer says.
        attributes: What the product must be like.
        options: What must be chosen; None if nothing is said about it.
    """

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None


@dataclass(frozen=True)
class Product:
    """A product of the shop.

    Attributes:
        asin: Its number.
        name: Its title.
        query: The phrase that customers find it by, which tells its type.
        path: Its place in the tree of categories, from the root.
        description: A text about it.
        features: Short texts about it.
        attributes: What it is like.
        options: What can be chosen: names with their values.
        prices: Its price in dollars, or the lowest and the highest.
        instructions: The wishes that it fulfils; may be empty.
    """

    asin: str
    name: str
    query: str
    path: tuple[str, ...]
    description: str
    features: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[float, ...]
    instructions: tuple[Instruction, ...] = ()

    @property
    def price(self) -> float:
        """What it costs; the middle of a range."""
        return sum(self.prices) / len(self.prices)

    @property
    def price_tag(self) -> str:
        """Its price as the shop shows it."""
        return " to ".join(f"${price:.2f}" for price in self.prices)

    @cached_property
    def title_words(self) -> frozenset[str]:
        """The words of its title."""
        return frozenset(words(self.name))

    @cached_property
    def text(self) -> str:
        """All that the search looks at."""
        values = (value for _, each in self.options for value in each)
        parts = (self.name, self.query, self.description, *self.features, *self.attributes)
        return " ".join((*parts, *self.path, *values))


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The products of a shop, in a fixed order."""

    products: tuple[Product, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Catalogue:
        return self  # it never changes

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each product by its number."""
        return {product.asin: position for position, product in enumerate(self.products)}

    @cached_property
    def index(self) -> BM25Index:
        """The search over all products."""
        return BM25Index([product.text for product in self.products])


@lru_cache(maxsize=8)
def read_catalogue(
    items: str | None, instructions: str | tuple[str, ...] | None, limit: int | None = None
) -> Catalogue:
    """The products of WebShop's files, or the shipped ones (Yao et al. 2022, arXiv:2207.01206).

    Args:
        items: A file like ``items_shuffle.json``: a list of records, or a record in each line.
            None for the shipped products.
        instructions: A file like ``items_ins_v2.json`` or ``items_human_ins.json``, or several:
            attributes and instructions by ``asin``. Those of a product are taken from the first
            file that has any. None for none.
        limit: Keep only so many products, from the first.

    Raises:
        ConfigError: If a file cannot be read, a record is wrong, or there is no product.
    """
    if items is None:
        items, instructions = str(DATA / "items.json.gz"), str(DATA / "attributes.json.gz")
    files = (instructions,) if isinstance(instructions, str) else instructions or ()
    wishes = [_read_instructions(Path(file)) for file in files]
    products: dict[str, Product] = {}
    for record in read_records(Path(items)):
        if record.text("asin") == "nan":
            continue  # the original leaves them out too
        product = _product(record, wishes)
        products.setdefault(product.asin.casefold(), product)  # the original has repetitions
        if len(products) == limit:
            break
    if not products:
        raise ConfigError(f"{items} holds no product; give a list of records, as WebShop does")
    return Catalogue(tuple(products.values()))


def _product(record: Record, wishes: Sequence[Mapping[str, Record]]) -> Product:
    asin, name = record.text("asin"), record.text("name", "title")
    if not asin or not name:
        raise record.error(
            f"'asin' is {seen(asin)} and 'name' {seen(name)}, of the fields "
            f"{', '.join(record.fields) or 'none'}; every product needs both"
        )
    said = [file[asin] for file in wishes if asin in file]
    attributes = next(filter(None, (each.texts("attributes") for each in said)), ())
    path = record.text("product_category") or record.text("category") or ""
    return Product(
        asin=readable(asin),
        name=readable(name[:_LONGEST_TEXT]),
        query=readable(record.text("query") or "").casefold(),
        path=tuple(part for each in path.split(_ARROW) if (part := readable(each))),
        description=readable((record.text("full_description") or "")[:_LONGEST_TEXT]),
        features=tuple(
            readable(each[:_LONGEST_TEXT]) for each in record.texts("small_description")
        ),
        attributes=tuple(map(readable, attributes)),
        options=_options(record),
        prices=_prices(record),
        instructions=next(filter(None, (tuple(_instructions(each)) for each in said)), ()),
    )


def _prices(record: Record) -> tuple[float, ...]:
    stated = record.text("pricing") or ""
    found = next(filter(None, (pattern.findall(stated) for pattern in _PRICES)), [])
    prices = sorted({float(each.replace(",", "")) for each in found})
    if prices and math.isinf(prices[-1]):
        raise record.error(f"'pricing' is {seen(stated)}; give a price in dollars")
    return (prices[0], prices[-1]) if len(prices) > 1 else tuple(prices) or (UNPRICED,)


def _options(record: Record) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The options in ``customization_options``: names with a list of values, or of objects that
    hold a ``value``."""
    stated = record.fields.get("customization_options") or {}
    if not isinstance(stated, dict):
        raise record.error(
            f"'customization_options' is {seen(stated)}; give an object of lists, or null"
        )
    options: dict[str, list[str]] = {}
    for name, entries in stated.items():
        if entries is None:
            continue
        listed = [e.get("value") if isinstance(e, dict) else e for e in _list(record, entries)]
        values = [value for value in listed if isinstance(value, str)]
        if len(values) < len(listed):
            raise record.error(f"the option {name!r} is {seen(entries)}; every value is a string")
        # Names that differ in nothing but their case are one option.
        named = options.setdefault(readable(name).lower(), [])
        named += [value for each in values if (value := _value(each)) and value not in named]
    return tuple((name, tuple(dict.fromkeys(values))) for name, values in options.items() if values)


def _value(stated: str) -> str:
    """A value of an option as the shop shows it; a slash stands apart, as in the original."""
    return readable(stated[:_LONGEST_VALUE].replace("/", " | ")).lower()


def _list(record: Record, entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise record.error(f"an option is {seen(entries)}; give a list of values")
    return entries


def _read_instructions(path: Path) -> dict[str, Record]:
    """The objects of a file by ``asin``; where a product has a list of them, they become one."""
    try:
        stated = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(stated, dict):
        raise ConfigError(f"{path} is {seen(stated)}; give one object with an entry for each asin")
    records = {}
    for asin, entry in stated.items():
        record = Record(entry if isinstance(entry, dict) else {"all": entry}, f"{path}, {asin}")
        if not isinstance(entry, dict):
            attributes = [
                attribute
                for each in _instruction_records(record)
                for attribute in each.texts("instruction_attributes")
            ]
            record = Record({"attributes": attributes, "all": entry}, record.place)
        records[asin] = record
    return records


def _instruction_records(record: Record) -> list[Record]:
    entries = record.fields.get("all", [record.fields])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise record.error(f"the entry is {seen(entries)}; give an object or a list of objects")
    return [Record(entry, record.place) for entry in entries]


def _instructions(wish: Record) -> Iterator[Instruction]:
    for record in _instruction_records(wish):
        text = readable((record.text("instruction") or "")[:_LONGEST_TEXT]).rstrip(" .")
        if text and "instruction_attributes" not in record.fields:
            raise record.error(
                "there is an 'instruction' but no 'instruction_attributes'; give a list of strings"
            )
        attributes = tuple(map(readable, record.texts("instruction_attributes")))
        if not text or not attributes:  # the original has some that ask for nothing
            continue
        options = None
        if record.fields.get("instruction_options") is not None:
            stated = record.fields["instruction_options"]
            if isinstance(stated, dict):  # names with their values
                record = Record({"instruction_options": list(stated.values())}, record.place)
            options = tuple(map(_value, record.texts("instruction_options")))
        yield Instruction(text, attributes, options)
