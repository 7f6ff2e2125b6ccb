"""YesNo: asks a language model whether a claim is right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from vagentrl.chat import ChatModel, ChatReply, PromptFile, illustrated, without_thoughts
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ChatError, ConfigError, JudgeError
from vagentrl_judges.questions import fresh_code, probe

ANY_RUBRIC = "It is right if all that it says is true of the state and nothing of note is missing."
"""The default for environments without a rubric."""
PICTURES = "These pictures show the true state, from the first to the last.\n\n"
"""What the model reads between the pictures and the prompt."""
OPTIONAL = ("rubric", "kind", "natural", "structured", "symbolic")
SHOWN = 200
"""Number of characters of a reply that an error quotes."""


class YesNo(Judge):
    """Asks a language model whether a claim is right: 1 for yes, 0 for no.

    The prompt contains the environment's rubric, the true state and the claim. The claim is quoted
    between two lines with a random code that is new for every question, and an answer must contain
    the code. The claim can therefore neither end its quotation nor contain a valid answer.

    The answer is the reply's last line, ``ANSWER code: YES`` or ``ANSWER code: NO``, optionally in
    bold. An earlier line must not give the opposite answer. Any other reply is not a verdict.

    With `images` the prompt follows the pictures of the true state: those that the agent saw for an
    observation, those after its actions for a prediction. A claim without a picture has no verdict.

    Args:
        model: The chat model to ask.
        prompt: Path of a text file with a custom prompt; it must contain ``$claim``, ``$truth``
            and ``$code``, and may contain ``$rubric``, ``$kind``, ``$natural``, ``$structured``
            and ``$symbolic``. With `images` it may do without ``$truth``.
        max_tokens: Maximum length of a reply in tokens.
        repeats: How often to ask again after a reply that is not a verdict.
        images: Whether the model sees the pictures; it must be able to hold conversations.
        max_images: Maximum number of pictures of a claim. Of more, the last ones are shown.
        max_image_side: Pixels to which the longer side of a picture is reduced if it is longer.
    """

    def __init__(
        self,
        model: ChatModel,
        prompt: str | None = None,
        max_tokens: int = 512,
        repeats: int = 1,
        images: bool = False,
        max_images: int = 4,
        max_image_side: int = 1024,
    ) -> None:
        if max_tokens < 1 or repeats < 0:
            raise ConfigError(
                f"max_tokens is {max_tokens} and repeats is {repeats}; give at least 1 and 0"
            )
        if max_images < 1 or max_image_side < 1:
            raise ConfigError(
                f"max_images is {max_images} and max_image_side is {max_image_side}; give at least "
                "1, or set images to false"
            )
        if images and type(model).converse is ChatModel.converse:
            raise ConfigError(
                f"images is true, but {type(model).__name__} answers single prompts of text only; "
                "give a chat model that holds conversations, such as OpenAIChat"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.repeats = repeats
        self.images = images
        self.max_images = max_images
        self.max_image_side = max_image_side
        self.verdicts = 0
        self.unreadable = 0
        self._prompt = PromptFile(
            prompt,
            Path(__file__).with_name("yes_no.txt"),
            needed=("claim", "code", *(() if images else ("truth",))),
            known=(*(("truth",) if images else ()), *OPTIONAL),
        )

    @property
    def sees_images(self) -> bool:
        return self.images

    def identity(self) -> str:
        seen = f" {self.max_images} images of {self.max_image_side}" if self.images else ""
        return f"YesNo {self._prompt.identity()} {self.max_tokens}{seen} {self.model.identity()}"

    def metrics(self) -> Mapping[str, float]:
        own = {"verdicts": self.verdicts, "unreadable": self.unreadable}
        return {**self.model.metrics(), **own}

    async def probe(self) -> None:
        await probe(self.model)

    async def judge(self, claim: Claim) -> Verdict:
        code = text = ""
        for _ in range(self.repeats + 1):
            code = fresh_code(claim.text)
            text = await self._ask(claim, code)
            right = read_answer(text, code)
            if right is not None:
                self.verdicts += 1
                return Verdict(float(right), reason=text.strip())
            self.unreadable += 1
        raise JudgeError(
            f"YesNo got no answer from {self.repeats + 1} replies; the last one ends in "
            f"{text.strip()[-SHOWN:]!r}, not in 'ANSWER {code}: YES' or NO. Use a model that "
            "follows instructions better, raise repeats, or reword the prompt",
            caused_by_claim=True,
        )

    async def _ask(self, claim: Claim, code: str) -> str:
        prompt = self._prompt.fill(
            code=code,
            claim=claim.text,
            truth=claim.truth,
            rubric=claim.rubric or ANY_RUBRIC,
            kind=claim.kind,
            natural=claim.state.natural,
            structured=claim.state.structured,
            symbolic=claim.state.symbolic,
        )
        try:
            reply = await self._complete(prompt, claim)
        except ChatError as error:
            raise JudgeError(
                f"YesNo got no reply: {error}", caused_by_claim=error.caused_by_prompt
            ) from error
        return without_thoughts(reply.text)

    async def _complete(self, prompt: str, claim: Claim) -> ChatReply:
        if not self.images:
            return await self.model.complete(prompt, max_tokens=self.max_tokens)
        shown = claim.images[-self.max_images :]
        if not shown:
            raise JudgeError(
                f"YesNo.images is true, but this {claim.kind} claim has no picture of the state; "
                "let the environment show pictures, or set images to false"
            )
        messages = await asyncio.to_thread(
            illustrated, PICTURES + prompt, shown, self.max_image_side
        )
        return await self.model.converse(messages, max_tokens=self.max_tokens)


def read_answer(reply: str, code: str) -> bool | None:
    """Return the answer in a reply; None if it is missing or ambiguous."""
    lines = [line.strip(" \t*`.") for line in reply.splitlines()]
    lines = [line for line in lines if line]
    answers = [re.fullmatch(rf"ANSWER {code}: (YES|NO)", line) for line in lines]
    if not answers or answers[-1] is None:
        return None
    said = {answer[1] for answer in answers if answer is not None}
    return said == {"YES"} if len(said) == 1 else None
