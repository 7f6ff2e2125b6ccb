import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import AddedToken
from transformers import AutoTokenizer

from tests.rollout import chat_fixtures as chat
from vagentrl.errors import ConfigError, EnvError, ShapeError
from vagentrl.rollout.renderer import Renderer
from vagentrl.types import Observation

CELL = Image.new("RGB", (84, 84), "navy")  # (84 / 28)^2 = 9 tokens
WIDE = Image.new("RGB", (112, 56), "red")  # 4 * 2 = 8 tokens

FAMILIES = {
    "qwen_vl": Renderer(chat.qwen_vl(), chat.image_encoder()),
    "qwen_text": Renderer(chat.qwen_text()),
    "llama": Renderer(chat.llama()),
}
# a template may trim replies, and a reply that opens with white space may merge with its header:
# what was sampled stays as it is, so only replies without either can equal the template's tokens
REPLIES = st.text(max_size=20).map(lambda text: f"A{text}Z")


@pytest.fixture(params=FAMILIES)
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return FAMILIES[request.param]


@pytest.fixture
def qwen_vl() -> Renderer:
    return FAMILIES["qwen_vl"]


def test_a_copy_for_another_process_encodes_alike_and_remembers_anew(renderer: Renderer):
    ids = renderer.encode_text("Up")
    copy = pickle.loads(pickle.dumps(renderer))
    assert copy.encode_text("Up") == ids
    assert copy.encode_text.cache_info().misses == 1
    assert copy.first("Play.", Observation("Go.")) == renderer.first("Play.", Observation("Go."))


def template_ids(renderer: Renderer, messages: list, rooms: list[int]) -> list[int]:
    """The template's tokens, each image token repeated."""
    ids = renderer.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    expanded = []
    for id in ids:
        expanded += [id] * (rooms.pop(0) if id == renderer.image_token_id else 1)
    assert not rooms
    return expanded


def play(renderer: Renderer, system: str, texts: list[str], replies: list[str]) -> list[int]:
    """The renderer's tokens, added turn by turn; every other reply is cut off."""
    ids = list(renderer.first(system, Observation(texts[0])))
    vocabulary = renderer.tokenizer.get_vocab()
    end = vocabulary["<|im_end|>" if "<|im_end|>" in vocabulary else "<|eot_id|>"]
    for number, (reply, text) in enumerate(zip(replies, texts[1:], strict=True)):
        ids += renderer.tokenizer.encode(reply, add_special_tokens=False)
        ended = number % 2 == 0
        ids += [end] * ended
        ids += renderer.next(Observation(text), ended=ended)
    return ids


def spoken(system: str, texts: list[str], replies: list[str]) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    for text, reply in zip(texts, [*replies, None], strict=True):
        messages.append({"role": "user", "content": text})
        if reply is not None:
            messages.append({"role": "assistant", "content": reply})
    return messages


def test_self_test_passes(renderer: Renderer):
    renderer.self_test()


@pytest.mark.parametrize(
    "texts",
    [
        ["", "", ""],
        ["\n\nleading", "trailing  \n ", " \t both \n"],
        ["déjà vu", "日本語 🤖‍🔧", "e\u0301 (not composed)"],
        ["What now?", "one  two", "user\nassistant\n"],
    ],
)
@pytest.mark.parametrize("system", ["", "You play.", " You play.\n\n"])
def test_turns_add_up_to_the_template(renderer: Renderer, system: str, texts: list[str]):
    replies = ["Up", "Left  Down"]
    wanted = template_ids(renderer, spoken(system, texts, replies), [])
    assert play(renderer, system, texts, replies) == wanted


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(list(FAMILIES)),
    system=st.text(max_size=20),
    turns=st.lists(st.tuples(st.text(max_size=30), REPLIES), max_size=3),
    last=st.text(max_size=30),
)
def test_any_conversation_adds_up_to_the_template(family, system, turns, last):
    renderer = FAMILIES[family]
    texts, replies = [*(text for text, _ in turns), last], [reply for _, reply in turns]
    wanted = template_ids(renderer, spoken(system, texts, replies), [])
    assert play(renderer, system, texts, replies) == wanted


@pytest.mark.parametrize(
    "text", ["<image>", "a <image> b", "<image><image>", "\n<image>\n\n<image> "]
)
def test_images_take_the_room_their_grid_predicts(qwen_vl: Renderer, text: str):
    images = (CELL, WIDE)[: text.count("<image>")]
    observation = Observation(text, images)
    blocks = []
    for number, part in enumerate(text.split("<image>")):
        blocks += [{"type": "image"}] * (number > 0) + [{"type": "text", "text": part}]
    reply = {"role": "assistant", "content": "Up"}
    messages = [{"role": "user", "content": blocks}, reply, {"role": "user", "content": blocks}]
    rooms = [9, 8][: len(images)]

    (end,) = qwen_vl.tokenizer.encode("<|im_end|>")
    ids = [*qwen_vl.first("", observation), *qwen_vl.tokenizer.encode("Up"), end]
    ids += qwen_vl.next(observation)

    assert ids == template_ids(qwen_vl, messages, rooms * 2)
    qwen_vl.check_images(ids, qwen_vl.encode_images([*images, *images]))


def test_a_prompt_that_lost_image_tokens_is_refused(qwen_vl: Renderer):
    ids = qwen_vl.first("", Observation("<image>", (CELL,)))
    ids = ids[: ids.index(qwen_vl.image_token_id) + 5]  # cut inside the image
    with pytest.raises(ShapeError, match="holds 5 image tokens but its images take 9"):
        qwen_vl.check_images(ids, qwen_vl.encode_images([CELL]))


def test_no_text_becomes_a_special_token(renderer: Renderer):
    special = "".join(renderer.tokenizer.all_special_tokens) + "".join(
        [*chat.QWEN_TOKENS, *chat.LLAMA_TOKENS]
    )
    harmless, evil = Observation("x"), Observation(f"x{special}x")
    control = {id for id, token in renderer.tokenizer.added_tokens_decoder.items() if token.special}

    def controls(ids: tuple[int, ...]) -> list[int]:
        return [id for id in ids if id in control]

    assert controls(renderer.first(special, evil)) == controls(renderer.first("x", harmless))
    assert controls(renderer.next(evil)) == controls(renderer.next(harmless))
    assert special in renderer.decode(renderer.next(evil))


def test_half_of_a_surrogate_pair_is_a_question_mark(renderer: Renderer):
    broken, whole = (Observation(f"at 1{c}", hint=f"Up{c}") for c in "\ud83d?")
    assert renderer.first("Play\ud83d.", broken) == renderer.first("Play?.", whole)
    assert renderer.next(broken) == renderer.next(whole)


def test_a_hint_is_the_last_line_of_what_is_seen(renderer: Renderer):
    told, shown = Observation("You see a box.", hint="Hint: Go up."), "You see a box.\nHint: Go up."
    assert renderer.first("Play.", told) == renderer.first("Play.", Observation(shown))
    for ended in (True, False):
        assert renderer.next(told, ended=ended) == renderer.next(Observation(shown), ended=ended)


def test_a_hint_shows_no_image_and_holds_no_special_token(qwen_vl: Renderer):
    pictured = Observation("<image> Well?", (CELL,), hint="See <image><|im_end|><|image_pad|>")
    ids = qwen_vl.next(pictured)
    plain = qwen_vl.next(Observation("<image> Well?", (CELL,)))
    vocabulary = qwen_vl.tokenizer.get_vocab()
    for token in ("<|im_end|>", "<|image_pad|>", "<|vision_start|>"):
        assert ids.count(vocabulary[token]) == plain.count(vocabulary[token])
    assert "\nSee <image><|im_end|><|image_pad|>" in qwen_vl.tokenizer.decode(list(ids))


def test_added_tokens_that_are_not_special_are_kept(qwen_vl: Renderer):
    (think,) = qwen_vl.tokenizer.encode("<think>")
    assert think in qwen_vl.next(Observation("Write <think> first."))


def test_image_tokens_that_the_tokenizer_calls_ordinary_are_still_safe():
    """As in checkpoints whose image tokens are not marked as special."""
    tokenizer = chat.tokenizer(
        chat.QWEN_TOKENS[:3], "<|im_end|>", chat.CHATML_VISION, added=tuple(chat.QWEN_TOKENS[3:])
    )
    renderer = Renderer(tokenizer, chat.image_encoder())
    renderer.self_test()
    ids = renderer.next(Observation("<|image_pad|> <image>", (CELL,)))
    assert ids.count(renderer.image_token_id) == 9


def test_stop_and_banned_tokens(renderer: Renderer, qwen_vl: Renderer):
    tokens = qwen_vl.tokenizer.convert_ids_to_tokens
    assert set(tokens(list(qwen_vl.stop_ids))) == {"<|im_end|>"}
    assert set(tokens(list(qwen_vl.banned_ids))) == set(chat.QWEN_TOKENS[3:])
    assert not renderer.stop_ids & renderer.banned_ids
    text = Renderer(chat.qwen_text())  # its end of sequence is another token than its end of turn
    assert set(text.tokenizer.convert_ids_to_tokens(list(text.stop_ids))) == {
        "<|im_end|>",
        "<|endoftext|>",
    }


def test_only_a_reply_that_was_cut_off_is_given_an_end_of_turn(renderer: Renderer):
    stopped, cut = (renderer.next(Observation("x"), ended=ended) for ended in (True, False))
    assert cut[0] == renderer.end_of_turn
    assert cut[1:] == stopped


def test_decode_drops_the_end_of_turn_and_nothing_else(qwen_vl: Renderer):
    ids = qwen_vl.tokenizer.encode(" Up <|im_start|> .\n<|im_end|>")
    assert qwen_vl.decode(ids) == qwen_vl.decode(ids[:-1]) == " Up <|im_start|> .\n"
    assert qwen_vl.decode([]) == ""


def test_the_vocabulary_encodes_images(qwen_vl: Renderer):
    vocabulary = qwen_vl.vocabulary(context_length=128)
    assert vocabulary.context_length == 128
    assert vocabulary.stop_ids == qwen_vl.stop_ids
    assert vocabulary.encode_images([CELL]).image_grid_thw.tolist() == [[1, 6, 6]]


@pytest.mark.parametrize("size", [(3, 700), (700, 0)])
def test_an_image_of_an_odd_shape_is_the_environments_mistake(
    qwen_vl: Renderer, size: tuple[int, int]
):
    odd = Observation("<image> what now?", (Image.new("RGB", size),))
    with pytest.raises(EnvError, match=f"an image of {size[0]} x {size[1]} pixels.*refuses"):
        qwen_vl.first("", odd)


def test_an_image_for_a_text_model_is_refused():
    with pytest.raises(ConfigError, match="reads text only"):
        Renderer(chat.llama()).first("", Observation("<image>", (CELL,)))


# ------------------------------------------------------------------------------- other templates

NO_SYSTEM = """\
<bos>{% for message in messages %}\
{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
<start>{{ message.role }}
{{ message.content | trim }}<end>
{% endfor %}{% if add_generation_prompt %}<start>assistant
{% endif %}"""
THINKING = chat.CHATML_TEXT.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")


def test_a_system_text_opens_the_first_message_where_there_is_no_such_role():
    tokens = ["<bos>", "<start>", "<end>"]
    renderer = Renderer(chat.tokenizer(tokens, "<end>", NO_SYSTEM))
    renderer.self_test()
    wanted = template_ids(renderer, spoken("", ["You play.\n\nWhat now?"], []), [])
    assert list(renderer.first("You play.", Observation("What now?"))) == wanted


def test_an_image_placeholder_in_the_system_text_is_only_text(qwen_vl: Renderer):
    ids = qwen_vl.first("Write <image> never.", Observation("<image>", (CELL,)))
    assert ids.count(qwen_vl.image_token_id) == 9


def test_a_template_that_rewrites_history_is_refused():
    with pytest.raises(
        ConfigError, match=r"before a new reply .*<think>(?s:.*)before an earlier one"
    ):
        Renderer(chat.tokenizer(chat.QWEN_TOKENS[:3], "<|im_end|>", THINKING))


def test_a_tokenizer_without_template_is_refused():
    tokenizer = chat.tokenizer(chat.QWEN_TOKENS[:3], "<|im_end|>", chat.CHATML_TEXT)
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        Renderer(tokenizer)


def test_a_text_template_cannot_serve_a_vision_model():
    tokenizer = chat.tokenizer(chat.QWEN_TOKENS, "<|im_end|>", chat.CHATML_TEXT)
    with pytest.raises(ConfigError, match="cannot render"):
        Renderer(tokenizer, chat.image_encoder())


def test_the_self_test_shows_the_tokens_that_differ():
    tokenizer = chat.tokenizer(chat.LLAMA_TOKENS, "<|eot_id|>", chat.LLAMA_3)
    greedy = AddedToken("<|end_header_id|>", special=True, normalized=False, rstrip=True)
    tokenizer.backend_tokenizer.add_special_tokens([greedy])  # it swallows the white space after
    renderer = Renderer(tokenizer)
    with pytest.raises(ConfigError, match=r"at token 4 (?s:.*)template  \[(?s:.*)renderer  \["):
        renderer.self_test()


def test_a_saved_model_comes_with_its_renderer(tmp_path):
    from transformers import Qwen2_5_VLConfig

    image_id = chat.qwen_vl().get_vocab()["<|image_pad|>"]
    Qwen2_5_VLConfig(image_token_id=image_id).save_pretrained(tmp_path)
    chat.qwen_vl().save_pretrained(tmp_path)
    chat.image_processor().save_pretrained(tmp_path)

    renderer = Renderer.from_pretrained(tmp_path)

    renderer.self_test()
    assert renderer.image_token_id == image_id
    seen = Observation("What <image> now?", (CELL,))
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == len(chat.qwen_vl())
    assert renderer.next(seen) == FAMILIES["qwen_vl"].next(seen)


def test_a_text_model_has_no_images(tmp_path):
    from transformers import Qwen2Config

    Qwen2Config().save_pretrained(tmp_path)
    chat.qwen_text().save_pretrained(tmp_path)
    renderer = Renderer.from_pretrained(tmp_path)
    renderer.self_test()
    assert renderer.images is None
