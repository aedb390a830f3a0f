"""Playout of a Live session on a clock: a stream without gaps that is sent no earlier than necessary.

Sent audio cannot be taken back; so it is sent in short slices, each when it is due, and an interruption drops
the rest. The client holds a lead (its jitter buffer), which covers a late unit.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.core.blobs import Blobs, ByteQueue, Saved, SavedBytes
from ws_adapter.protocol.live.sound import Format

SLICE_S: Final = 0.2
"""The seconds of audio in one event, unless the units of the model are shorter."""

WORD_S: Final = 0.4
"""A word that ends at most this many seconds after a slice is sent whole with that slice.

Clients end a turn 0.8 s after the last words.
"""

MOST_CATCH_UP_S: Final = 1.0
"""The most seconds of overdue silence that are sent later; a longer silence is skipped."""

_MS: Final = 1000


class Words(Struct, frozen=True):
    """Words with their begin and end in the stream, in milliseconds."""

    text: str
    start_ms: int
    end_ms: int


class Text(Struct):
    """Text of `size` bytes of waiting sound from byte `begin` on; `told` characters are sent.

    The times of single words are unknown: the characters are spread evenly.
    """

    text: str
    begin: int
    size: int
    told: int = 0

    @property
    def at(self) -> int:
        """The position of the first unsent character."""
        return self._place(self.told)

    @property
    def is_said(self) -> bool:
        """Whether all of the text is sent."""
        return self.told >= len(self.text)

    def take_until(self, end: int, word: int) -> tuple[str, int, int]:
        """Take the unsent text that begins before byte `end`; return it with its start and end in bytes.

        The last word is taken whole if that adds at most `word` bytes.
        """
        begin = due = self.told
        while due < len(self.text) and self._place(due) < end:
            due += 1
        if due == begin:
            return "", self._place(begin), self._place(begin)
        whole = due
        while whole < len(self.text) and not self.text[whole].isspace() and not self.text[due - 1].isspace():
            whole += 1
        if self._place(whole) - self._place(due) <= word:
            due = whole
        self.told = due
        return self.text[begin:due], self._place(begin), self._place(due)

    def _place(self, character: int) -> int:
        return self.begin + self.size * character // len(self.text)


class Slice(Struct, frozen=True):
    """Audio that is due, and its words."""

    audio: bytes
    words: tuple[Words, ...]


class SavedPlayout(Struct, frozen=True):
    """The state of a `Playout`."""

    next_ago: float
    is_speaking: bool
    sound: SavedBytes
    words: tuple[Text, ...]
    sent: int


class Playout:
    """The waiting speech of a session, sent in slices. Times are seconds of the session's clock.

    `slice_s` is the length of an event. The stream is one slice ahead of the clock, and a sentence waits that
    long for a late unit.
    """

    def __init__(self, format: Format, slice_s: float = SLICE_S) -> None:
        self.due_at: float | None = None
        """The time at which `take` has the next slice; None until `begin`."""
        self.is_speaking = False
        """Whether more speech is expected: then an underrun waits, and is not filled with silence."""
        self.slice_s: Final = slice_s
        self._format = format
        self._slice = round(format.bytes_per_s * slice_s) // format.width * format.width
        self._sound = ByteQueue()
        self._words: deque[Text] = deque()
        """The words of the waiting sound, in order."""
        self._sent = 0
        """The number of sent slices."""
        self._next_at = 0.0

    @property
    def sent_s(self) -> float:
        """The seconds of the stream so far."""
        return self._sent * self.slice_s

    @property
    def waiting_s(self) -> float:
        """The seconds of waiting speech."""
        return len(self._sound) / self._format.bytes_per_s

    @property
    def is_empty(self) -> bool:
        """Whether no speech waits."""
        return not self._sound and not self._words

    def begin(self, now: float) -> None:
        """Begin the stream with its lead."""
        self.due_at = self._next_at = now - self.slice_s

    def put(self, audio: bytes, text: str) -> None:
        """Append audio and text to those that wait; either may be empty."""
        if text:
            self._words.append(Text(text, len(self._sound), len(audio)))
        self._sound.put(audio)
        self._settle()

    def drop(self) -> None:
        """Drop all waiting audio and text."""
        self._sound.clear()
        self._words.clear()
        self.is_speaking = False
        self._settle()

    def take(self, now: float) -> list[Slice]:
        """Return the slices that are due."""
        due = []
        while now >= self._next_at and not (self._is_short and now < self._next_at + self.slice_s):
            if self.is_empty and now - self._next_at > MOST_CATCH_UP_S:
                self._next_at = now
            due.append(self._cut())
            self._next_at += self.slice_s
        self._settle()
        return due

    @property
    def _is_short(self) -> bool:
        return self.is_speaking and len(self._sound) < self._slice

    def _cut(self) -> Slice:
        audio = self._sound.take(self._slice)
        words, before = [], self._sent * self._slice
        while self._words and self._words[0].at < self._slice:
            text = self._words[0]
            said, at, end = text.take_until(self._slice, round(self._format.bytes_per_s * WORD_S))
            if said:
                words.append(Words(said, self._ms(before + at), self._ms(before + end)))
            if text.is_said:
                self._words.popleft()
            else:
                break
        for text in self._words:
            text.begin -= self._slice
        self._sent += 1
        return Slice(audio + self._format.silence(self._slice - len(audio)), tuple(words))

    def save(self, now: float, blobs: Blobs) -> SavedPlayout:
        """Return the state of a stream that has begun."""
        return SavedPlayout(
            now - self._next_at,
            self.is_speaking,
            self._sound.save(blobs),
            tuple(self._words),
            self._sent,
        )

    def restore(self, saved: SavedPlayout, blobs: Saved, now: float) -> None:
        """Go on from a saved state of the same format. Raises `ValueError` or `KeyError`."""
        self._sound = ByteQueue.restored(saved.sound, blobs)
        self._words = deque(saved.words)
        self._sent, self.is_speaking = saved.sent, saved.is_speaking
        self.due_at = self._next_at = now - saved.next_ago
        self._settle()

    def _settle(self) -> None:
        if self.due_at is not None:
            self.due_at = self._next_at + self.slice_s if self._is_short else self._next_at

    def _ms(self, size: int) -> int:
        return size * _MS // self._format.bytes_per_s
