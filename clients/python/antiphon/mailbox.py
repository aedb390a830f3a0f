"""Events that were received and not yet read."""

import asyncio
from collections import deque
from typing import Final

from antiphon.errors import AntiphonError
from antiphon.events import AudioDelta, Closed, Event, Listening

CAPACITY: Final = 512
"""Events that may wait unread: several minutes of conversation."""


class Mailbox:
    """Holds events between the socket, which must never wait, and a program that may be slow.

    When `capacity` events wait and one more comes, one of them is dropped and counted in `dropped`: the
    oldest `AudioDelta`; if there is none, the oldest `Listening`; if there is none either, the oldest of all
    but `Closed`.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.dropped = 0
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._finished = False
        self._error: AntiphonError | None = None
        self._changed = asyncio.Event()

    def put(self, event: Event) -> None:
        """Adds an event; never waits."""
        if len(self._events) >= self._capacity:
            self._drop_one()
        self._events.append(event)
        self._changed.set()

    def finish(self, error: AntiphonError | None = None) -> None:
        """Nothing more will come; `error` is raised when everything before it was read. First call wins."""
        if not self._finished:
            self._finished = True
            self._error = error
            self._changed.set()

    async def get(self) -> Event:
        """Waits for the next event; after the last raises StopAsyncIteration, or the error of `finish`."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._finished:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    def _drop_one(self) -> None:
        for kinds in (AudioDelta, Listening):
            for index, event in enumerate(self._events):
                if isinstance(event, kinds):
                    del self._events[index]
                    self.dropped += 1
                    return
        for index, event in enumerate(self._events):
            if not isinstance(event, Closed):
                del self._events[index]
                self.dropped += 1
                return
