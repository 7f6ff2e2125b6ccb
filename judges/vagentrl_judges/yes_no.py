"""YesNo: asks a language model whether a claim is right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vagentrl.chat import ChatModel, without_thoughts
from vagentrl.claims.judge import Claim, Judge, Verdict
from vagentrl.errors import ChatError, ConfigError, JudgeError
from vagentrl_judges.prompts import Prompt, fresh_code, probe

ANY_RUBRIC = "It is right if all that it says is true of the state and nothing of note is missing."
"""The default for environments without a rubric."""
SHOWN = 200
"""Number of characters of a reply that an error quotes."""


class YesNo(Judge):
    """Asks a language model whether a claim is right: 1 for yes, 0 for no.

    The prompt contains the environment's rubric, the true state and the claim. The claim is quoted
    between two lines with a random code that is new for every question, and an answer must contain
    the code. The claim can therefore neither end its quotation nor contain a valid answer.

    The answer is the reply's last line, ``ANSWER code: YES`` or ``ANSWER code: NO``, optionally in
    bold. An earlier line must not give the opposite answer. Any other reply is not a verdict.

    Args:
        model: The chat model to ask.
        prompt: Path of a text file with a custom prompt; it must contain ``$claim``, ``$truth``
            and ``$code``, and may contain ``$rubric``, ``$kind``, ``$natural``, ``$structured``
            and ``$symbolic``.
        max_tokens: Maximum length of a reply in tokens.
        repeats: How often to ask again after a reply that is not a verdict.
    """

    def __init__(
        self, model: ChatModel, prompt: str | None = None, max_tokens: int = 512, repeats: int = 1
    ) -> None:
        if max_tokens < 1 or repeats < 0:
            raise ConfigError(
                f"max_tokens is {max_tokens} and repeats is {repeats}; give at least 1 and 0"
            )
        self.model = model
        self.max_tokens = max_tokens
        self.repeats = repeats
        self.verdicts = 0
        self.unreadable = 0
        self._prompt = Prompt(
            prompt,
            Path(__file__).with_name("yes_no.txt"),
            needed=("claim", "truth", "code"),
            known=("rubric", "kind", "natural", "structured", "symbolic"),
        )

    def identity(self) -> str:
        return f"YesNo {self._prompt.identity()} {self.max_tokens} {self.model.identity()}"

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
            reply = await self.model.complete(prompt, max_tokens=self.max_tokens)
        except ChatError as error:
            raise JudgeError(
                f"YesNo got no reply: {error}", caused_by_claim=error.caused_by_prompt
            ) from error
        return without_thoughts(reply.text)


def read_answer(reply: str, code: str) -> bool | None:
    """Return the answer in a reply; None if it is missing or ambiguous."""
    lines = [line.strip(" \t*`.") for line in reply.splitlines()]
    lines = [line for line in lines if line]
    answers = [re.fullmatch(rf"ANSWER {code}: (YES|NO)", line) for line in lines]
    if not answers or answers[-1] is None:
        return None
    said = {answer[1] for answer in answers if answer is not None}
    return said == {"YES"} if len(said) == 1 else None
