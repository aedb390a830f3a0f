"""Answers on their way to the caller, those of one call."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

BACKLOG = 4
"""Messages that may wait before the session stops reading input; see `Outbox`."""

M = TypeVar("M")

Write = Callable[[M], Coroutine[Any, Any, None]]
"""Writes one message; over once the transport has it."""


class Outbox(Generic[M]):
    """Messages of one call, written one at a time, in the order in which they came.

    `put` never waits, since the engine's events must not. The bound is kept at the other end: the session
    reads no further unit while `is_full`, and `absorb` joins a message to the last one waiting where both
    are of one unit. So at most `BACKLOG` messages, and those of the units in flight, ever wait.

    A message is written where it is flushed, by no task: at a unit's end, waking three would take longer
    than what they do.
    """

    def __init__(
        self, clock: Callable[[], float], absorb: Callable[[M, M], bool] = lambda waiting, more: False
    ) -> None:
        self.is_pending = False
        """Whether a flush would do anything."""
        self._clock = clock
        self._absorb = absorb
        self._waiting: deque[M] = deque()
        self._write: Write[M] | None = None
        """None before the call can be written to, and once it is broken."""
        self._writing: Coroutine[Any, Any, None] | None = None
        self._written: asyncio.Future[None] | None = None
        """What `_writing` waits for."""
        self._is_followed = False
        """Whether its end will be noticed without a flush."""
        self._since = 0.0
        self._over: asyncio.Future[None] | None = None
        self._is_ended = False
        self._room = asyncio.Event()

    def __len__(self) -> int:
        """Messages waiting."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may."""
        return len(self._waiting) >= BACKLOG

    @property
    def writing_since(self) -> float | None:
        """Since when the caller has yet to take a message, by the session's clock."""
        is_writing = self._written is not None and not self._written.done()
        return self._since if is_writing else None

    def put(self, message: M) -> None:
        """Adds a message, which leaves with the next flush; after `end` it is dropped."""
        if self._is_ended:
            return
        if not (self._waiting and self._absorb(self._waiting[-1], message)):
            self._waiting.append(message)
        self.is_pending = True

    def end(self) -> None:
        """Nothing more comes; what waits is still sent."""
        self._is_ended = self.is_pending = True

    async def room(self) -> None:
        """Waits until it is not full."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def run(self, write: Write[M]) -> None:
        """Writes what was flushed and will be, until the end. Raises what writing raises."""
        self._write, self._over = write, asyncio.get_running_loop().create_future()
        try:
            self.flush()
            await self._over
        finally:
            self._break()

    def flush(self) -> None:
        """Writes what waits, one message now and each further one when that before it is written."""
        self.is_pending = False
        if self._write is None:
            return
        try:
            while self._is_free():
                if self._waiting:
                    self._begin(self._write(self._waiting.popleft()))
                else:
                    if self._is_ended and self._over is not None and not self._over.done():
                        self._over.set_result(None)
                    return
        except Exception as error:
            if self._over is not None and not self._over.done():
                self._over.set_exception(error)
            self._break()
        else:
            if self._written is not None and (self._waiting or self._is_ended) and not self._is_followed:
                self._is_followed = True
                self._written.add_done_callback(self._go_on)

    def _begin(self, writing: Coroutine[Any, Any, None]) -> None:
        """Runs a write up to where it waits, as a task would in the next turn of the event loop."""
        self._since = self._clock()
        if len(self._waiting) < BACKLOG:
            self._room.set()
        try:
            self._written = writing.send(None)
        except StopIteration:
            return
        self._written._asyncio_future_blocking = False
        self._writing = writing

    def _is_free(self) -> bool:
        """Whether no message is being written any more."""
        if self._writing is None:
            return True
        if self._written is None or not self._written.done():
            return False
        writing, self._writing, self._written = self._writing, None, None
        self._is_followed = False
        try:
            written = writing.send(None)
        except StopIteration:
            return True
        written._asyncio_future_blocking = False
        self._writing, self._written = writing, written
        return False

    def _go_on(self, _: object) -> None:
        self.flush()

    def _break(self) -> None:
        """Nothing is written any more."""
        self._write = None
        self._waiting.clear()
        self._room.set()
        if self._written is not None and not self._written.cancel() and not self._written.cancelled():
            self._written.exception()  # nobody else asks for it
        if self._writing is not None:
            self._writing.close()
        self._writing = self._written = None
