"""Products and instructions: the shipped ones, and files in WebShop's own format."""

import gzip
import json
import re
import sys
from collections import Counter
from importlib import util
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError
from vagentrl.types import Reply
from vagentrl_envs.webshop import WebShop, read_catalogue
from vagentrl_envs.webshop.pages import labels
from vagentrl_envs.webshop.reward import alike

SCRIPT = Path(__file__).parents[3] / "scripts/make_webshop.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = util.spec_from_file_location("make_webshop", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_what_is_shipped_byte_by_byte(script: ModuleType):
    # Compressed bytes may differ between builds of zlib, so what they stand for is compared.
    for path, content in script.files():
        assert gzip.decompress(path.read_bytes()) == content


def test_the_shipped_catalogue_has_a_thousand_products_of_forty_types():
    products = read_catalogue(None, None).products
    assert len({product.asin for product in products}) == len(products) == 1000
    types = Counter(product.query for product in products)
    assert len(types) == 40 and set(types.values()) == {25}
    for product in products:
        assert len(product.attributes) == 4 and len(product.options) == 2
        assert 3 <= product.price <= 160 and len(product.path) == 2
    assert len({product.query for product in products[:100]}) == 4


def test_no_two_values_of_a_shipped_option_are_alike(script: ModuleType):
    for group in script.GROUPS:
        for values in (*group.options.values(), group.attributes):
            assert not [pair for pair in combinations(values, 2) if alike(*pair)]


SHIRT: dict[str, Any] = {
    "asin": "B09ABC",
    "name": "Linen <image> shirt for men",
    "category": "fashion",
    "query": "Men's shirts",
    "product_category": "Clothing \u203a Men \u203a Shirts",
    "full_description": "A light shirt.",
    "small_description": ["Made of linen", "Machine wash"],
    "pricing": "$1,012.99$1,029.99",
    "customization_options": {
        "Color": [{"value": "Navy Blue", "asin": "B1"}, {"value": "red"}],
        "size": [{"value": "red"}, {"value": "description"}],
        "style": None,
    },
    "images": ["https://example.org/1.jpg"],
}
WISH = {
    "attributes": ["machine wash", "linen"],
    "instruction": "find me a linen shirt.",
    "instruction_attributes": ["linen"],
}


def write(folder: Path, items: Any, wishes: Any = None) -> dict[str, Any]:
    (folder / "items.json").write_text(json.dumps(items))
    if wishes is None:
        return {"items": str(folder / "items.json")}
    (folder / "ins.json").write_text(json.dumps(wishes))
    return {"items": str(folder / "items.json"), "instructions": str(folder / "ins.json")}


def test_the_original_records_are_read(tmp_path: Path):
    files = write(tmp_path, [SHIRT, SHIRT], {"B09ABC": WISH, "B0": WISH})
    (shirt,) = read_catalogue(files["items"], files["instructions"]).products
    assert shirt.name == "Linen (image) shirt for men"
    assert (shirt.query, shirt.path) == ("men's shirts", ("Clothing", "Men", "Shirts"))
    assert shirt.prices == (1012.99, 1029.99)
    assert shirt.price_tag == "$1012.99 to $1029.99"
    assert shirt.options == (("color", ("navy blue", "red")), ("size", ("red", "description")))
    assert shirt.attributes == ("machine wash", "linen")
    (wish,) = shirt.instructions
    assert (wish.text, wish.attributes, wish.options) == (
        "find me a linen shirt", ("linen",), None
    )  # fmt: skip


def test_attributes_and_instructions_may_stand_in_two_files(tmp_path: Path):
    files = write(tmp_path, [SHIRT, {**SHIRT, "asin": "B2"}], {"B09ABC": {"attributes": ["linen"]}})
    human = {
        **WISH,
        "instruction_attributes": ["machine wash"],
        "instruction_options": {"color": "red"},
    }
    (tmp_path / "human.json").write_text(json.dumps({"B09ABC": [human], "B2": [human]}))
    both = (files["instructions"], str(tmp_path / "human.json"))
    one, other = read_catalogue(files["items"], both).products
    assert (one.attributes, other.attributes) == (("linen",), ("machine wash",))
    for shirt in (one, other):
        assert [wish.attributes for wish in shirt.instructions] == [("machine wash",)]
        assert [wish.options for wish in shirt.instructions] == [("red",)]
    env = WebShop(files["items"], list(both), split_products=False)
    assert env.shop.catalogue.products == (one, other)


def test_options_that_differ_in_nothing_but_their_case_are_one(tmp_path: Path):
    options = {"Size": [{"value": "S"}], "size": ["s", "m/l", "x" * 600], "color": []}
    files = write(tmp_path, [{**SHIRT, "customization_options": options}])
    (shirt,) = read_catalogue(files["items"], None).products
    assert shirt.options == (("size", ("s", "m | l", "x" * 200)),)


def test_a_product_without_a_number_is_left_out(tmp_path: Path):
    files = write(tmp_path, [{**SHIRT, "asin": "nan"}, SHIRT])
    assert len(read_catalogue(files["items"], None).products) == 1


def test_an_instruction_that_asks_for_nothing_is_left_out(tmp_path: Path):
    files = write(tmp_path, [SHIRT], {"B09ABC": [{**WISH, "instruction_attributes": []}, WISH]})
    (shirt,) = read_catalogue(files["items"], files["instructions"]).products
    assert len(shirt.instructions) == 1


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [
        ("$5.00", (5.0,)),
        ("", (100.0,)),
        (None, (100.0,)),
        ("$9 - $3.50", (3.5, 9.0)),
        (7, (7.0,)),
        ("2 for $10.00", (10.0,)),
    ],
)
def test_prices_are_read_as_they_are_written(tmp_path: Path, pricing: Any, prices: Any):
    files = write(tmp_path, [{**SHIRT, "pricing": pricing}])
    assert read_catalogue(files["items"], None).products[0].prices == prices


def test_written_instructions_are_played_to_their_reward(tmp_path: Path):
    pytest.importorskip("bm25s")
    options = SHIRT["customization_options"]
    items = [
        {**SHIRT, "asin": f"B{n:03}", "name": f"Linen shirt {n}", "customization_options": options}
        for n in range(60)
    ]
    human = {**WISH, "instruction_options": ["Navy Blue"]}
    wishes = {
        item["asin"]: [{**human, "instruction": f"a navy shirt, {n}"}]
        if n % 2
        else {**WISH, "instruction": f"find me linen shirt {n}."}
        for n, item in enumerate(items)
    }
    env = WebShop(**write(tmp_path, items, wishes), turn_limit=40)
    texts = set()
    for seed in range(40):
        env.reset(seed)
        texts.add(env.goal.text)
        plan = env.oracle()
        assert plan is not None
        result = [env.step(Reply("", actions=(action,))) for action in plan][-1]
        assert result.reward == 1
    assert any(re.match(r"a navy shirt, \d+, for at most \$", text) for text in texts)
    assert any(re.match(r"find me linen shirt \d+, with color ", text) for text in texts)


def test_what_is_asked_of_products_of_two_splits_belongs_to_one(tmp_path: Path):
    pytest.importorskip("bm25s")
    items = [{**SHIRT, "asin": f"B{n:03}"} for n in range(60)]
    own = {item["asin"]: [WISH, {**WISH, "instruction": item["asin"]}] for item in items}
    env = WebShop(**write(tmp_path, items, own))
    shared = {
        split: sum(
            env._goals.draw(seed_of(split, index)).wish.startswith("find me") for index in range(40)
        )
        for split in get_args(Split)
    }
    assert shared["train"] == shared["validation"] == 0 < shared["test"]


def test_buttons_with_one_name_are_told_apart(tmp_path: Path):
    pytest.importorskip("bm25s")
    files = write(tmp_path, [SHIRT], {"B09ABC": WISH})
    env = WebShop(**files, split_products=False)
    env.reset(0)
    for action in ("search[shirt]", "click[b09abc]"):
        env.step(Reply("", actions=(action,)))
    shown = env.shop.buttons(env.page)
    # "red" is a color and a size, and "description" a size and a page
    assert shown[:4] == ("navy blue", "color: red", "size: red", "size: description")
    for action in ("click[size: description]", "click[navy blue]"):
        env.step(Reply("", actions=(action,)))
    assert env.page.chosen == (("size", "description"), ("color", "navy blue"))


def test_every_choice_has_a_button_of_its_own(tmp_path: Path):
    options = {
        "fit": ["a: c"],
        "fit: a": ["c"],
        "x": ["c", "a: c"],
        "color": ["red", "blue"],
        "trim": ["red"],
        "note": ["color: red", "b: x"],
        "note: b": ["x"],
        "cut": ["x", "buy now"],
    }
    files = write(tmp_path, [{**SHIRT, "customization_options": options}])
    (shirt,) = read_catalogue(files["items"], None).products
    assert list(labels(shirt)) == [
        "fit: a: c", "fit: a: c*", "x: c", "x: a: c",
        "color: red", "blue", "trim: red", "note: color: red",
        "b: x", "note: b: x", "cut: x", "cut: buy now",
    ]  # fmt: skip
    assert sorted(labels(shirt).values()) == sorted(
        (name.casefold(), value.casefold()) for name, values in options.items() for value in values
    )


@pytest.mark.parametrize(
    ("items", "wishes", "wanted"),
    [
        ([], None, "holds no product"),
        (
            [{"asin": "B1"}],
            None,
            r"record 1: 'asin' is 'B1' \(str\) and 'name' None, .* needs both",
        ),
        ([SHIRT, 3], None, r"record 2 is 3 \(int\)"),
        ([{**SHIRT, "pricing": [5]}], None, r"'pricing' is \[5\]"),
        ([{**SHIRT, "pricing": "9" * 400}], None, "'pricing' is '999"),
        ([{**SHIRT, "small_description": {}}], None, "'small_description' is"),
        ([{**SHIRT, "customization_options": ["red"]}], None, "'customization_options' is"),
        ([{**SHIRT, "customization_options": {"c": "red"}}], None, "an option is 'red'"),
        ([{**SHIRT, "customization_options": {"c": [1]}}], None, "the option 'c' is"),
        ([SHIRT], [], r"ins\.json is \[\] \(list\); give one object"),
        ([SHIRT], {"B09ABC": {"instruction": "x"}}, "ins.json, B09ABC: there is an 'instruction'"),
        ([SHIRT], {"B09ABC": ["x"]}, "ins.json, B09ABC: the entry is"),
        ([SHIRT], {"B09ABC": {"attributes": [{}]}}, r"'attributes' is \[\{\}\]"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, items: Any, wishes: Any, wanted: str):
    files = write(tmp_path, items, wishes)
    with pytest.raises(ConfigError, match=wanted):
        read_catalogue(files["items"], files.get("instructions"))


def test_a_file_that_is_not_json_is_named(tmp_path: Path):
    (tmp_path / "items.json").write_text('{"asin": "B1", "name": "hat"}\n{"asin": ')
    with pytest.raises(ConfigError, match=r"items\.json, line 2 is not JSON"):
        read_catalogue(str(tmp_path / "items.json"), None)
