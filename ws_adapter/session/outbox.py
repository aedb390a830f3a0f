"""The outbox of one client: a bounded queue of events, with back-pressure on units."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ws_adapter.process.clock import Clock, Timer
from ws_adapter.process.load import Load
from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.answer import Outcome
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ
from ws_adapter.protocol.wire.codec import audio_bytes, encoded, stamp

CHECK_S: Final = 0.5
"""The interval of checking for progress while the outbox is over its bound."""

OVERFLOW: Final = 2
"""The multiple of its bound in bytes beyond which the client counts as stalled, even if it reads."""

_EVENT_BYTES: Final = 512
_BYTES_PER_S: Final = 4 * OUTPUT_RATE_HZ


Parts = Sequence[bytes]
"""An encoded event."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most waiting audio in seconds and bytes, and the seconds without progress before a stall."""

    audio_s: float
    bytes: int
    stall_s: float


class Outbox:
    """Events in the order of sending. `run` sends them; `put` never waits.

    `send` takes the parts of a frame. So does `send_at_once`, which never waits, and returns False if it
    cannot send. `on_congested` is called when the outbox exceeds its `bounds` and when it no longer does;
    meanwhile the session runs no units. `on_stalled` is called once, after `stall_s` seconds over the bounds
    without progress. `buffered` returns the bytes in the transport, so that progress within one large frame
    counts. Waiting bytes are counted in `load`.
    """

    def __init__(
        self,
        send: Callable[[*tuple[bytes, ...]], Awaitable[None]],
        buffered: Callable[[], int],
        clock: Clock,
        load: Load,
        bounds: Bounds,
        on_congested: Callable[[bool], None],
        on_stalled: Callable[[], None],
        send_at_once: Callable[[*tuple[bytes, ...]], bool] = lambda *parts: False,
        until_attached: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`until_attached` waits while there is no connection, during which no event is sent."""
        self._send = send
        self._send_at_once = send_at_once
        self._until_attached = until_attached
        self._encoded: dict[int, Parts] = {}
        """Waiting events that were encoded in advance, by the identity of the event."""
        self._is_sending = False
        self._buffered = buffered
        self._clock = clock
        self._load = load
        self._bounds = bounds
        self._on_congested = on_congested
        self._on_stalled = on_stalled
        self._items: deque[Send] = deque()
        self._news = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._audio_s = 0.0
        self._bytes = 0
        self._sent = 0
        self._congested = False
        self._stalled = False
        self._is_over = False
        self._is_detached = False
        """Whether there is no connection, so that no progress is possible."""
        self._check: Timer | None = None
        self._last_seen = (0, 0)
        self._moved_at = 0.0

    @property
    def is_congested(self) -> bool:
        """Whether more output waits than its bounds allow."""
        return self._congested

    def set_detached(self, is_detached: bool) -> None:
        """Set whether there is no connection: meanwhile no progress is expected."""
        self._is_detached = is_detached
        self.stop()
        if not is_detached and self._congested:
            self._watch()

    @property
    def audio_s(self) -> float:
        """The seconds of waiting audio."""
        return self._audio_s if self._items else 0.0

    @property
    def waiting(self) -> list[Parts]:
        """The waiting events, encoded as they will be sent."""
        for item in self._items:
            if id(item) not in self._encoded:
                self._encoded[id(item)] = self._encode(item)
        return [self._encoded[id(item)] for item in self._items]

    def put(self, send: Send) -> None:
        """Queue an event, or send it at once if the queue is empty."""
        is_first = not (self._items or self._is_sending or self._is_over or self._buffered())
        if is_first and self._send_at_once(*self._encode(send)):
            self._sent += 1
            return
        self._items.append(send)
        self._count(send, 1)
        self._flushed.clear()
        self._news.set()
        self._check_bounds()

    def withdraw(self, response_id: str) -> list[Send]:
        """Remove and return the unsent events of a response."""

        def is_stale(send: Send) -> bool:
            answer = send.answer
            return (
                answer is not None and answer.outcome is Outcome.SPEECH and answer.response_id == response_id
            )

        taken = [send for send in self._items if is_stale(send)]
        self._items = deque(send for send in self._items if not is_stale(send))
        for send in taken:
            self._encoded.pop(id(send), None)
            self._count(send, -1)
        self._check_bounds()
        return taken

    def clear(self) -> None:
        """Drop all events whose sending has not begun."""
        for send in self._items:
            self._count(send, -1)
        self._items.clear()
        self._encoded.clear()

    async def flushed(self) -> None:
        """Wait until all events are handed to the transport."""
        await self._flushed.wait()

    async def run(self) -> None:
        """Send until cancelled. Raises the errors of `send`; `flushed` returns then."""
        try:
            while True:
                self._is_sending = True
                while self._items:
                    if self._until_attached is not None:
                        await self._until_attached()
                        if not self._items:
                            break
                    item = self._items.popleft()
                    await self._send(*(self._encoded.pop(id(item), None) or self._encode(item)))
                    self._sent += 1
                    self._count(item, -1)
                    self._check_bounds()
                self._is_sending = False
                self._flushed.set()
                self._news.clear()
                await self._news.wait()
        finally:
            self.end()

    def end(self) -> None:
        """Stop sending, uncount the waiting bytes, and drop the references to the session."""
        self.stop()
        if not self._is_over:
            self._is_over = True
            self._load.inflight_bytes -= self._bytes
        self._on_congested, self._on_stalled = _ignore_congestion, _ignore_stall
        self._flushed.set()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _encode(self, item: Send) -> Sequence[bytes]:
        wall_clock_ms = None
        if item.answer is not None:
            wall_clock_ms = round((self._clock.now() - item.answer.unit.ready_at) * 1000, 1)
        stamp(item.event, self._clock.unix(), wall_clock_ms)
        return encoded(item.event)

    # ------------------------------------------------------------------------------------- bounds

    def _count(self, send: Send, sign: int) -> None:
        audio = audio_bytes(send.event)
        self._audio_s += sign * (audio / _BYTES_PER_S if send.audio_s is None else send.audio_s)
        size = sign * (_EVENT_BYTES + audio * 4 // 3)
        self._bytes += size
        if not self._is_over:
            self._load.inflight_bytes += size

    def _check_bounds(self) -> None:
        # The sum of seconds is a float, whose rounding error an empty outbox may keep.
        bounds = self._bounds
        over = bool(self._items) and (self._audio_s > bounds.audio_s or self._bytes > bounds.bytes)
        if over and self._bytes > OVERFLOW * bounds.bytes:
            self._stall()
        if over is self._congested:
            return
        self._congested = over
        self.stop()
        if over and not self._is_detached:
            self._watch()
        self._on_congested(over)

    def _watch(self) -> None:
        """Start checking for progress."""
        self._moved_at = self._clock.now()
        self._last_seen = (self._sent, self._buffered())
        self._look_later()

    def _look_later(self) -> None:
        self._check = self._clock.call_at(self._clock.now() + CHECK_S, self._look)

    def _look(self) -> None:
        now, seen = self._clock.now(), (self._sent, self._buffered())
        if seen != self._last_seen:
            self._last_seen, self._moved_at = seen, now
        if now - self._moved_at >= self._bounds.stall_s:
            self._stall()
        else:
            self._look_later()

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self.stop()
            # Not at once: the caller may be putting several events.
            asyncio.get_running_loop().call_soon(self._on_stalled)


def _ignore_congestion(is_congested: bool) -> None:
    """Do nothing: the session is over."""


def _ignore_stall() -> None:
    """Do nothing: the session is over."""
