"""Limits of one session: rates, sizes and times."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from ws_adapter.protocol.wire.errors import flood

ERRORS_PER_S: Final = 20
EVENTS_PER_WINDOW: Final = 1000
EVENTS_WINDOW_S: Final = 5.0
MOST_AT_WORKER: Final = 7
"""The most units at the worker, even if it allows more: their messages have to fit into the write queue."""

LARGE_FRAME: Final = 2**18
"""Frames of more bytes are read on another thread, if audio in them may have to be resampled."""

LARGEST_DECODED: Final = 2**21
"""The most bytes of a frame that is decoded on the event loop, which takes 2 ms. The longest inputs, a second
with four large pictures, are three times as long."""

SHORTEST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
NOTES_PER_MIN: Final = 60
"""The most log notes about a client in a minute; further ones are dropped, to protect the disk."""


@dataclass(frozen=True)
class Limits:
    """The limits of one session, with times in seconds. A `session_limit_s` of 0 means no limit;
    `silence_tail_units` of 0 disables units of silence."""

    session_limit_s: float = 600.0
    pause_timeout_s: float = 60.0
    init_timeout_s: float = 20.0
    duplex_idle_s: float = 60.0
    chat_idle_s: float = 600.0
    transcription_idle_s: float = 30.0
    """The idle limit of an open utterance, and the time for which a slot may be kept without one."""
    transcription_buffer_s: float = 1800.0
    """The most seconds of waiting audio."""
    unit_flush_s: float = 1.25
    max_lag_s: float = 3.0
    max_waiting_units: int = 32
    max_waiting_bytes: int = 8 * 2**20
    silence_tail_units: int = 10
    max_append_s: float = 60.0
    interrupts_on_speech: bool = True
    """Whether the adapter interrupts an answer of a Live session when the user speaks over it, whatever
    the model does."""
    realtime_wait_s: float = 8.0
    """The longest wait of a Realtime session for a slot: its clients give up after 10 s."""
    input_transcript_s: float = 60.0
    """The time after the end of a turn in which it may be transcribed; 0 disables these transcripts."""


class RateWindow:
    """A rate limit with a sliding window: at most `count` of `things` within any `seconds`."""

    def __init__(self, things: str, count: int, seconds: float) -> None:
        self.flood = flood(things, count, seconds)
        """The verdict for a session that exceeds the rate."""
        self._seconds = seconds
        self._times: deque[float] = deque(maxlen=count)

    def allow(self, now: float) -> bool:
        """Count one thing at `now`; return False, and do not count it, if it exceeds the limit."""
        if self.next_at > now:
            return False
        self._times.append(now)
        return True

    @property
    def next_at(self) -> float:
        """The time at which the next thing is allowed; minus infinity while `count` is not reached."""
        full = len(self._times) == self._times.maxlen
        return self._times[0] + self._seconds if full else float("-inf")


def events_window(things: str = "events") -> RateWindow:
    """Return the rate limit of a client's events."""
    return RateWindow(things, EVENTS_PER_WINDOW, EVENTS_WINDOW_S)


def errors_window() -> RateWindow:
    """Return the rate limit of a client's refused events."""
    return RateWindow("errors", ERRORS_PER_S, 1.0)


def is_due(at: float | None, now: float) -> bool:
    """Return whether `at` is set and has come."""
    return at is not None and now >= at
