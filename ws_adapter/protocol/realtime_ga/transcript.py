"""The words of a spoken answer, and their positions in its audio.

The model's words and audio come in pieces, the words of a piece before its audio. The position of a word
within a piece is unknown: its words are assumed to be evenly spread. A word counts as heard if its end was
heard.
"""

import re
from typing import Final

from ws_adapter.protocol.realtime_ga.saved.items import SavedTranscript

_WORD: Final = re.compile(r"\s*\S+\s*")


class Transcript:
    """The transcript of one answer, whose audio has `bytes_per_s`."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._pieces: list[tuple[int, str]] = []
        """The beginning of each piece's audio, in bytes, and its words."""
        self._bytes = 0
        self._heard_bytes: int | None = None
        """The position of the cut, in bytes."""

    def save(self) -> SavedTranscript:
        """Return the state."""
        return SavedTranscript(self._bytes_per_s, tuple(self._pieces), self._bytes, self._heard_bytes)

    @classmethod
    def restored(cls, saved: SavedTranscript) -> "Transcript":
        """Return a transcript from a saved state."""
        made = cls(saved.bytes_per_s)
        made._pieces, made._bytes, made._heard_bytes = list(saved.pieces), saved.size, saved.heard_bytes
        return made

    @property
    def ms(self) -> int:
        """The length of the answer in ms, up to its cut."""
        size = self._bytes if self._heard_bytes is None else min(self._heard_bytes, self._bytes)
        return size * 1000 // self._bytes_per_s

    def write(self, text: str) -> None:
        """Append words. All words before the next audio belong to that audio."""
        if self._pieces and self._pieces[-1][0] == self._bytes:
            text = self._pieces.pop()[1] + text
        self._pieces.append((self._bytes, text))

    def sound(self, size: int) -> int:
        """Append `size` bytes of audio; return how many of them are before the cut."""
        before, self._bytes = self._bytes, self._bytes + size
        return size if self._heard_bytes is None else min(size, max(0, self._heard_bytes - before))

    def cut(self, ms: int) -> int:
        """Cut the transcript after `ms`; return that position in bytes."""
        size = ms * self._bytes_per_s // 1000
        self._heard_bytes = size if self._heard_bytes is None else min(size, self._heard_bytes)
        return self._heard_bytes

    @property
    def all(self) -> str:
        """All words, heard or not."""
        return "".join(text for _, text in self._pieces)

    @property
    def text(self) -> str:
        """The words, up to the cut."""
        if self._heard_bytes is None:
            return self.all
        ends = [begin for begin, _ in self._pieces[1:]] + [self._bytes]
        return "".join(
            _part(text, self._heard_bytes - begin, end - begin)
            for (begin, text), end in zip(self._pieces, ends, strict=False)
        )


def _part(text: str, heard: int, whole: int) -> str:
    """Return the words that end within the first `heard` bytes of a piece of `whole` bytes."""
    if heard <= 0:
        return ""
    if heard >= whole:
        return text
    most = len(text) * heard // whole
    ends = [
        found.end() for found in _WORD.finditer(text) if len(found.group().rstrip()) + found.start() <= most
    ]
    return text[: ends[-1]] if ends else ""
