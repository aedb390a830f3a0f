"""A mailbox for received messages until they are read."""

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from antiphon.errors import AntiphonError
from antiphon.protocol.events import AudioDelta, Closed, Event, Listening

T = TypeVar("T")

CAPACITY: Final = 512
"""The number of items that may wait unread: several minutes of conversation."""


class Mailbox(Generic[T]):
    """A queue of items between a receiver and a reader.

    A subclass defines the behaviour of a full queue.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._finished = False
        self._error: AntiphonError | None = None
        self._changed = asyncio.Event()

    def finish(self, error: AntiphonError | None = None) -> None:
        """Mark the end; after the last item `get` raises `error`. Only the first call counts."""
        if not self._finished:
            self._finished = True
            self._error = error
            self._changed.set()

    async def get(self) -> T:
        """Wait for the next item; after the last one raise StopAsyncIteration, or the error of `finish`."""
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._finished:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()

    def _add(self, item: T) -> None:
        self._items.append(item)
        self._changed.set()


class EventMailbox(Mailbox[Event]):
    """A mailbox of events between a socket, which must never block, and a program that may read slowly.

    When it is full and one more event comes, one is dropped and counted in `dropped`: the oldest
    `AudioDelta`; if there is none, the oldest `Listening`; if there is none either, the oldest of all but
    `Closed`.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Add an event; never waits."""
        if len(self._items) >= self._capacity:
            self._drop_one()
        self._add(event)

    def _drop_one(self) -> None:
        for kinds in (AudioDelta, Listening, object):
            for index, event in enumerate(self._items):
                if isinstance(event, kinds) and not isinstance(event, Closed):
                    del self._items[index]
                    self.dropped += 1
                    return


class WaitingMailbox(Mailbox[T]):
    """A mailbox with back-pressure: `put` blocks while it is full, which slows the sender down."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        self._open = True
        self._room = asyncio.Event()

    async def put(self, item: T) -> None:
        """Add an item once there is room; do nothing after `discard`."""
        while self._open and len(self._items) >= self._capacity:
            self._room.clear()
            await self._room.wait()
        if self._open:
            self._add(item)

    async def get(self) -> T:
        """Return the next item as `Mailbox.get` does, and free its place."""
        item = await super().get()
        self._room.set()
        return item

    def discard(self) -> None:
        """Drop the waiting items and all later ones, since the reader has gone."""
        self._open = False
        self._items.clear()
        self._room.set()
