"""Prompts in text files: the judge's own, or one that the user gives instead."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from pathlib import Path
from string import Template

from vagentrl.chat import ChatModel
from vagentrl.errors import ChatError, ConfigError, JudgeError


class Prompt:
    """A prompt with placeholders such as ``$claim``; a dollar sign is written ``$$``.

    Placeholders inside the texts that are filled in are not replaced.

    Args:
        path: The user's file; None for the default prompt.
        shipped: File of the default prompt.
        needed: Placeholders that the prompt must contain.
        known: Placeholders that it may contain.
    """

    def __init__(
        self, path: str | None, shipped: Path, needed: Collection[str], known: Collection[str] = ()
    ) -> None:
        file = shipped if path is None else Path(path)
        try:
            self._template = Template(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the prompt {file} cannot be read: {error}") from error
        if not self._template.is_valid():
            raise ConfigError(
                f"the prompt {file} has a $ without a name after it; write $$ for a dollar sign"
            )
        names = set(self._template.get_identifiers())
        missing, unknown = set(needed) - names, names - set(needed) - set(known)
        if missing or unknown:
            wrong = [f"it lacks ${name}" for name in sorted(missing)]
            wrong += [f"there is no ${name}" for name in sorted(unknown)]
            raise ConfigError(
                f"the prompt {file} has wrong placeholders: {', '.join(wrong)}. It must contain "
                f"{_listed(needed)} and may contain {_listed(known)}; {shipped} is an example"
            )

    def fill(self, **texts: str) -> str:
        return self._template.substitute(texts)

    def identity(self) -> str:
        """Return a hash of the prompt's text."""
        return hashlib.sha256(self._template.template.encode()).hexdigest()


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


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"${name}" for name in names) or "no others"
