"""The sent output of an answer, so that a worker that repeats the answer sends no part twice."""

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ, Piece

WIDTH: Final = 4
"""Bytes of a sample, float32."""

TAIL_BYTES: Final = OUTPUT_RATE_HZ // 20 * WIDTH
"""The bytes of the last 50 ms of audio, which are compared with a repeated answer."""

TOLERANCE: Final = 0.01
"""The tolerated difference of samples in [-1, 1]: rounding depends on the batch."""


class DivergedError(Exception):
    """A repeated answer differs from the sent one."""


class SentOutput(Struct):
    """The sent text and audio of an answer; `has_*` count the part that was repeated so far.

    With `is_strict` the repeated answer must be equal; else as much of it as was sent is left out without
    comparison.
    """

    is_strict: bool
    text: str = ""
    thinking: str = ""
    samples: int = 0
    tail: bytes = b""
    """The last bytes of the sent audio, at most `TAIL_BYTES`."""
    has_text: int = 0
    has_thinking: int = 0
    has_samples: int = 0

    def restart(self) -> None:
        """Record that another worker begins the answer again."""
        self.has_text = self.has_thinking = self.has_samples = 0

    @property
    def is_repeating(self) -> bool:
        """Whether some sent text has not been repeated yet."""
        return self.has_text < len(self.text) or self.has_thinking < len(self.thinking)

    def unsent_part(self, piece: Piece) -> Piece | None:
        """Return the unsent part of a piece, and count it as sent; None if there is none.

        Raises `DivergedError` if `is_strict` and the repeated part differs.
        """
        text = self._rest(piece.text, self.text, self.has_text)
        thinking = self._rest(piece.thinking, self.thinking, self.has_thinking)
        repeated = min(len(piece.audio) // WIDTH, self.samples - self.has_samples)
        if repeated and self.is_strict:
            self._compare(piece.audio[: repeated * WIDTH])
        audio = piece.audio[repeated * WIDTH :]
        self.has_text += len(piece.text)
        self.has_thinking += len(piece.thinking)
        self.has_samples += len(piece.audio) // WIDTH
        self.text += text
        self.thinking += thinking
        self.samples += len(audio) // WIDTH
        self.tail = (self.tail + audio)[-TAIL_BYTES:]
        if (text, thinking, audio) == (piece.text, piece.thinking, piece.audio):
            return piece
        if not (text or thinking or audio or piece.call):
            return None
        return replace(piece, text=text, thinking=thinking, audio=audio)

    def _rest(self, said: str, told: str, at: int) -> str:
        repeated = said[: len(told) - at] if at < len(told) else ""
        if self.is_strict and repeated != told[at : at + len(repeated)]:
            raise DivergedError
        return said[len(repeated) :]

    def _compare(self, audio: bytes) -> None:
        """Compare repeated audio with the tail, where they overlap. Raises `DivergedError`."""
        begin = self.samples - len(self.tail) // WIDTH
        skipped = max(0, begin - self.has_samples)
        again = np.frombuffer(audio, "<f4")[skipped:]
        told = np.frombuffer(self.tail, "<f4")[max(0, self.has_samples - begin) :][: again.size]
        if again.size and np.abs(again - told).max() > TOLERANCE:
            raise DivergedError
