from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import toy
from vagentrl.contexts import Context, FullHistory, Window
from vagentrl.errors import EnvError
from vagentrl.pictures import digest
from vagentrl.rollout.collate import collate
from vagentrl.rollout.conversation import Conversation
from vagentrl.types import Observation

SYSTEM = "Play."
THOUGHT = "<think>hm</think><answer>go</answer>"
ANSWER = "<answer>go</answer>"


def by_template(turns: list[tuple[str, str]], question: str) -> list[int]:
    """Tokens of a conversation that the chat template writes as a whole."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for observation, reply in turns:
        messages.append({"role": "user", "content": observation})
        messages.append({"role": "assistant", "content": reply})
    messages.append({"role": "user", "content": question})
    text = toy.tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return toy.tokenizer().encode(text, add_special_tokens=False)  # pyright: ignore


def contexts(context: Context, turns: int, reply: str = THOUGHT) -> list[list[int]]:
    """The whole context before each reply of an episode with numbered observations."""
    conversation = Conversation(toy.renderer(), context, SYSTEM)
    seen = []
    for turn in range(turns):
        conversation.ask(Observation(f"see {turn}"))
        seen.append(list(conversation.ids))
        conversation.reply(toy.encode_reply(reply))
    return seen


@pytest.mark.parametrize(
    ("context", "starts"),
    [
        (FullHistory(), [0, 0, 0, 0]),
        (Window(0), [0, 1, 2, 3]),
        (Window(1), [0, 0, 1, 2]),
        (Window(2), [0, 0, 0, 1]),
        (Window(3, clear_every=2), [0, 0, 2, 2]),
    ],
)
@pytest.mark.parametrize("thoughts", ["keep", "strip"])
def test_every_context_is_what_the_template_writes_of_the_turns_in_it(
    context: Context, starts: list[int], thoughts: Any
):
    context.thoughts = thoughts
    remembered = THOUGHT if thoughts == "keep" else ANSWER
    for turn, (ids, start) in enumerate(zip(contexts(context, 4), starts, strict=True)):
        past = [(f"see {earlier}", remembered) for earlier in range(start, turn)]
        assert ids == by_template(past, f"see {turn}")
    context.thoughts = "keep"


def whole(context: Context, reply: str) -> list[bool]:
    conversation = Conversation(toy.renderer(), context, SYSTEM)
    found = []
    for turn in range(5):
        found.append(conversation.ask(Observation(f"see {turn}")).whole)
        conversation.reply(toy.encode_reply(reply))
    return found


def test_a_row_begins_where_the_past_is_cut_or_rewritten():
    assert whole(FullHistory(), THOUGHT) == [True, False, False, False, False]
    # turns 0 to 2 see everything; turn 3 no longer sees turn 0
    assert whole(Window(2), THOUGHT) == [True, False, False, True, True]
    assert whole(Window(0), THOUGHT) == [True] * 5
    assert whole(FullHistory(thoughts="strip"), THOUGHT) == [True] * 5
    # a reply without thoughts is remembered as it was sampled
    assert whole(FullHistory(thoughts="strip"), ANSWER) == [True, False, False, False, False]
    assert whole(Window(9, clear_every=2), THOUGHT) == [True, False, True, False, True]


def test_a_stripped_reply_that_was_cut_off_is_remembered_with_an_end():
    conversation = Conversation(toy.renderer(), FullHistory(thoughts="strip"), SYSTEM)
    conversation.ask(Observation("see 0"))
    conversation.reply(toy.encode_reply(THOUGHT)[:-1])
    conversation.ask(Observation("see 1"))
    assert conversation.ids == by_template([("see 0", ANSWER)], "see 1")


def test_no_more_turns_are_remembered_than_will_be_seen():
    conversation = Conversation(toy.renderer(), Window(2), SYSTEM)
    sizes = []
    for turn in range(400):
        conversation.ask(Observation(f"see {turn % 10}"))
        sizes.append((len(conversation.ids), len(conversation._past)))
        conversation.reply(toy.encode_reply(THOUGHT))
    assert len(set(sizes[2:])) == 1  # turn 400 costs as much as turn 3


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([toy.GO, toy.WAIT]), min_size=1, max_size=5),
    st.integers(0, 3),
    st.booleans(),
)
def test_rows_hold_every_reply_once_in_the_context_it_was_sampled_in(
    replies: list[str], window: int, images: bool
):
    while replies.count(toy.GO) > 4:
        replies.remove(toy.GO)
    context = Window(window)
    played = toy.play(replies, seed=3, images=images, context=context)
    rows = collate([played], toy.renderer(images), temperature=1.0, at_limit="bootstrap")
    sampled = rows.input_ids[rows.action_mask].tolist()
    assert sampled == [id for turn in played.turns for id in turn.reply_ids]
    conversation = Conversation(toy.renderer(images), context, toy.TASK)
    for number, turn in enumerate(played.turns):
        conversation.ask(turn.observation)
        row, column = (rows.turn_ids == number).nonzero()[0].tolist()
        assert rows.input_ids[row, :column].tolist() == conversation.ids
        conversation.reply(turn.reply_ids)
    begun = sum(turn.prompt.whole for turn in played.turns)
    begun += played.end is not None and played.end.whole
    assert len(rows) == begun
    if images:
        vision = rows.to("cpu").patches
        assert vision is not None
        toy.renderer(True).check_images(rows.input_ids.flatten().tolist(), vision)


def test_a_picture_that_is_painted_over_is_not_shown_again():
    conversation = Conversation(toy.renderer(images=True), FullHistory(), SYSTEM)
    canvas = Image.new("RGB", (28, 28), "red")
    conversation.ask(Observation("<image>", (canvas,)))
    digest(canvas)  # as an engine does to sample the reply
    conversation.reply(toy.encode_reply(ANSWER))
    canvas.paste("blue", (0, 0, 28, 28))
    with pytest.raises(EnvError, match="changed a picture that it had shown before"):
        conversation.ask(Observation("<image>", (canvas,)))
