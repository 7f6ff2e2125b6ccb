"""Environments whose actions carry free text, such as ``search[red shoes]``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from vagentrl.environment import ActionEnvironment
from vagentrl.errors import ConfigError
from vagentrl.formats import FreeThink, ReplyFormat
from vagentrl.types import Reply, harmless

LONGEST_ARGUMENT = 500
"""Characters of an argument that are read; the rest is cut off."""


class TextAction(NamedTuple):
    """An action with its argument, written ``verb[argument]``."""

    verb: str
    argument: str

    def __str__(self) -> str:
        return f"{self.verb}[{self.argument}]"


def readable(text: str) -> str:
    """Text from files, servers or replies, made safe to show: without image placeholders, control
    characters and halves of surrogate pairs. White space becomes single spaces.
    """
    text = harmless(text)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(text.split())


class TextActionEnvironment(ActionEnvironment):
    """An environment whose actions are a verb with free text in brackets.

    Any argument is accepted by `_asked`; what it does is decided by `_act`. Because every text is a
    possible action, `action_names` are only the actions that suggest themselves in the current
    state: random play, noisy demonstrators and scripted hints draw from them. A subclass calls
    `_suggest` whenever the state has changed.

    Args:
        signatures: The actions as they are described to the agent, such as ``search[query]``.
        format: The format of replies. Its ``action_separator`` must be null, so that a text may
            contain commas; None for `FreeThink` with that setting.
        **settings: The settings of ``ActionEnvironment``, except ``actions_per_turn`` and those
            of a default action.
    """

    def __init__(
        self, signatures: Sequence[str], format: ReplyFormat | None = None, **settings: Any
    ) -> None:
        format = FreeThink(action_separator=None) if format is None else format
        super().__init__(action_names=signatures, format=format, **settings)
        name = type(self).__name__
        if self.format.action_separator is not None:
            raise ConfigError(
                f"the format's action_separator is {self.format.action_separator!r}, but an action "
                f"of {name} is free text that may contain it; set action_separator to null"
            )
        if self.default_action is not None:
            raise ConfigError(
                f"default_action is {self.default_action!r}, but the actions of {name} are "
                "different in every state; set invalid_action to skip or end_turn"
            )
        self.signatures = tuple(signatures)
        verbs = "|".join(signature.partition("[")[0] for signature in signatures)
        self._action = re.compile(rf"\s*((?ai:{verbs}))\s*\[(.*)\]\s*", re.DOTALL)

    def random_actions(self, rng: Random) -> tuple[str, ...]:
        return (rng.choice(self.action_names),)

    def _read(self, action: str) -> TextAction | None:
        """The action that is written here; None if there is none."""
        match = self._action.fullmatch(action)
        if match is None:
            return None
        argument = readable(match[2][:LONGEST_ARGUMENT])
        return TextAction(match[1].lower(), argument) if argument else None

    def _asked(self, reply: Reply) -> list[str | None]:
        read = [self._read(action) for action in reply.actions[:1]]
        return [None if action is None else str(action) for action in read]

    def _suggest(self, actions: Sequence[TextAction]) -> None:
        """Set `action_names`, without repetitions."""
        self.action_names = tuple(dict.fromkeys(map(str, actions)))

    def _wrong_action(self) -> str:
        return f"unknown action; the actions are {', '.join(self.signatures)}"
