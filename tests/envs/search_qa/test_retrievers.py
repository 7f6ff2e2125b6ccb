"""BM25 by hand, and a retrieval server that misbehaves."""

import json
import pickle
from collections.abc import Callable
from math import log
from typing import Any

import httpx
import pytest

from vagentrl.errors import ConfigError, EnvError
from vagentrl_envs.bm25 import BM25Index, words
from vagentrl_envs.search_qa import HttpRetriever, SearchQA, retrievers


def test_bm25_ranks_as_its_formula_says():
    pytest.importorskip("bm25s")
    from vagentrl_envs.bm25 import BM25Index

    index = BM25Index(["red red shoe", "red hat", "blue hat band"], k1=1.2, b=0.75)
    # "red" is in 2 of 3 texts: idf = log(1 + (3 - 2 + 0.5) / (2 + 0.5)) = log 1.6; with the average
    # length 8/3, tf / (tf + k1 (1 - b + b · length / average)) is
    # text 0: 2 / (2 + 1.2 (0.25 + 0.75 · 9/8)) = 0.6038; text 1: 1 / (1 + 1.2 · 0.8125) = 0.5063
    scores = index._scorer.get_scores(["red"])
    assert scores.tolist() == pytest.approx([log(1.6) * 0.6038, log(1.6) * 0.5063, 0], abs=1e-4)
    assert index.top("Réd", 5) == [0, 1]
    assert index.top("RED hat!", 5) == [1, 0, 2]
    assert index.top("hat", 1) == [1]
    assert index.top("zebra", 5) == index.top("", 5) == []


def test_texts_with_equal_scores_keep_their_order():
    pytest.importorskip("bm25s")
    from vagentrl_envs.bm25 import BM25Index

    # enough of them that an unstable sort would mix them up
    assert BM25Index(["hat", "shoe", "red hat"] * 300).top("hat", 4) == [0, 3, 6, 9]


def served(answer: Callable[[httpx.Request], Any], **settings: Any) -> HttpRetriever:
    def handle(request: httpx.Request) -> httpx.Response:
        result = answer(request)
        return result if isinstance(result, httpx.Response) else httpx.Response(200, json=result)

    retriever = HttpRetriever("http://index/retrieve", **settings)
    retriever.transport = httpx.MockTransport(handle)
    return retriever


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(retrievers.time, "sleep", waited.append)
    return waited


def test_the_server_is_asked_as_search_r1_is():
    def answer(request: httpx.Request) -> Any:
        assert request.method == "POST" and request.url == "http://index/retrieve"
        assert json.loads(request.content) == {
            "queries": ["a, b"], "topk": 2, "return_scores": True
        }  # fmt: skip
        first = {"document": {"id": "3", "contents": '"Kiva"\nA town.'}, "score": 1.5}
        return {"result": [[first, {"title": "Lom", "text": "A river."}, {"contents": "late\nx"}]]}

    found = served(answer).search("a, b", 2)
    assert [tuple(passage) for passage in found] == [("Kiva", "A town."), ("Lom", "A river.")]


def test_half_of_a_surrogate_pair_reaches_no_server():
    retriever = served(lambda request: {"result": [[]]})
    env = SearchQA(questions="terse", retriever=retriever)
    env.reset(0)
    env.step(env.format("<think></think><answer>search[\ud800]</answer>"))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status: int, pauses: list[float]):
    tries = iter([httpx.Response(status), httpx.Response(status), {"result": [["Kiva\nA town."]]}])
    (passage,) = served(lambda request: next(tries)).search("x", 3)
    assert passage == ("Kiva", "A town.")
    assert pauses == [0.5, 1.0]


def test_a_server_that_is_not_there_is_named_after_all_tries(pauses: list[float]):
    def refuse(request: httpx.Request) -> Any:
        raise httpx.ConnectError("connection refused")

    with pytest.raises(EnvError, match=r"http://index/retrieve gave no passages in try 3.*refused"):
        served(refuse, retries=2).search("x", 3)
    assert pauses == [0.5, 1.0]


def test_a_wrong_address_is_not_asked_twice(pauses: list[float]):
    with pytest.raises(EnvError, match=r"(?s)try 1: HTTPStatusError.*404.*said 'no such path'"):
        served(lambda request: httpx.Response(404, text="no such path")).search("x", 3)
    assert pauses == []


@pytest.mark.parametrize(
    "answer",
    [
        [], {}, {"result": []}, {"result": [[], []]}, {"result": [[7]]}, {"result": 3},
        {"result": [[{"document": {"score": 1}}]]}, {"result": [[{"document": None}]]},
        {"result": [{"document": {"contents": "Kiva"}, "score": 1}]}, {"result": ["Kiva"]},
        {"result": {"documents": []}},
    ],
)  # fmt: skip
def test_an_answer_without_documents_is_shown(answer: Any):
    with pytest.raises(EnvError, match=r"answered .*wanted one list of documents"):
        served(lambda request: answer).search("x", 3)


@pytest.mark.parametrize("text", ["<html>", "[" * 100_000])
def test_an_answer_that_is_not_json_is_an_error(text: str):
    with pytest.raises(EnvError, match=r"try 1: .*must answer in JSON"):
        served(lambda request: httpx.Response(200, text=text)).search("x", 3)


def test_what_is_written_without_spaces_is_found():
    texts = [
        "東京は日本の首都だ。",  # Tokyo is the capital
        "京都は古い。",  # Kyoto is old
    ]
    index = BM25Index(texts)
    assert index.top("首都", 2) == [0, 1]  # "capital": both signs are in the first
    assert index.top("古", 2) == [1]
    assert words("a1 首都 café") == ["a1", "首", "都", "cafe"]


def test_a_search_may_take_as_long_as_its_tries():
    # 3 tries of 3 · 2 seconds, with pauses of 0.5 and 1 between them
    retriever = HttpRetriever(timeout_s=2, retries=2)
    assert retriever.waits_s == 19.5
    assert SearchQA(questions="terse", retriever=retriever).waits_s == 19.5


def test_a_retriever_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(HttpRetriever(retries=1))).retries == 1


@pytest.mark.parametrize("settings", [{"url": "index:8000"}, {"timeout_s": 0.0}, {"retries": -1}])
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any]):
    with pytest.raises(ConfigError):
        HttpRetriever(**settings)
