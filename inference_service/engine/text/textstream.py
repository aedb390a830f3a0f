"""Tokens become text piece by piece, and no character is cut in two."""

from collections.abc import Callable, Sequence

_CUT = "�"
"""What a decoder shows for bytes that are no whole character yet."""
_PATIENCE = 16
"""Ids that wait for the end of a character at most; so many in a row are no text."""


class Detokenizer:
    """The text of a growing sequence of ids; costs the same for each token however long the sequence is."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._shown: list[int] = []
        """The ids of the last piece: a decoder may drop a leading space at its start, but not behind it."""
        self._waiting: list[int] = []

    def add(self, token: int) -> str:
        """The text that is whole now; often empty."""
        return self._take([token], may_wait=True)

    def flush(self) -> str:
        """Whatever is left, cut characters included; what comes next is another text."""
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
