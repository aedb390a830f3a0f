"""The outbox of a call: answers that wait for the caller to read."""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

BACKLOG = 4
"""Limit of waiting messages before the session stops reading input; see `Outbox`."""

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Writer(Protocol[M_contra]):
    """The call through which an outbox writes."""

    @property
    def is_busy(self) -> bool:
        """Whether a written message has not been sent; the outbox is flushed once it has."""

    def write(self, message: M_contra) -> None:
        """Queue a message."""

    def finish(self) -> None:
        """Handle that everything has been written."""


class Outbox(Generic[M]):
    """The messages of one call in order, sent as fast as the caller reads.

    `put` never waits, since the engine's events must not. Back-pressure acts on the input: the session reads
    no further unit while `is_full`, and `absorb` joins a message to the last waiting one of the same unit. So
    at most `BACKLOG` messages wait, and those of the units in flight.
    """

    def __init__(
        self, clock: Callable[[], float], absorb: Callable[[M, M], bool] = lambda waiting, more: False
    ) -> None:
        self.is_pending = False
        """Whether a flush would do anything."""
        self._clock = clock
        self._absorb = absorb
        self._waiting: deque[M] = deque()
        self._writer: Writer[M] | None = None
        """The call; None before it can be written to, and after its end."""
        self._since = 0.0
        self._is_ended = False

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiting messages is reached."""
        return len(self._waiting) >= BACKLOG

    @property
    def writing_since(self) -> float | None:
        """Time at which the message was written that the caller has not taken yet, by the session's clock."""
        return self._since if self._writer is not None and self._writer.is_busy else None

    def put(self, message: M) -> None:
        """Add a message for the next flush; after `end` it is dropped."""
        if self._is_ended:
            return
        if not (self._waiting and self._absorb(self._waiting[-1], message)):
            self._waiting.append(message)
        self.is_pending = True

    def end(self) -> None:
        """End the outbox; waiting messages are still sent."""
        self._is_ended = self.is_pending = True

    def open(self, writer: Writer[M]) -> None:
        """Connect the outbox to a call."""
        self._writer = writer
        self.flush()

    def close(self) -> None:
        """Disconnect the outbox: the call cannot be written to any more."""
        self._writer = None
        self._waiting.clear()

    def flush(self) -> None:
        """Write waiting messages until the call is busy."""
        self.is_pending = False
        writer = self._writer
        if writer is None:
            return
        while not writer.is_busy:
            if self._waiting:
                self._since = self._clock()
                writer.write(self._waiting.popleft())
            elif self._is_ended:
                self._writer = None
                writer.finish()
                return
            else:
                return
