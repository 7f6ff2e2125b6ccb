"""Prompts in text files: the one beside a judge, or the user's own in its place."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from pathlib import Path
from string import Template

from vagentrl.errors import ConfigError


class Prompt:
    """A text with places such as ``$claim``; a dollar sign is written ``$$``.

    What is put in is never looked at for places itself, whatever it holds.

    Args:
        path: The user's file; None takes the one that ships.
        shipped: The file that ships.
        needed: Places that the text must have.
        known: Further places that it may have.
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
                f"the prompt {file} has a $ that no name follows; write $$ for a dollar sign"
            )
        places = set(self._template.get_identifiers())
        missing, unknown = set(needed) - places, places - set(needed) - set(known)
        if missing or unknown:
            wrong = [f"it lacks ${name}" for name in sorted(missing)]
            wrong += [f"there is no ${name}" for name in sorted(unknown)]
            raise ConfigError(
                f"the prompt {file} does not fit: {', '.join(wrong)}. It needs "
                f"{_listed(needed)} and may have {_listed(known)}; {shipped} is an example"
            )

    def fill(self, **texts: str) -> str:
        return self._template.substitute(texts)

    def identity(self) -> str:
        """Differs when the text does."""
        return hashlib.sha256(self._template.template.encode()).hexdigest()


def fresh_code(claim: str) -> str:
    """A code that nobody can have known when the claim was written."""
    while (code := secrets.token_hex(4)) in claim:
        pass
    return code


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"${name}" for name in names) or "no others"
