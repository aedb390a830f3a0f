"""What a Live session says, on a clock: a stream without a gap that is never further ahead than it has to be.

What is sent cannot be taken back; so it is sent in short slices, each when it is due, and an interruption
loses the rest. A lead that the client holds covers for a unit that comes late.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.live.sound import Format

SLICE_S: Final = 0.2
"""Of one event."""

LEAD_S: Final = 0.2
"""How far ahead of the clock the stream is, and how long a sentence waits for a unit that is late."""

FORGIVEN_S: Final = 1.0
"""Silence that could not be sent for so long is not made up for."""

_MS: Final = 1000


class Words(Struct, frozen=True):
    """What is said from one moment of the stream to another, in milliseconds."""

    text: str
    start_ms: int
    end_ms: int


class Slice(Struct, frozen=True):
    """Audio that is due, and the words that begin in it."""

    audio: bytes
    words: tuple[Words, ...]


class Playout:
    """See above. Times are seconds of the session's clock."""

    def __init__(self, format: Format) -> None:
        self.due_at: float | None = None
        """When `take` has something next; None until `begin`."""
        self.is_speaking = False
        """More is to come of what is being said: a gap is waited out, not filled."""
        self._format = format
        self._slice = round(format.bytes_per_s * SLICE_S) // format.width * format.width
        self._sound = bytearray()
        self._words: deque[tuple[int, str, int]] = deque()
        """Where in the sound a text begins, and how many bytes it takes to say."""
        self._sent = 0
        """Slices."""
        self._next_at = 0.0

    @property
    def sent_s(self) -> float:
        """Length of the stream so far."""
        return self._sent * SLICE_S

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be said."""
        return not self._sound and not self._words

    def begin(self, now: float) -> None:
        """The stream begins, with its lead."""
        self.due_at = self._next_at = now - LEAD_S

    def put(self, audio: bytes, text: str) -> None:
        """Something to be said behind all that waits; either may be empty."""
        if text:
            self._words.append((len(self._sound), text, len(audio)))
        self._sound += audio
        self._settle()

    def drop(self) -> None:
        """What waits is not said."""
        self._sound.clear()
        self._words.clear()
        self.is_speaking = False
        self._settle()

    def take(self, now: float) -> list[Slice]:
        """The slices that are due."""
        due = []
        while now >= self._next_at and not (self._is_short and now < self._next_at + LEAD_S):
            if self.is_empty and now - self._next_at > FORGIVEN_S:
                self._next_at = now
            due.append(self._cut())
            self._next_at += SLICE_S
        self._settle()
        return due

    @property
    def _is_short(self) -> bool:
        return self.is_speaking and len(self._sound) < self._slice

    def _cut(self) -> Slice:
        audio = bytes(self._sound[: self._slice])
        del self._sound[: self._slice]
        words = []
        while self._words and self._words[0][0] < self._slice:
            at, text, size = self._words.popleft()
            start_ms = self._ms(self._sent * self._slice + at)
            words.append(Words(text, start_ms, start_ms + self._ms(size)))
        self._words = deque((at - self._slice, text, size) for at, text, size in self._words)
        self._sent += 1
        return Slice(audio + self._format.silence(self._slice - len(audio)), tuple(words))

    def _settle(self) -> None:
        if self.due_at is not None:
            self.due_at = self._next_at + LEAD_S if self._is_short else self._next_at

    def _ms(self, size: int) -> int:
        return size * _MS // self._format.bytes_per_s
