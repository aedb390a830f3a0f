"""Colour, where somebody sees it."""

import os
import sys
from typing import Final, TextIO

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


class Style:
    """Colours text written to `stream`, if that is a terminal and `NO_COLOR` is not set."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """The text in `bold`, `dim`, `red`, `green` or `cyan`."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._on else text
