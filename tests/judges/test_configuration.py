"""Every judge, with its model, cache and parser, can be built from a configuration."""

import pytest
from jsonargparse import ArgumentParser

import vagentrl_judges.cached
import vagentrl_judges.relation_f1
import vagentrl_judges.yes_no  # noqa: F401 (registers short class names, as the entry point does)
from vagentrl.chat import OpenAIChat
from vagentrl.chat.endpoint import Prices
from vagentrl.claims.judge import Judge
from vagentrl_judges.apart import Apart
from vagentrl_judges.cached import Cached
from vagentrl_judges.model_parser import ModelParser
from vagentrl_judges.relation_f1 import RelationF1
from vagentrl_judges.yes_no import YesNo

SERVED = """
class_path: vagentrl_judges.cached.Cached
init_args:
  folder: runs/verdicts
  judge:
    class_path: vagentrl_judges.apart.Apart
    init_args:
      judge:
        class_path: YesNo
        init_args:
          model:
            class_path: vagentrl.chat.OpenAIChat
            init_args:
              model: some-model
              url: http://127.0.0.1:8000/v1
              key_variable: null
              requests_per_minute: 600
              prices: {prompt: 0.15, reply: 0.6}
              extra_body: {reasoning_effort: low}
"""
RULES = """
class_path: RelationF1
init_args:
  parser:
    class_path: vagentrl_judges.model_parser.ModelParser
    init_args: {model: {class_path: vagentrl.chat.OpenAIChat, init_args: {model: m}}}
  weights: {player: 2}
  symbols: {P: [player], X: [boxes], "*": [boxes, targets]}
"""


def built(text: str) -> Judge:
    parser = ArgumentParser()
    parser.add_subclass_arguments(Judge, "judge")
    indented = "judge:\n" + "\n".join(f"  {line}" for line in text.splitlines())
    return parser.instantiate(parser.parse_string(indented)).judge


def test_a_judge_that_asks_an_endpoint_is_built_with_its_cache_and_its_model():
    judge = built(SERVED)
    assert isinstance(judge, Cached) and isinstance(judge.inner, Apart)
    assert isinstance(judge.inner.inner, YesNo)
    model = judge.inner.inner.model
    assert isinstance(model, OpenAIChat)
    assert (model.key_variable, model.prices) == (None, Prices(0.15, 0.6))
    assert model.extra_body == {"reasoning_effort": "low"}


def test_a_rule_based_judge_is_built_with_its_parser():
    judge = built(RULES)
    assert isinstance(judge, RelationF1)
    assert isinstance(judge.parser, ModelParser)
    assert judge.weights == {"player": 2}
    assert isinstance(built("class_path: RelationF1"), RelationF1)


def test_a_setting_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        built("class_path: RelationF1\ninit_args: {wieghts: {player: 2}}")
    assert "wieghts" in capsys.readouterr().err
