"""Bounds of one session."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from ws_adapter.protocol.wire.errors import flood

ERRORS_PER_S: Final = 20
EVENTS_PER_WINDOW: Final = 1000
EVENTS_WINDOW_S: Final = 5.0
MOST_AT_WORKER: Final = 7
"""Units at the worker, however many it takes: what is written for them has to fit the queue of writes."""

LARGE_FRAME: Final = 2**18
"""Longer frames are read beside the event loop, where sound in them may have to be resampled."""

LARGEST_DECODED: Final = 2**21
"""Bytes of a frame that may be decoded on the event loop: it takes 2 ms. The longest inputs are three times
as long, a second of four large pictures."""

SHORTEST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 300.0
NOTES_PER_MIN: Final = 60
"""More of what a client says for the log is passed over: it must not fill a disk."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds; 0 switches `session_limit_s` off, and 0 `silence_tail_units` the silence."""

    session_limit_s: float = 600.0
    pause_timeout_s: float = 60.0
    init_timeout_s: float = 20.0
    duplex_idle_s: float = 60.0
    chat_idle_s: float = 600.0
    transcription_idle_s: float = 30.0
    """How long nothing may come for an open utterance, and how long a slot may be kept without one."""
    transcription_buffer_s: float = 1800.0
    """How much audio may wait."""
    unit_flush_s: float = 1.25
    max_lag_s: float = 3.0
    max_waiting_units: int = 32
    max_waiting_bytes: int = 8 * 2**20
    silence_tail_units: int = 10
    max_append_s: float = 60.0
    interrupts_on_speech: bool = True
    """Of a Live session: whether an answer ends when the user speaks over it, whatever the model does."""
    realtime_wait_s: float = 8.0
    """How long a Realtime session waits for a slot: its clients give up after 10."""
    input_transcript_s: float = 60.0
    """How long after its end a turn of a conversation may be transcribed; 0 transcribes none."""


class RateWindow:
    """Allows `count` of some `things` within any `seconds`."""

    def __init__(self, things: str, count: int, seconds: float) -> None:
        self.flood = flood(things, count, seconds)
        """The end of a session that does more."""
        self._seconds = seconds
        self._times: deque[float] = deque(maxlen=count)

    def allow(self, now: float) -> bool:
        """Count one thing at `now`; False if it is one too many, and then it does not count."""
        if self.next_at > now:
            return False
        self._times.append(now)
        return True

    @property
    def next_at(self) -> float:
        """When one more is allowed; minus infinity if it always was."""
        full = len(self._times) == self._times.maxlen
        return self._times[0] + self._seconds if full else float("-inf")


def events_window(things: str = "events") -> RateWindow:
    """Return what a client may send."""
    return RateWindow(things, EVENTS_PER_WINDOW, EVENTS_WINDOW_S)


def errors_window() -> RateWindow:
    """Return what it may be refused."""
    return RateWindow("errors", ERRORS_PER_S, 1.0)


def is_due(at: float | None, now: float) -> bool:
    """Return whether a time that may not be set has come."""
    return at is not None and now >= at
