"""Prompts in text files: one that ships with vagentrl, or one that the user gives instead."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from string import Template

from vagentrl.errors import ConfigError


class PromptFile:
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


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"${name}" for name in names) or "no others"
