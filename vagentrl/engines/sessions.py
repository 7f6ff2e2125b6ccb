"""What the key-value cache holds, episode by episode, and in which slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vagentrl.engines.base import GenerationRequest
from vagentrl.engines.kv_cache import SlotCache
from vagentrl.engines.positions import Grid

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(eq=False)
class Session:
    """The cached part of one episode's context.

    Attributes:
        slot: Where in the cache.
        ids: The token in each cell.
        images: The images among them, in reading order.
        grids: Patches of each image in time, height and width.
        spans: First token and the one after the last of each image.
        position: Rotary position of the next token.
    """

    slot: int
    ids: list[int] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0

    def shared_with(self, request: GenerationRequest) -> tuple[int, int]:
        """Tokens and images that the request's context begins with, no image in part.

        The request's last token never counts: something must be read to continue from.
        Images are compared by identity, because tokens do not show what is on them.
        """
        tokens = _common_prefix(self.ids, request.prompt_ids[:-1])
        images = 0
        for span, cached, wanted in zip(self.spans, self.images, request.images, strict=False):
            if cached is not wanted or span[1] > tokens:
                break
            images += 1
        if images < len(self.spans):
            tokens = min(tokens, self.spans[images][0])
        return tokens, images

    def cut(self, tokens: int, images: int) -> None:
        """Forget what follows the first so many tokens and images."""
        del self.ids[tokens:], self.images[images:], self.grids[images:], self.spans[images:]


class Sessions:
    """Sessions by name, each in a slot of the cache; the one unused for longest gives way.

    Args:
        limit: Sessions to keep at most.
    """

    def __init__(self, limit: int) -> None:
        self.cache = SlotCache()
        self.limit = limit
        self._by_name: dict[int, Session] = {}  # least recently used first
        self._in_slot: list[Session | None] = []

    def find(self, name: int) -> Session | None:
        return self._by_name.get(name)

    def first(self, count: int) -> list[Session]:
        """The sessions in the first slots."""
        return [session for session in self._in_slot[:count] if session]

    def seat(self, name: int, slot: int) -> Session:
        """Bring a session, new if it is not known, into a slot; the slots below are full."""
        session = self._by_name.pop(name, None) or self._new(lowest_slot=slot)
        self._by_name[name] = session
        self.swap(session.slot, slot)
        return session

    def swap(self, one: int, other: int) -> None:
        """Let two slots change their contents."""
        if one == other:
            return
        a, b = self._in_slot[one], self._in_slot[other]
        self.cache.swap(one, other, length=max(len(s.ids) for s in (a, b) if s))
        for session, slot in ((a, other), (b, one)):
            self._in_slot[slot] = session
            if session:
                session.slot = slot

    def release(self, name: int) -> None:
        """Forget a session, if it is known."""
        session = self._by_name.pop(name, None)
        if session:
            self._in_slot[session.slot] = None
        if not self._by_name:  # give the memory back: the policy may be about to learn
            self.cache = SlotCache()
            self._in_slot.clear()

    def _new(self, lowest_slot: int) -> Session:
        if None in self._in_slot[lowest_slot:]:
            slot = self._in_slot.index(None, lowest_slot)
        elif len(self._in_slot) < self.limit:
            slot = len(self._in_slot)
            self._in_slot.append(None)
        else:
            oldest = next(n for n, s in self._by_name.items() if s.slot >= lowest_slot)
            slot = self._by_name.pop(oldest).slot
        session = self._in_slot[slot] = Session(slot)
        return session


def _common_prefix(one: list[int], other: tuple[int, ...]) -> int:
    length = min(len(one), len(other))
    if tuple(one[:length]) == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])
