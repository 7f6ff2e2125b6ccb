"""Question answering by search: the environment, its questions and its retrievers."""

from vagentrl_envs.search_qa.environment import SearchQA
from vagentrl_envs.search_qa.questions import Question, Questions, read_questions
from vagentrl_envs.search_qa.retrievers import (
    BM25Retriever,
    HttpRetriever,
    Passage,
    Retriever,
)
from vagentrl_envs.search_qa.scoring import exact_match, f1, normalised

__all__ = [
    "BM25Retriever",
    "HttpRetriever",
    "Passage",
    "Question",
    "Questions",
    "Retriever",
    "SearchQA",
    "exact_match",
    "f1",
    "normalised",
    "read_questions",
]
