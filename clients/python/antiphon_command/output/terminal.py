"""Colour and progress notes on a terminal."""

import os
import sys
from typing import Final, TextIO

from antiphon.protocol.events import Queued

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


class Style:
    """A style that colours text for `stream`, if that is a terminal and `NO_COLOR` is not set."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """Return the text in `bold`, `dim`, `red`, `green` or `cyan`."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._on else text


class QueueNote:
    """A note of the place in the queue, on a line of standard error that is erased later.

    Nothing is written if that is no terminal.
    """

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._on = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, place: Queued) -> None:
        """Show a place; it replaces the one before."""
        self._write(f"waiting: {place_words(place)}")
        self._shown = True

    def clear(self) -> None:
        """Erase the line, if there is one."""
        if self._shown:
            self._shown = False
            self._write("")

    def _write(self, text: str) -> None:
        if self._on:
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)


def place_words(place: Queued) -> str:
    """Return a place in the queue as text, with the estimated wait, if there is one."""
    words = f"place {place.position} of {place.queue_length}"
    if not place.estimated_wait_s:
        return words
    guess = " (a guess)" if place.estimate_is_guess else ""
    return f"{words}, about {place.estimated_wait_s:.0f} s{guess}"


def printable(text: str, stream: TextIO = sys.stdout) -> str:
    """Return text for `stream`; for a terminal, without control characters."""
    if not stream.isatty():
        return text
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
