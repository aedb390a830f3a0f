"""The pace of speech: the words that the voice says in one unit."""

import unicodedata
from collections.abc import Sequence

MAX_CHARACTERS = 16
MAX_WORDS = 4
WIDE = 3
"""Letters that take as long to say as one character of a script without spaces, such as Chinese."""


def is_wide(character: str) -> bool:
    """Return whether it is of a script whose words are not set apart by spaces: each counts as a word of its
    own."""
    return unicodedata.east_asian_width(character) in "WF"


def length(text: str) -> int:
    """Return the length of a text in letters."""
    return sum(WIDE if is_wide(character) else 1 for character in text)


def fits(words: Sequence[str], word: str) -> bool:
    """Return whether the unit that says `words` can say one more.

    A unit takes words while they are at most four and, joined by spaces, at most 16 characters.
    """
    return len(words) < MAX_WORDS and length(" ".join([*words, word])) <= MAX_CHARACTERS


def chunks(reply: str) -> list[list[str]]:
    """Return the words of each speaking unit: as many as the voice says in about a second."""
    result: list[list[str]] = []
    for word in reply.split():
        if result and fits(result[-1], word):
            result[-1].append(word)
        else:
            result.append([word])
    return result
