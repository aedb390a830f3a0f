"""The pace of speech: how many words the voice speaks in one unit."""

import unicodedata
from collections.abc import Sequence

MAX_CHARACTERS = 16
MAX_WORDS = 4
WIDE = 3
"""Letters that take as long to speak as one character of a script without spaces, such as Chinese."""


def is_wide(character: str) -> bool:
    """Return whether a character is of a script without spaces, in which each counts as a word."""
    return unicodedata.east_asian_width(character) in "WF"


def length(text: str) -> int:
    """Return the length of a text in letters."""
    return sum(WIDE if is_wide(character) else 1 for character in text)


def fits(words: Sequence[str], word: str) -> bool:
    """Return whether a unit with `words` has room for one more.

    A unit takes words while they are at most four and, joined by spaces, at most 16 characters.
    """
    return len(words) < MAX_WORDS and length(" ".join([*words, word])) <= MAX_CHARACTERS


def chunks(reply: str) -> list[list[str]]:
    """Return the words of each speaking unit: about a second of speech."""
    result: list[list[str]] = []
    for word in reply.split():
        if result and fits(result[-1], word):
            result[-1].append(word)
        else:
            result.append([word])
    return result
