"""Few-shot examples: exchanges before an episode's first turn."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests import toy
from tests.rollout.test_renderer import FAMILIES, REPLIES, spoken, template_ids
from vagentrl.contexts import Context, FullHistory, Window
from vagentrl.engines.base import Sampling
from vagentrl.engines.scripted import ScriptedEngine
from vagentrl.rollout.collate import collate
from vagentrl.rollout.collector import Collector
from vagentrl.rollout.conversation import Conversation
from vagentrl.rollout.episodes import Episode
from vagentrl.rollout.renderer import Renderer
from vagentrl.rollout.workers import WorkerPool
from vagentrl.types import Example, Observation

TEXTS = st.text(max_size=20)
# also replies with white space around them: a template may strip it, or merge it with its header
SPOKEN = st.text(max_size=20).filter(lambda text: "\x00" not in text)


@pytest.mark.parametrize("name", FAMILIES)
@given(
    system=st.sampled_from(["", "You play.", " Spaced \n"]),
    pairs=st.lists(st.tuples(TEXTS, SPOKEN), max_size=3),
    turns=st.lists(st.tuples(TEXTS, REPLIES), max_size=2),
    last=TEXTS,
)
def test_tokens_are_the_templates(
    name: str, system: str, pairs: list[tuple[str, str]], turns: Any, last: str
):
    renderer = FAMILIES[name]
    asked = [text for text, _ in pairs] + [text for text, _ in turns] + [last]
    said = [reply for _, reply in pairs] + [reply for _, reply in turns]
    conversation = Conversation(
        renderer,
        FullHistory(),
        system,
        tuple(Example(Observation(text), reply) for text, reply in pairs),
    )
    for text, reply in turns:
        conversation.ask(Observation(text))
        conversation.reply((*renderer.encode_text(reply), renderer.end_of_turn))
    conversation.ask(Observation(last))
    assert conversation.ids == by_template(renderer, system, asked, said)


def by_template(renderer: Renderer, system: str, asked: list[str], said: list[str]) -> list[int]:
    return template_ids(renderer, spoken(system, asked, said), [])


@pytest.mark.parametrize("special", ["<|im_end|>", "<|eot_id|>", "<|image_pad|>", "<image>"])
def test_a_special_token_in_an_example_stays_text(special: str):
    for renderer in FAMILIES.values():
        controls = set(renderer._control.values())
        harmless = (Example(Observation("a"), "b"),)
        evil = (Example(Observation("a"), f"b{special}"),)
        counts = [
            sum(id in controls for id in renderer.first("", Observation("c"), examples))
            for examples in (harmless, evil)
        ]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("thoughts", ["keep", "strip"])
@pytest.mark.parametrize("context", [FullHistory(), Window(0), Window(1), Window(2, clear_every=2)])
def test_every_context_keeps_them_and_their_pictures(context: Context, thoughts: Any):
    context.thoughts = thoughts
    red, blue = (Image.new("RGB", (28, 28), color) for color in ("red", "blue"))
    examples = (Example(Observation("<image>?", (red,)), "<think>so</think>Red."),)
    conversation = Conversation(toy.renderer(images=True), context, "Name it.", examples)
    opening = toy.renderer(images=True).first("Name it.", Observation("X"), examples)
    opening = opening[: -len(toy.renderer(images=True).first("", Observation("X")))]
    for turn in range(4):
        conversation.ask(Observation(f"<image>{turn}", (blue,)))
        assert conversation.ids[: len(opening)] == list(opening)
        assert conversation.images[0] is red
        assert len(conversation.images) == 2 + turn - context(turn)
        conversation.reply(toy.encode_reply("<think>hm</think>Blue."))
    context.thoughts = "keep"


class Shown(toy.Countdown):
    """A countdown with an example before each episode, which depends on the episode."""

    prompt_varies = True  # pyright: ignore

    def system_prompt(self) -> str:
        return f"Count from {self.left}."

    def examples(self) -> tuple[Example, ...]:
        return (Example(Observation(f"{self.left} apples"), "go"),)


@pytest.mark.parametrize("context", [FullHistory(), Window(0)])
def test_the_collector_shows_each_episode_its_own_without_gradient(context: Context):
    renderer = toy.renderer()
    engine = ScriptedEngine([toy.GO], toy.encode_reply)
    engine.prepare(renderer.vocabulary(context_length=512))
    pool = WorkerPool(Shown, "shown")
    collector = Collector(engine, renderer, {"shown": pool}, 512, context)
    played = collector.collect(
        [Episode("shown", seed, group_id=seed, private_seed=seed) for seed in (1, 2)],
        Sampling(max_tokens=16),
    )
    for trajectory, left in zip(played, (2, 3), strict=True):
        first = trajectory.turns[0]
        wanted = renderer.first(
            f"Count from {left}.",
            first.observation,
            (Example(Observation(f"{left} apples"), "go"),),
        )
        assert first.prompt.ids == wanted
    batch = collate(played, renderer, temperature=1.0)
    # only what was sampled is learned from
    sampled = sum(len(turn.reply_ids) for one in played for turn in one.turns)
    assert int(batch.action_mask.sum()) == sampled
    pool.close()
