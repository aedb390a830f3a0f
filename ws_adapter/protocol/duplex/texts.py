"""Texts for a listening model, which wait for the next unit: the model reads them before its sound."""

from collections import deque
from typing import Final

from ws_adapter.protocol.core.answer import StandaloneText

MOST_TEXTS: Final = 8
"""The most texts that may wait."""

MOST_BYTES: Final = 2_000
"""The most bytes of a text, and of the texts of one unit: about 500 tokens of English. No text has more
tokens than bytes."""


class TextQueue:
    """Texts for the model, in the order of their arrival."""

    def __init__(self) -> None:
        self.bytes = 0
        """The bytes of all waiting texts."""
        self._waiting: deque[StandaloneText] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no further text may wait."""
        return len(self._waiting) >= MOST_TEXTS

    def put(self, text: StandaloneText) -> None:
        """Append a text of at most `MOST_BYTES`."""
        self._waiting.append(text)
        self.bytes += text.size

    @property
    def waiting(self) -> tuple[StandaloneText, ...]:
        """The waiting texts, in order."""
        return tuple(self._waiting)

    def take(self) -> tuple[StandaloneText, ...]:
        """Return the texts for the next unit: as many as fit, in order."""
        taken: list[StandaloneText] = []
        room = MOST_BYTES
        while self._waiting and self._waiting[0].size <= room:
            taken.append(self._waiting.popleft())
            room -= taken[-1].size
        self.bytes -= MOST_BYTES - room
        return tuple(taken)
