"""The answers of one call on their way out: many producers, one writer, bounded."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from inference_service.errors import SessionError

BACKLOG = 4
"""Messages that may wait before the session stops reading input; see `Outbox`."""

M = TypeVar("M")


class Outbox(Generic[M]):
    """Messages that wait for the call's one writer.

    `put` never waits, since the engine's events must not. The bound is kept at the other end: the session
    reads no further unit while `room` is not set, and `absorb` joins a message to the last one waiting where
    both are of one unit. So at most `BACKLOG` messages, and those of the units in flight, ever wait.
    """

    def __init__(self, absorb: Callable[[M, M], bool] = lambda waiting, more: False) -> None:
        self._absorb = absorb
        self._waiting: deque[M] = deque()
        self._wake = asyncio.Event()
        self._is_ended = False
        self.error: SessionError | None = None
        self.room = asyncio.Event()
        self.room.set()

    def __len__(self) -> int:
        """Messages waiting."""
        return len(self._waiting)

    def put(self, message: M) -> None:
        """Adds a message; after `end` it is dropped."""
        if self._is_ended:
            return
        if not (self._waiting and self._absorb(self._waiting[-1], message)):
            self._waiting.append(message)
        if len(self._waiting) >= BACKLOG:
            self.room.clear()
        self._wake.set()

    def end(self, error: SessionError | None) -> None:
        """Nothing more comes; what waits is still sent, then the call ends with `error`, or OK."""
        if not self._is_ended:
            self._is_ended = True
            self.error = error
            self._wake.set()

    async def take(self) -> M | None:
        """The next message, or None at the end."""
        while not self._waiting:
            if self._is_ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        message = self._waiting.popleft()
        if len(self._waiting) < BACKLOG:
            self.room.set()
        return message
