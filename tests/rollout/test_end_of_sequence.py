"""A model may end its replies with tokens other than the chat template's end of turn."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests import toy
from tests.engines.shipped import TEXT
from vagentrl.contexts import Context, FullHistory, Window
from vagentrl.engines import ScriptedEngine
from vagentrl.engines.base import Sampling
from vagentrl.models.load import checkpoint_path
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Observation


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Writes the files of a tiny model without weights."""
    folder = tmp_path / "model"
    ignore = shutil.ignore_patterns("*.safetensors")
    return Path(shutil.copytree(checkpoint_path(TEXT), folder, ignore=ignore))


def ends_with(checkpoint: Path, ends: int | list[int] | None) -> Renderer:
    path = checkpoint / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ends}))
    return Renderer.from_pretrained(checkpoint)


def test_every_end_of_the_generation_config_stops_a_reply(checkpoint: Path):
    ids = Renderer.from_pretrained(checkpoint).tokenizer.get_vocab()
    turn, text = ids["<|im_end|>"], ids["<|endoftext|>"]
    assert ends_with(checkpoint, turn).stop_ids == {turn}
    assert ends_with(checkpoint, [turn, text]).stop_ids == {turn, text}
    assert ends_with(checkpoint, text).stop_ids == {turn, text}  # the template's own always
    assert ends_with(checkpoint, None).stop_ids == {turn}
    (checkpoint / "generation_config.json").unlink()
    assert Renderer.from_pretrained(checkpoint).stop_ids == {turn}


@pytest.mark.parametrize(
    "context", [FullHistory(), Window(1), FullHistory(thoughts="strip")], ids=lambda c: type(c)
)
@pytest.mark.parametrize("thought", ["", "<think>hm</think>"])
def test_the_templates_end_of_turn_follows_a_reply_that_ended_otherwise(
    checkpoint: Path, context: Context, thought: str
):
    ids = Renderer.from_pretrained(checkpoint).tokenizer.get_vocab()
    turn, text = ids["<|im_end|>"], ids["<|endoftext|>"]
    renderer = ends_with(checkpoint, [turn, text])
    prompts = {}
    for end in (turn, text):
        conversation = Conversation(renderer, context, "Play.")
        for question in ("one", "two", "three"):
            conversation.ask(Observation(question))
            conversation.reply((*renderer.encode_text(f"{thought}Up"), end))
        conversation.ask(Observation("four"))
        prompts[end] = conversation.ids
    if thought and context.thoughts == "strip":  # a rewritten reply has the template's end alone
        assert prompts[text] == prompts[turn]
        return
    # what was sampled stays, and the end of turn comes after it
    assert [id for id in prompts[text] if id != text] == prompts[turn]
    ended = [place for place, id in enumerate(prompts[text]) if id == text]
    assert ended and all(prompts[text][place + 1] == turn for place in ended)


def test_an_episode_goes_on_after_such_a_reply():
    tokenizer = toy.tokenizer()
    other = tokenizer.get_vocab()["<|endoftext|>"]
    renderer = Renderer(tokenizer, end_ids=[other])
    go = (*renderer.encode_text(toy.GO), other)
    engine = ScriptedEngine([go], encode=renderer.encode_text)
    engine.prepare(renderer.vocabulary(512))
    pools = {"toy": WorkerPool(partial(toy.Countdown, False), "toy")}
    collector = Collector(engine, renderer, pools, 512)
    [played] = collector.collect([Episode("toy", 1, 0, 0)], Sampling(max_tokens=20))
    assert played.stop == "terminated"
    assert [turn.reply_ids for turn in played.turns] == [go, go]
    assert [turn.finish for turn in played.turns] == ["stop", "stop"]
    assert all(turn.reply.problem is None for turn in played.turns)
    assert played.turns[1].prompt.ids[0] == renderer.end_of_turn
