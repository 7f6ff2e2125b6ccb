"""A chat model behind an endpoint plays."""

import base64
import threading
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests import toy
from tests.chat_server import refuses, says, serving
from vagentrl.chat import ChatModel, ChatReply, OpenAIChat
from vagentrl.chat.endpoint import Prices
from vagentrl.errors import ConfigError
from vagentrl.evaluation import ChatPlayer, PlayedEpisode, evaluate
from vagentrl.evaluation.players import OnEnd, Start, _message
from vagentrl.types import Observation
from vagentrl.viewer.reading import read_run
from vagentrl.viewer.site import Site

GAME = partial(toy.Countdown, turn_limit=5)


def keep(played: list[PlayedEpisode]) -> OnEnd:
    return lambda episode, trajectory=None: played.append(episode)


def chat(url: str, **settings: object) -> ChatPlayer:
    model = OpenAIChat("m", url=url, key_variable=None, retries=0, **settings)  # pyright: ignore
    return ChatPlayer(model, max_tokens=9, max_workers=2)


def test_it_sees_the_whole_conversation_and_is_scored(tmp_path: Path):
    with serving(says(toy.GO)) as (server, url):
        prices = Prices(prompt=1e6, reply=2e6)
        [played] = evaluate(
            {"api": chat(url, prices=prices)}, {"g": GAME}, tmp_path, episodes=1, progress=False
        )
    assert played.seed == 3 and played.success and played.turns == 4  # from 4 to nothing
    assert played.total_reward == 1.0 - 3 * 0.25
    assert played.reply_tokens == 4 * 5 and played.cost == 4 * (10 + 2 * 5)
    last = server.requests[-1].fields
    assert last["max_completion_tokens"] == 9
    assert [message["role"] for message in last["messages"]] == [
        "system", *["user", "assistant"] * 3, "user"
    ]  # fmt: skip
    assert last["messages"][0]["content"] == toy.TASK
    assert [m["content"] for m in last["messages"][2::2]] == [toy.GO] * 3
    assert last["messages"][-1]["content"].startswith("1 left")


def test_samples_differ_in_the_luck_of_the_game(tmp_path: Path):
    with serving(says(toy.WAIT)) as (_, url):
        played = evaluate(
            {"api": chat(url)}, {"g": GAME}, tmp_path, episodes=1, samples=3, progress=False
        )
    assert not any(episode.success for episode in played)
    assert len({episode.metrics["luck"] for episode in played}) == 3
    assert {episode.stop for episode in played} == {"truncated"}


def test_an_endpoint_that_fails_half_way_loses_no_episode(tmp_path: Path):
    settings = {"envs": {"g": GAME}, "output": tmp_path, "episodes": 4, "progress": False}
    with serving(*[says(toy.GO)] * 6, refuses(400, "broken")) as (_, url):
        model = OpenAIChat("m", url=url, key_variable=None, retries=0)
        played = evaluate({"api": ChatPlayer(model, 9, max_workers=1)}, **settings)
        failed = [episode for episode in played if episode.error is not None]
        assert len(played) == 4 and len(failed) == 3
        assert str(failed[0].error).startswith("ChatError: m at http") and failed[0].turns == 2
        assert not failed[0].success
    with serving(says(toy.GO)) as (server, again):
        mended = OpenAIChat("m", url=again, key_variable=None)
        mended.identity = model.identity  # the same endpoint at another port
        rest = evaluate({"api": ChatPlayer(mended, 9, max_workers=1)}, **settings)
    assert [episode.success for episode in rest] == [True] * 4
    assert len(server.requests) == 3 * 4


def test_an_environment_that_fails_is_the_episodes_error():
    class Broken(toy.Countdown):
        def step(self, reply):  # pyright: ignore
            raise OSError("no disk")

    played: list[PlayedEpisode] = []
    with serving(says(toy.GO)) as (_, url):
        chat(url).play("api", "g", Broken, [Start(3, 0), Start(7, 0)], keep(played))
    assert all("OSError: no disk" in str(episode.error) for episode in played)
    assert [episode.stop for episode in played] == ["failed"] * 2


def test_images_stand_where_their_placeholders_do():
    red, blue = (Image.new("RGB", (3, 2), colour) for colour in ("red", "blue"))
    message = _message(Observation("a <image> b<image>", (red, blue), hint="go"))
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["text", "image_url", "text", "image_url", "text"]
    assert [block.get("text") for block in message["content"][::2]] == ["a ", " b", "\ngo"]
    url = message["content"][3]["image_url"]["url"]
    shown = Image.open(BytesIO(base64.b64decode(url.partition("base64,")[2])))
    assert shown.getpixel((0, 0)) == (0, 0, 255) and shown.size == (3, 2)


def test_a_model_of_single_prompts_cannot_play():
    class Judge(ChatModel):
        async def complete(self, prompt: str, *, system: str = "", max_tokens: int = 256):
            return ChatReply("yes")

        def identity(self) -> str:
            return "judge"

    with pytest.raises(ConfigError, match="Judge answers single prompts only"):
        ChatPlayer(Judge())


def test_an_environment_that_hangs_is_given_up_and_does_not_stop_the_others():
    released = threading.Event()

    class Hangs(toy.Countdown):
        def reset(self, seed: int, transition_seed: int = 0) -> Observation:
            if seed == 7:
                released.wait(30)
            return super().reset(seed, transition_seed)

    played: list[PlayedEpisode] = []
    with serving(says(toy.GO)) as (_, url):
        player = chat(url)
        player.timeout_s = 0.5
        player.play("api", "g", Hangs, [Start(7, 0), Start(3, 0)], keep(played))
    released.set()
    ends = {episode.seed: episode for episode in played}
    assert ends[3].success and ends[3].error is None
    assert "EnvError" in str(ends[7].error) and not ends[7].success


def test_an_empty_system_prompt_is_not_sent():
    class Untold(toy.Countdown):
        def system_prompt(self) -> str:
            return ""

    with serving(says(toy.GO)) as (server, url):
        chat(url).play("api", "g", Untold, [Start(3, 0)], keep([]))
    assert [m["role"] for m in server.requests[0].fields["messages"]] == ["user"]


@pytest.mark.parametrize("name", ["max_tokens", "max_workers"])
def test_a_number_below_one_is_refused(name: str):
    with pytest.raises(ConfigError, match=rf"ChatPlayer\.{name} is 0; give 1 or more"):
        ChatPlayer(OpenAIChat("m", url="http://127.0.0.1:1/v1"), **{name: 0})  # pyright: ignore


def test_its_episodes_are_stored_without_tokens(tmp_path: Path):
    pytest.importorskip("pyarrow")
    with serving(says(toy.GO)) as (_, url):
        evaluate({"api": chat(url)}, {"g": GAME}, tmp_path, episodes=1, progress=False)
    row = Site(read_run(tmp_path)).row('["api", "g", 3, 0]')
    assert [turn["reply"] for turn in row["turns"]] == [toy.GO] * 4
    assert row["turns"][0]["observation"].startswith("4 left")
    assert (row["success"], row["stop"], row["policy"]) == (True, "terminated", "api")
    assert row["turns"][0]["reply_ids"] == []
