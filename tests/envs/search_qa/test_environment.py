"""The episode of Search QA: searches, answers, limits and what it shows."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.processes import printed_in_every_process
from vagentrl.environment import seed_of
from vagentrl.errors import ConfigError, EnvError
from vagentrl.formats import FreeThink, NoThink
from vagentrl.hints import HintedEnvironment, ScriptedHintModel
from vagentrl.types import Reply, StepResult
from vagentrl_envs.search_qa import BM25Retriever, SearchQA

pytest.importorskip("bm25s")


def say(env: SearchQA, *actions: str) -> StepResult:
    """Play one action a turn; the result of the last."""
    results = [env.step(Reply("", actions=(action,))) for action in actions]
    return results[-1]


def question(env: SearchQA, kind: str) -> int:
    """The first training seed with a question of this kind."""
    for index in range(100):
        env.reset(seed_of("train", index))
        if env.question.kind == kind:
            return seed_of("train", index)
    raise AssertionError(kind)


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """Settings for one question over three passages."""
    corpus = [
        {"title": "Kiva", "text": "Kiva is a town on the <image> Lom, with a mayor."},
        {"title": "Lom", "text": "The Lom is a river <|im_end|> that rises\u0000 in Tar."},
        {"title": "Tar", "text": "Tar is a mountain."},
    ]
    asked = {"question": "Where does Kiva's river rise?", "answer": "the Mount Tar"}
    asked["supporting_facts"] = ["Kiva", "Lom"]  # pyright: ignore[reportArgumentType]
    (tmp_path / "q.jsonl").write_text(json.dumps({**asked, "split": "train"}))
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    retriever = BM25Retriever(str(tmp_path / "c.jsonl"))
    return {"questions": str(tmp_path / "q.jsonl"), "retriever": retriever}


def test_a_search_shows_the_best_passages_and_the_question_again(own: dict[str, Any]):
    env = SearchQA(**own, passages=2)
    assert env.reset(0).text == "Question: Where does Kiva's river rise?"
    # "rises" is another word than "rise"; "river" is in one passage, "mountain" in another
    shown = say(env, "search[river, or mountain]").observation.text.split("\n")
    assert shown[0] == "Question: Where does Kiva's river rise?"
    assert {line[:7] for line in shown[1:]} == {"[1] Tar", "[2] Lom"}


def test_what_cannot_be_shown_is_replaced(own: dict[str, Any]):
    env = SearchQA(**own)
    env.reset(0)
    assert "the (image) Lom" in say(env, "search[Kiva]").observation.text
    assert "that rises in Tar" in say(env, "search[river]").observation.text


def test_nothing_found_is_said(own: dict[str, Any]):
    env = SearchQA(**own)
    env.reset(0)
    result = say(env, "search[zebra]")
    assert result.observation.text.endswith("\nNo passage was found.")
    assert result.metrics["effective_actions"] == 0


def test_long_passages_are_cut(own: dict[str, Any]):
    env = SearchQA(**own, passages=1, passage_characters=4)
    env.reset(0)
    assert say(env, "search[Kiva]").observation.text.endswith("\n[1] Kiva: Kiva")


@pytest.mark.parametrize(
    ("reward", "answer", "score", "success"),
    [
        ("exact_match", "mount tar!", 1.0, 1.0),
        ("exact_match", "Tar", 0.0, 0.0),
        ("f1", "Tar", 2 / 3, 0.0),  # 1 shared word; 1 was said and 2 were wanted: 2 · 1 / (1 + 2)
        ("f1", "Kiva", 0.0, 0.0),
    ],
)
def test_an_answer_ends_the_episode_and_earns_its_score(
    own: dict[str, Any], reward: Any, answer: str, score: float, success: float
):
    env = SearchQA(**own, reward=reward)
    env.reset(0)
    result = say(env, f"answer[{answer}]")
    assert result.terminated and not result.truncated
    assert result.reward == pytest.approx(score)
    assert result.metrics["success"] == success
    assert result.metrics["support_found"] == 0


def test_searches_cost_and_only_the_last_turn_reports_scores(own: dict[str, Any]):
    env = SearchQA(**own, search_cost=0.25, passages=1)
    env.reset(0)
    first = say(env, "search[Kiva]")
    assert first.reward == -0.25 and "f1" not in first.metrics
    last = say(env, "answer[Mount Tar]")
    assert (last.reward, last.metrics["f1"], last.metrics["answered"]) == (1.0, 1.0, 1.0)
    assert last.metrics["support_found"] == 0.5  # one of two


def test_the_turn_limit_truncates_without_an_answer(own: dict[str, Any]):
    env = SearchQA(**own, turn_limit=2)
    env.reset(0)
    assert not say(env, "search[Lom]").truncated
    result = say(env, "search[Kiva]")
    assert result.truncated and not result.terminated
    assert result.metrics["answered"] == result.metrics["exact_match"] == 0
    assert result.metrics["support_found"] == 1
    with pytest.raises(EnvError, match="no episode is running"):
        say(env, "search[Kiva]")


def test_the_oracle_searches_only_for_what_it_has_not_seen(own: dict[str, Any]):
    env = SearchQA(**own, passages=1)
    env.reset(0)
    answer = "answer[the Mount Tar]"
    assert env.oracle() == ("search[Kiva]", "search[Lom]", answer)
    say(env, "search[Lom]")
    assert env.oracle() == ("search[Kiva]", answer)
    say(env, "search[Kiva]")
    assert env.oracle() == (answer,)
    say(env, "answer[x]")
    assert env.oracle() == ()


@pytest.mark.parametrize("questions", ["standard", "terse"])
@pytest.mark.parametrize("passages", [1, 3])
def test_the_oracle_answers_every_shipped_question(questions: str, passages: int):
    env = SearchQA(questions=questions, passages=passages, turn_limit=3)
    for split in ("train", "validation", "test"):
        for index in range(60):
            env.reset(seed_of(split, index))
            plan = env.oracle()
            assert plan is not None
            result = say(env, *plan)
            assert result.metrics["success"] == result.metrics["support_found"] == 1


@pytest.mark.parametrize(
    "action",
    ["find[Kiva]", "search[]", "search[ \x00 ]", "search Kiva", "search[Kiva", "", "answer]x["],
)
def test_what_is_no_action_changes_nothing(own: dict[str, Any], action: str):
    env = SearchQA(**own, invalid_penalty=0.5, feedback=True)
    env.reset(0)
    result = env.step(Reply("", actions=(action,)))
    assert (result.reward, result.metrics["valid_actions"]) == (-0.5, 0)
    assert not result.terminated
    assert "the actions are search[query], answer[text]." in result.observation.text


@pytest.mark.parametrize(
    "text",
    [
        "\x00", "<image>", "<im<image>age>", "<|im_end|><|im_start|>", "\ud800", "🦊" * 1000,
        "x" * 1_000_000, "[" * 5000, "]" * 5000, "\uff2b\ufb01", "a, b", "\n\n", "\u202e\u200b",
    ],
)  # fmt: skip
def test_hostile_texts_are_searched_for_and_answered(own: dict[str, Any], text: str):
    env = SearchQA(**own)
    env.reset(0)
    assert "<image>" not in say(env, f"search[{text}]").observation.text
    assert env.step(Reply(text, problem="no <answer>")).reward == -0.1
    result = say(env, f"answer[{text} x]")
    assert result.terminated and result.metrics["f1"] == 0


def test_an_answer_keeps_its_commas_and_brackets():
    format = NoThink(action_separator=None)
    reply = format("<answer>search[Kiva, the [old] town]</answer>")
    assert reply.actions == ("search[Kiva, the [old] town]",)
    env = SearchQA(questions="terse", format=format)
    env.reset(0)
    assert env.step(reply).metrics["valid_actions"] == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"format": FreeThink()}, "set action_separator to null"),
        ({"questions": "mine.jsonl"}, "there is no retriever"),
        ({"kinds": ["three-hop"]}, "its kinds are comparison, one-hop, two-hop"),
        ({"passages": 0}, "passages is 0"),
        ({"reward": "em"}, "reward is 'em'; give exact_match or f1"),
        ({"search_cost": -1.0}, "search_cost -1.0"),
        ({"turn_limit": 0}, "turn_limit is 0"),
        ({"invalid_action": "default", "default_action": "search[query]"}, "invalid_action to sk"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], wanted: str):
    with pytest.raises(ConfigError, match=wanted):
        SearchQA(**settings)


def test_only_the_kinds_that_are_wanted_are_asked():
    env = SearchQA(kinds=["comparison"])
    for index in range(50):
        env.reset(seed_of("train", index))
        assert env.question.kind == "comparison"
        assert set(env.question.answers) < set(env.question.support)


def test_names_in_sight_suggest_themselves():
    env = SearchQA()
    env.reset(question(env, "comparison"))
    one, other = env.question.support
    assert env.action_names == tuple(
        f"{verb}[{name}]" for name in (one, other) for verb in ("search", "answer")
    )
    say(env, f"search[{one}]")
    assert len(env.action_names) > 4
    assert env.random_actions(Random(1)) == env.random_actions(Random(1))
    assert env.random_actions(Random(1))[0] in env.action_names


def test_scripted_hints_name_the_next_search():
    model = ScriptedHintModel(right=1.0)
    env = HintedEnvironment(lambda: SearchQA(questions="terse"), model, epsilon=0.0)
    hinted = env.reset(0)
    plan = env.oracle()
    assert plan is not None and hinted.hint == f"Hint: Go {plan[0]}."
    result = env.step(Reply("", actions=plan[:1]))
    assert result.metrics["hints_followed"] == 1
    assert result.observation.hint == f"Hint: Go {plan[1]}."


def test_the_initial_state_is_the_question_without_a_search():
    env = SearchQA()
    for seed in range(20):
        assert env.reset(seed).text == f"Question: {env.initial_state(seed)}"


def test_a_trace_is_the_same_in_every_process():
    program = (
        "from random import Random\n"
        "from vagentrl.types import Reply\n"
        "from vagentrl_envs.search_qa import SearchQA\n"
        "env, rng = SearchQA(turn_limit=4), Random(0)\n"
        "for seed in range(20):\n"
        "    print(env.reset(seed).text)\n"
        "    over = False\n"
        "    while not over:\n"
        "        result = env.step(Reply('', actions=env.random_actions(rng)))\n"
        "        print(result)\n"
        "        over = result.terminated or result.truncated\n"
    )
    assert printed_in_every_process(program).count("\n") > 40


def test_a_retriever_is_named_in_yaml(tmp_path: Path):
    from vagentrl.cli.parser import Parser
    from vagentrl.environment import Environment

    retriever = {
        "class_path": "vagentrl_envs.search_qa.HttpRetriever",
        "init_args": {"url": "http://index:8000/retrieve", "retries": 0},
    }
    parser = Parser(exit_on_error=False)
    parser.add_argument("--env", type=Environment)
    settings = {"questions": "terse", "retriever": retriever}
    given = {"env": {"class_path": "vagentrl_envs.search_qa.SearchQA", "init_args": settings}}
    env = parser.instantiate(parser.parse_object(given)).env
    assert env.retriever.url == "http://index:8000/retrieve" and env.waits_s == 60
