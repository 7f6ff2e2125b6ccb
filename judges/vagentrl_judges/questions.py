"""What judges share that ask a language model."""

from __future__ import annotations

import secrets

from vagentrl.chat import ChatModel
from vagentrl.errors import ChatError, JudgeError


async def probe(model: ChatModel) -> None:
    """Ask a judge's model whether it answers.

    Raises:
        JudgeError: When it does not.
    """
    try:
        await model.probe()
    except ChatError as error:
        raise JudgeError(f"the judge's model does not answer: {error}") from error


def fresh_code(claim: str) -> str:
    """Return a random code that does not occur in the claim and that its author cannot guess."""
    while (code := secrets.token_hex(4)) in claim:
        pass
    return code
