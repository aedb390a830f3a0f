"""Texts for a model that is listening: they wait for the second before which they are read."""

from collections import deque
from typing import Final

from ws_adapter.protocol.core.answer import StandaloneText

MOST_TEXTS: Final = 8
"""That may wait."""

MOST_BYTES: Final = 2_000
"""Of a text, and of those that one unit brings: about 500 tokens of English, and no more tokens than bytes of
anything."""


class TextQueue:
    """Texts for the model, in the order of their arrival."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of all that wait."""
        self._waiting: deque[StandaloneText] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no further one may wait."""
        return len(self._waiting) >= MOST_TEXTS

    def put(self, text: StandaloneText) -> None:
        """Append a text of at most `MOST_BYTES`."""
        self._waiting.append(text)
        self.bytes += text.size

    @property
    def waiting(self) -> tuple[StandaloneText, ...]:
        """Texts that wait, in order."""
        return tuple(self._waiting)

    def take(self) -> tuple[StandaloneText, ...]:
        """Those that go with the next unit: as many as fit, in their order."""
        taken: list[StandaloneText] = []
        room = MOST_BYTES
        while self._waiting and self._waiting[0].size <= room:
            taken.append(self._waiting.popleft())
            room -= taken[-1].size
        self.bytes -= MOST_BYTES - room
        return tuple(taken)
