"""A mailbox of received messages that are not read yet."""

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from antiphon.errors import AntiphonError
from antiphon.protocol.events import AudioDelta, Closed, Event, Listening

T = TypeVar("T")

CAPACITY: Final = 512
"""Items that may wait unread: several minutes of conversation."""


class Mailbox(Generic[T]):
    """Hands items from whoever receives them to whoever reads them.

    What happens when it is full, a subclass says.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._finished = False
        self._error: AntiphonError | None = None
        self._changed = asyncio.Event()

    def finish(self, error: AntiphonError | None = None) -> None:
        """Nothing more will come; `error` is raised once all before it was read. The first call wins."""
        if not self._finished:
            self._finished = True
            self._error = error
            self._changed.set()

    async def get(self) -> T:
        """Wait for the next item; after the last raises StopAsyncIteration, or the error of `finish`."""
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
    """Events between a socket, which must never wait, and a program that may be slow.

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
    """Items of a stream that can be held up: when it is full, `put` waits, and the sender feels it."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        self._open = True
        self._room = asyncio.Event()

    async def put(self, item: T) -> None:
        """Add an item, when there is room for it; after `discard` does nothing."""
        while self._open and len(self._items) >= self._capacity:
            self._room.clear()
            await self._room.wait()
        if self._open:
            self._add(item)

    async def get(self) -> T:
        """As `Mailbox.get`; makes room."""
        item = await super().get()
        self._room.set()
        return item

    def discard(self) -> None:
        """Nobody reads any more: drops what waits and what is still to come."""
        self._open = False
        self._items.clear()
        self._room.set()
