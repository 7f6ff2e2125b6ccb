"""Sessions: the cached context of each episode, and its slot in the key-value cache."""

from __future__ import annotations

import sys
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
        slot: The session's slot in the cache.
        ids: The token id in each cell.
        images: The cached images, in reading order.
        grids: Number of patches of each image in time, height and width.
        spans: Half-open token span of each image.
        position: Rotary position of the next token.
    """

    slot: int
    ids: list[int] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    position: int = 0

    def shared_with(self, request: GenerationRequest) -> tuple[int, int]:
        """Count the cached tokens and images that the request's context starts with.

        An image that is shared only in part does not count. The request's last token never
        counts either, because at least one token must be read to get the next logits. Images are
        compared by identity, because different images can have the same tokens.
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

    def truncate(self, tokens: int, images: int) -> None:
        """Keep only the first `tokens` tokens and the first `images` images."""
        del self.ids[tokens:], self.images[images:], self.grids[images:], self.spans[images:]


class Sessions:
    """All sessions and the cache that they share; a full cache evicts the least recently used.

    Args:
        limit: Maximum number of sessions.
        context_length: Number of tokens that a session can have at most.
    """

    def __init__(self, limit: int, context_length: int = sys.maxsize) -> None:
        self.cache = SlotCache(limit, context_length)
        self.limit = limit
        self.context_length = context_length
        self._by_name: dict[int, Session] = {}  # least recently used first
        self._in_slot: list[Session | None] = []

    def find(self, name: int) -> Session | None:
        return self._by_name.get(name)

    def first(self, count: int) -> list[Session]:
        """Return the sessions in the first `count` slots."""
        return [session for session in self._in_slot[:count] if session]

    def place(self, name: int, slot: int) -> Session:
        """Move a session into a slot, creating the session if needed.

        The slots below `slot` belong to the current batch and must all be in use.
        """
        session = self._by_name.pop(name, None) or self._new(lowest_slot=slot)
        self._by_name[name] = session
        self.swap(session.slot, slot)
        return session

    def swap(self, one: int, other: int) -> None:
        """Exchange the contents of two slots."""
        if one == other:
            return
        a, b = self._in_slot[one], self._in_slot[other]
        self.cache.swap(one, other, length=max(len(s.ids) for s in (a, b) if s))
        for session, slot in ((a, other), (b, one)):
            self._in_slot[slot] = session
            if session:
                session.slot = slot

    def release(self, name: int) -> None:
        """Remove a session if it exists."""
        session = self._by_name.pop(name, None)
        if session:
            self._in_slot[session.slot] = None
        if not self._by_name:  # free the memory, which training may need
            self.cache = SlotCache(self.limit, self.context_length)
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
