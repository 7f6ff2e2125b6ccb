"""Judges that see the pictures of the state."""

import asyncio
import base64
import pickle
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.chat_server import Answer, Request, says, serving
from tests.judges.models import ScriptedChat, claim
from tests.judges.test_yes_no import code_of
from vagentrl.chat import OpenAIChat
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.claims.judgement import Judgement
from vagentrl.errors import ConfigError, JudgeError
from vagentrl_judges.apart import Apart
from vagentrl_judges.cached import Cached, content_hash
from vagentrl_judges.yes_no import YesNo

RED, BLUE = (Image.new("RGB", (40, 20), colour) for colour in ("red", "blue"))


def showing(*images: Image.Image) -> Claim:
    return replace(claim(), images=images)


def pictures_of(request: Request) -> list[Image.Image]:
    urls = [b["image_url"]["url"] for b in request.prompt if b["type"] == "image_url"]  # pyright: ignore
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [Image.open(BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


def sees_red(request: Request) -> Answer:
    """YES if the first picture is red."""
    *_, text = request.prompt
    right = pictures_of(request)[0].getpixel((0, 0)) == (255, 0, 0)
    return says(f"ANSWER {code_of(text['text'])}: {'YES' if right else 'NO'}")  # pyright: ignore


def judged(url: str, claims: Sequence[Claim], **settings: Any) -> list[float]:
    judge = YesNo(OpenAIChat("fake", url, retries=0), images=True, **settings)

    async def each() -> list[Verdict]:
        return [await judge(one) for one in claims]

    return [verdict.score for verdict in asyncio.run(each())]


def test_the_model_sees_the_pictures_before_the_prompt():
    with serving(sees_red) as (server, url):
        assert judged(url, [showing(RED, BLUE), showing(BLUE)]) == [1.0, 0.0]
    kinds = [block["type"] for block in server.requests[0].prompt]  # pyright: ignore
    assert kinds == ["image_url", "image_url", "text"]
    assert claim().truth in server.requests[0].prompt[-1]["text"]  # pyright: ignore


def test_number_and_size_of_the_pictures_are_bounded():
    large = Image.new("RGB", (400, 100), "red")
    with serving(sees_red) as (server, url):
        judged(url, [showing(BLUE, RED, large)], max_images=2, max_image_side=100)
    assert [image.size for image in pictures_of(server.requests[0])] == [(40, 20), (100, 25)]
    assert large.size == (400, 100)  # the environment's own picture stays as it is


def test_a_claim_without_a_picture_is_a_failure_that_says_so_and_not_the_agents():
    wrong = pytest.raises(JudgeError, match="observation claim has no picture")
    with serving(sees_red) as (server, url), wrong as caught:
        judged(url, [showing()])
    assert not server.requests and not caught.value.caused_by_claim


def test_without_images_the_model_gets_text_alone():
    model = ScriptedChat(lambda prompt: f"ANSWER {code_of(prompt)}: YES")
    assert asyncio.run(YesNo(model)(showing(RED))).score == 1.0


def test_a_model_of_single_prompts_cannot_see():
    with pytest.raises(ConfigError, match="ScriptedChat answers single prompts of text only"):
        YesNo(ScriptedChat(str), images=True)


@pytest.mark.parametrize("setting", ["max_images", "max_image_side"])
def test_bounds_below_one_are_refused(setting: str):
    with pytest.raises(ConfigError, match=rf"{setting} is 0"):
        YesNo(OpenAIChat("fake"), images=True, **{setting: 0})


def test_only_a_judge_that_sees_may_do_without_the_truth(tmp_path: Path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Does this picture show it?\nBEGIN $code\n$claim\nEND $code\n")
    with serving(sees_red) as (_, url):
        assert judged(url, [showing(RED)], prompt=str(prompt)) == [1.0]
    with pytest.raises(ConfigError, match=r"lacks \$truth"):
        YesNo(OpenAIChat("fake"), prompt=str(prompt))


def test_settings_of_pictures_are_part_of_the_identity():
    model = OpenAIChat("fake")
    judges = [YesNo(model), YesNo(model, images=True), YesNo(model, images=True, max_images=1)]
    assert len({judge.identity() for judge in judges}) == 3


class Looks(Judge):
    """Counts its claims; the score is 1 for a claim with a picture."""

    def __init__(self, sees: bool) -> None:
        self.sees, self.asked = sees, 0

    @property
    def sees_images(self) -> bool:
        return self.sees

    async def judge(self, claim: Claim) -> float:
        self.asked += 1
        return float(bool(claim.images))


@pytest.mark.parametrize(("sees", "asked"), [(True, 2), (False, 1)])
def test_a_cache_tells_pictures_apart_only_for_a_judge_that_sees(
    sees: bool, asked: int, tmp_path: Path
):
    judge = Cached(Looks(sees), str(tmp_path))

    async def both() -> None:
        await judge(showing(RED))
        await judge(showing(BLUE))

    asyncio.run(both())
    assert judge.sees_images is sees
    assert judge.inner.asked == asked  # pyright: ignore[reportAttributeAccessIssue]


def test_claims_without_pictures_keep_their_place_in_a_cache():
    assert content_hash("judge", showing()) == content_hash("judge", claim())


@pytest.mark.parametrize("sees", [True, False])
def test_pictures_are_sent_to_another_process_only_if_its_judge_sees(sees: bool):
    judge = Apart(Looks(sees))

    async def once() -> float:
        try:
            return (await judge(showing(RED))).score
        finally:
            await judge.close()

    assert asyncio.run(once()) == float(sees)


def test_ranks_exchange_judgements_without_pictures():
    judgement = Judgement(showing(RED), Verdict(1.0))
    copy = pickle.loads(pickle.dumps(judgement))
    assert copy == judgement and not copy.claim.images and judgement.claim.images
