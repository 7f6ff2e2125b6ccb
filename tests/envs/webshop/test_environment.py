"""The episode of the shop: pages, buttons, purchases, and what it shows."""

import json
import sys
from random import Random
from typing import Any, get_args

import pytest

from tests.processes import printed_in_every_process
from vagentrl.environment import Split, seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, NoThink, WorldModeling
from vagentrl.types import Reply, StepResult
from vagentrl_envs.webshop import WebShop, read_catalogue, score

pytest.importorskip("bm25s")


def say(env: WebShop, *actions: str) -> StepResult:
    """Play one action a turn; the result of the last."""
    results = [env.step(Reply("", actions=(action,))) for action in actions]
    return results[-1]


def start(seed: int = 0, **settings: Any) -> WebShop:
    env = WebShop(**settings)
    env.reset(seed)
    return env


def play_at_random(env: WebShop, seed: int) -> StepResult:
    env.reset(seed)
    rng = Random(seed)
    while True:
        result = env.step(Reply("", actions=env.random_actions(rng)))
        if result.terminated or result.truncated:
            return result


def test_an_episode_starts_at_the_search_page_with_the_wish():
    env = start()
    text = env.reset(0).text
    assert text.split("\n")[0] == f"Wish: {env.goal.text}"
    assert env.goal.text == env.initial_state(0)
    assert env.page.kind == "search"
    assert all(action.startswith("search[") for action in env.action_names)


def test_a_search_lists_ten_products_a_page_and_fifty_in_all():
    env = start()
    say(env, "search[cream]")
    assert len(env.page.found) == 25  # of one type, and no other text says cream
    assert len(env.shop.shown(env.page)) == 10
    lines = env.shop.text(env.page).split("\n")
    assert lines[0] == "Page 1 of 3" and lines[-1] == "[back to search] [next >]"
    say(env, "click[next >]", "click[NEXT >]")
    assert len(env.shop.shown(env.page)) == 5
    assert "next >" not in env.shop.buttons(env.page)
    say(env, "click[< prev]")
    assert env.page.number == 1
    say(env, "click[back to search]", "search[free]")
    assert len(env.page.found) == 50


def test_the_best_result_is_first():
    env = start()
    product = env.shop.catalogue.products[700]
    say(env, f"search[{product.name}]")
    assert env.page.found[0] == 700


def test_nothing_found_leads_back():
    env = start()
    result = say(env, "search[zzz]")
    assert result.observation.text.endswith("\nNothing was found.\n[back to search]")
    say(env, "click[back to search]")
    assert env.page.kind == "search"


def test_options_are_chosen_and_replaced_and_survive_the_details():
    env = start()
    say(env, "search[face serum]")
    asin = env.shop.catalogue.products[env.page.found[0]].asin
    say(env, f"click[{asin}]")
    (name, (one, other, *_)), *_ = env.shop.product(env.page).options
    say(env, f"click[{one}]", f"click[{other}]")
    assert env.page.chosen == ((name, other),)
    assert f"[{other}] (chosen)" in env.shop.text(env.page)
    result = say(env, "click[description]")
    assert env.shop.product(env.page).description in result.observation.text
    assert env.shop.buttons(env.page) == ("back to search", "< prev")
    say(env, "click[< prev]")
    assert env.page.kind == "product" and env.page.chosen == ((name, other),)
    say(env, "click[< prev]")
    assert env.page.kind == "results"
    say(env, f"click[{asin}]")
    assert env.page.chosen == ()  # another visit, as in the original


@pytest.mark.parametrize("detail", ["features", "attributes"])
def test_details_are_lists(detail: str):
    env = start()
    asin = env.goal.product.asin
    say(env, f"search[{env.goal.product.name}]", f"click[{asin}]")
    text = say(env, f"click[{detail}]").observation.text
    assert text.count("\n- ") == 4  # every shipped product has four attributes


@pytest.mark.parametrize("split", get_args(Split))
def test_the_oracle_earns_everything_and_random_play_little(split: Split):
    env = start()
    scores = []
    for index in range(60):
        env.reset(seed_of(split, index))
        plan = env.oracle()
        assert plan is not None and len(plan) <= 8
        result = say(env, *plan)
        assert result.terminated and result.reward == result.metrics["success"] == 1
        assert result.metrics["score"] == 1 and env.oracle() == ()
        scores.append(play_at_random(env, seed_of(split, index)).metrics["score"])
    assert sum(scores) / len(scores) < 0.3


def test_the_oracle_finds_its_way_from_anywhere():
    env, rng = start(turn_limit=100), Random(3)
    for seed in range(0, 40, 2):
        env.reset(seed)
        for _ in range(12):
            names = [name for name in env.action_names if name != "click[buy now]"]
            say(env, rng.choice(names))
        plan = env.oracle()
        assert plan is not None
        assert say(env, *plan).metrics["success"] == 1


def next_of(env: WebShop) -> str:
    plan = env.oracle()
    assert plan
    return plan[0]


def test_an_oracle_that_reads_searches_for_the_wish_and_opens_what_was_found_first():
    env = start(oracle="pages")
    assert next_of(env) == f"search[{env.goal.text}]"
    say(env, next_of(env))
    first = env.shop.catalogue.products[env.page.found[0]]
    assert next_of(env) == f"click[{first.asin}]"


def test_an_oracle_that_reads_leaves_a_product_that_does_not_come_as_wished():
    env = start(oracle="pages", products=200)
    say(env, f"search[{env.goal.product.query}]")
    found = map(env.shop.catalogue.products.__getitem__, env.shop.shown(env.page))
    wished = env.goal.options
    lacking = [p for p in found if any(v not in dict(p.options)[name] for name, v in wished)]
    asin = lacking[0].asin
    say(env, f"click[{asin}]")
    assert next_of(env) == "click[back to search]"
    say(env, "click[< prev]")
    opened = next_of(env)
    assert opened != f"click[{asin}]" and opened.startswith("click[W")
    env.reset(0)  # another episode knows nothing of the last one
    say(env, f"search[{lacking[0].name}]")
    assert next_of(env) == f"click[{asin}]"


def test_an_oracle_that_reads_does_not_learn_from_its_own_plans():
    env = start(oracle="pages")
    say(env, f"search[{env.goal.product.query}]")
    assert env.oracle() == env.oracle()


def test_an_oracle_that_reads_succeeds_mostly():
    env = start(oracle="pages", products=200)
    successes = 0.0
    for index in range(100):
        env.reset(seed_of("validation", index))
        result = say(env, next_of(env))
        while not (result.terminated or result.truncated):
            result = say(env, next_of(env))
        successes += result.metrics["success"]
    assert 70 < successes < 100


def test_the_oracle_buys_the_first_product_that_fits():
    env = start(attributes=0)
    for seed in range(0, 40, 2):
        env.reset(seed)
        plan = env.oracle()
        assert plan is not None
        *_, result = (env.step(Reply("", actions=(action,))) for action in plan)
        assert result.metrics["success"] == 1
        position = env.page.found.index(env.page.product or 0)
        wanted = env.page.found.index(env.shop.catalogue.positions[env.goal.product.asin])
        assert position <= wanted  # another one fulfils the wish as well


def test_a_wrong_purchase_earns_its_part():
    env = start(seed=2)
    goal = env.goal
    say(env, f"search[{goal.product.name}]", f"click[{goal.product.asin}]")
    result = say(env, "click[buy now]")
    # of 2 attributes, 2 options and the price, the options are missing: 3 / 5
    assert result.terminated
    assert (result.reward, result.metrics["success"]) == (pytest.approx(0.6), 0)
    assert result.metrics["score_options"] == 0 and result.metrics["score_attributes"] == 1


@pytest.mark.parametrize("settings", [{}, {"products": 200, "split_products": False}])
def test_nothing_but_what_was_wished_for_succeeds(settings: dict[str, Any]):
    """Neither a product of another type, nor another value of an option, though the published rule
    takes much for alike."""
    env = WebShop(**settings)
    for index in range(40):
        goal = env._goals.draw(seed_of("test", index))
        chosen = [value for _, value in goal.options]
        others = [p for p in env.shop.catalogue.products if p.query != goal.product.query]
        assert max(score(goal, other, chosen).total for other in others) < 1
        for number, (name, wished) in enumerate(goal.options):
            for value in set(dict(goal.product.options)[name]) - {wished}:
                wrong = [*chosen[:number], value, *chosen[number + 1 :]]
                assert score(goal, goal.product, wrong).total == pytest.approx(4 / 5)


def test_only_a_perfect_purchase_may_earn():
    env = start(seed=2, reward="success")
    goal = env.goal
    say(env, f"search[{goal.product.name}]", f"click[{goal.product.asin}]")
    result = say(env, "click[buy now]")
    assert (result.reward, result.metrics["score"]) == (0, pytest.approx(0.6))
    env.reset(2)
    plan = env.oracle()
    assert plan is not None
    result = say(env, *plan)
    assert (result.reward, result.metrics["score"], result.metrics["success"]) == (1, 1, 1)


def test_the_turn_limit_truncates_without_a_purchase():
    env = start(turn_limit=2)
    assert not say(env, "search[hat]").truncated
    result = say(env, "click[back to search]")
    assert result.truncated and not result.terminated
    assert result.reward == result.metrics["score"] == result.metrics["bought"] == 0
    with pytest.raises(EnvError, match="no episode is running"):
        say(env, "search[hat]")


@pytest.mark.parametrize(
    "action",
    [
        "click[buy now]", "click[next >]", "buy[now]", "search[]", "click[W0001]", "search hat", "",
    ],
)  # fmt: skip
def test_what_cannot_be_done_here_changes_nothing(action: str):
    env = start(invalid_penalty=0.5, feedback=True)
    result = say(env, action)
    assert (result.reward, result.metrics["valid_actions"]) == (-0.5, 0)
    assert env.page.kind == "search" and not result.terminated
    assert "that is not possible on this page" in result.observation.text


def test_feedback_says_what_cannot_be_done_here():
    env = start(feedback=True)
    page = env.reset(0).text
    told = say(env, "click[buy now]").observation.text
    assert told == f"Your reply was wrong: that is not possible on this page.\n{page}"
    assert "wrong" not in say(env, "search[shoes]").observation.text


def test_searching_is_only_possible_on_the_search_page():
    env = start()
    say(env, "search[hat]")
    before = env.page
    assert say(env, "search[shoes]").metrics["valid_actions"] == 0
    assert env.page == before


@pytest.mark.parametrize(
    "text",
    [
        "\x00", "<image>", "<|im_end|><|im_start|>", "\ud800", "🦊" * 1000, "x" * 1_000_000,
        "[" * 5000, "]" * 5000, "\uff2b\ufb01", "a, b", "\u202e\u200b", "<" * 40, "next >]",
    ],
)  # fmt: skip
def test_hostile_texts_are_searched_for_and_clicked(text: str):
    env = start(products=100, split_products=False)
    for action in (f"search[{text}]", f"click[{text}]", text):
        result = env.step(Reply(text, actions=(action,)))
        assert "<image>" not in result.observation.text and result.reward == 0
    assert env.step(Reply(text, problem="no <answer>")).reward == -0.1


def test_a_name_suggests_only_what_can_be_done():
    env, rng = start(turn_limit=1000), Random(0)
    for _ in range(200):
        names = [name for name in env.action_names if name != "click[buy now]"]
        assert say(env, rng.choice(names)).metrics["valid_actions"] == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"format": FreeThink()}, "set action_separator to null"),
        ({"products": 0}, "products is 0"),
        ({"page_size": 0}, "page_size is 0"),
        ({"attributes": 5}, "with a query and 5 attributes: 0 for train"),
        ({"attributes": -1}, "attributes is -1"),
        ({"instructions": "x.json"}, "there are no items"),
        ({"products": 3}, "split_products to false"),
        ({"reward": "price"}, "choose 'score' or 'success'"),
        ({"items": "gone.json"}, r"gone\.json cannot be read"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], wanted: str):
    with pytest.raises(ConfigError, match=wanted):
        WebShop(**settings)


@pytest.mark.parametrize(
    ("settings", "least"),
    [({}, 250), ({"products": 50, "split_products": False}, 150), ({"attributes": 0}, 100)],
)
def test_no_wish_is_in_two_splits(settings: dict[str, Any], least: int):
    env = WebShop(**settings)
    drawn: dict[str, set[str]] = {}
    products: dict[str, set[str]] = {}
    for split in get_args(Split):
        goals = [env._goals.draw(seed_of(split, index)) for index in range(300)]
        drawn[split] = {goal.wish for goal in goals}  # another price limit makes it no other wish
        products[split] = {goal.product.asin for goal in goals}
        assert len(drawn[split]) > least
    assert sum(map(len, drawn.values())) == len(set().union(*drawn.values()))
    if settings.get("split_products", True):
        assert sum(map(len, products.values())) == len(set().union(*products.values()))


def test_the_state_is_the_page():
    env = start()
    assert env.state().structured == '{"page":"search"}'
    say(env, f"search[{env.goal.product.name}]")
    listed = json.loads(env.state().structured)["products"]
    assert len(listed) == 10 and listed[0] == env.goal.product.asin
    plan = env.oracle()
    assert plan is not None
    say(env, *plan[:2])  # a click on a product, and one on an option
    option, value = env.page.chosen[0]
    assert json.loads(env.state().structured)["chosen"] == {option: value}
    assert f"with {option} {value} chosen" in env.state().natural
    asin = env.shop.product(env.page).asin
    assert env.state().symbolic == f"page=product {asin} {option}={value}"


@pytest.mark.parametrize("state", ["natural", "structured", "symbolic"])
def test_the_agent_can_be_asked_for_the_state(state: Any):
    format = WorldModeling(state=state, action_separator=None)
    env = start(format=format)
    plan = env.oracle()
    assert plan is not None
    text = format.write(plan[:1], observation=env.state(), prediction=env.state())
    assert env.step(format(text)).metrics["format_valid"] == 1
    assert "example" in env.system_prompt() or '{"page":"search"}' in env.system_prompt()


def test_a_verb_is_read_in_any_case_but_in_no_other_script():
    env = start()
    assert say(env, "\u017fearch[hat]").metrics["valid_actions"] == 0  # a long s
    assert say(env, "SEARCH[hat]").metrics["valid_actions"] == 1


def test_a_query_keeps_its_commas():
    env = start(format=NoThink(action_separator=None))
    result = env.step(env.format("<answer>search[hand cream, mint]</answer>"))
    assert result.metrics["valid_actions"] == 1 and env.page.found


def test_a_trace_is_the_same_in_every_process():
    program = (
        "from random import Random\n"
        "from vagentrl.types import Reply\n"
        "from vagentrl_envs.webshop import WebShop\n"
        "env, rng = WebShop(), Random(0)\n"
        "for seed in range(20):\n"
        "    print(env.reset(seed).text, env.oracle())\n"
        "    over = False\n"
        "    while not over:\n"
        "        result = env.step(Reply('', actions=env.random_actions(rng)))\n"
        "        print(result)\n"
        "        over = result.terminated or result.truncated\n"
    )
    assert printed_in_every_process(program).count("\n") > 100


def test_a_missing_library_is_told_before_any_episode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    read_catalogue.cache_clear()
    with pytest.raises(ConfigError, match=r"vagentrl\[search\]"):
        WebShop(products=8)
