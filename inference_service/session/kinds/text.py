"""Incremental detokenization: text without partial characters, and without stop strings."""

from collections.abc import Callable, Sequence

_CUT = "�"
"""The replacement character, which a decoder shows for incomplete bytes."""
_PATIENCE = 16
"""Limit of ids that wait for the end of a character; a longer run is no text."""


class Detokenizer:
    """Incremental detokenizer. The cost of a token does not grow with the sequence."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []
        """The ids of the last piece. New ids are decoded after them: a decoder may drop a leading space."""
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that is whole now; often empty."""
        return self._take([token], may_wait=True)

    def flush(self) -> str:
        """Return the remaining text, partial characters included, and start a new text."""
        rest = self._take([], may_wait=False)
        self._shown = []
        return rest

    def _take(self, ids: Sequence[int], *, may_wait: bool) -> str:
        self._waiting += ids
        before = self._decode(self._shown)
        text = self._decode([*self._shown, *self._waiting])[len(before) :]
        if may_wait and text.endswith(_CUT) and len(self._waiting) < _PATIENCE:
            return ""
        if text:
            self._shown = self._waiting
        self._waiting = []
        return text


class StopStrings:
    """A filter that passes text on up to a stop string; a possible beginning of a stop string waits."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._waiting = ""
        self.found = False
        """Whether a stop string has come; nothing passes after it."""

    def push(self, text: str) -> str:
        """Return the text that may be shown; up to the first stop string if there is one now."""
        if self.found:
            return ""
        self._waiting += text
        begins = [at for stop in self._stops if (at := self._waiting.find(stop)) >= 0]
        self.found = bool(begins)
        free = min(begins) if begins else len(self._waiting) - self._suspicious()
        passed, self._waiting = self._waiting[:free], self._waiting[free:]
        return passed

    def _suspicious(self) -> int:
        """Return the number of characters at the end that may begin a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for count in range(min(longest, len(self._waiting)), 0, -1):
            if any(stop.startswith(self._waiting[-count:]) for stop in self._stops):
                return count
        return 0

    def flush(self) -> str:
        """Return the waiting text, because no more text follows."""
        rest, self._waiting = "" if self.found else self._waiting, ""
        return rest
