"""How an agent may write the names of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vagentrl.errors import ConfigError

MOST_PLAIN = 100
"""Characters of an action that are compared with aliases; no alias is nearly as long."""


class Spellings:
    """Finds the action that is meant by what the agent wrote.

    Args:
        names: The names of the actions; the agent may write them in upper or lower case.
        aliases: Names by other names that the agent may use. With aliases, even none, it may also
            write ``_`` or ``-`` for a space, and a full stop at the end.

    Raises:
        ConfigError: When names differ only in case, or when an alias stands for no action.
    """

    def __init__(self, names: Sequence[str], aliases: Mapping[str, str] | None = None) -> None:
        self._names = {name.casefold(): name for name in names}
        if len(self._names) < len(names):
            raise ConfigError(
                f"action names {tuple(names)} must differ in more than upper and lower case"
            )
        unknown = sorted(set((aliases or {}).values()) - set(names))
        if unknown:
            raise ConfigError(
                f"aliases stand for {', '.join(unknown)}; the actions are {', '.join(names)}"
            )
        self._repairs: dict[str, str] = {}
        if aliases is not None:
            self._repairs = {_plain(alias): name for alias, name in aliases.items()}
            self._repairs |= {_plain(name): name for name in names}

    def find(self, written: str) -> str | None:
        """The name of the action that is meant; None if there is none."""
        name = self._names.get(written.casefold())
        return name if name is not None else self._repairs.get(_plain(written))

    def repaired(self, written: Sequence[str]) -> float:
        """The share of actions that are not written by their name, but found."""
        found = [w.casefold() not in self._names and self.find(w) is not None for w in written]
        return sum(found) / len(found) if found else 0.0


def _plain(action: str) -> str:
    """An action in lower case, with single spaces for ``_`` and ``-`` and no full stop."""
    words = action[:MOST_PLAIN].casefold().replace("_", " ").replace("-", " ").split()
    return " ".join(words).rstrip(".! ")
