"""How many words the voice says in one unit."""

from collections.abc import Sequence

MAX_CHARACTERS = 16
MAX_WORDS = 4


def fits(words: Sequence[str], word: str) -> bool:
    """Whether the unit that says `words` can say one more.

    A unit takes words while they are at most four and, joined by spaces, at most 16 characters.
    """
    return len(words) < MAX_WORDS and len(" ".join([*words, word])) <= MAX_CHARACTERS


def chunks(reply: str) -> list[list[str]]:
    """The words of each speaking unit: as many as the voice says in about a second."""
    result: list[list[str]] = []
    for word in reply.split():
        if result and fits(result[-1], word):
            result[-1].append(word)
        else:
            result.append([word])
    return result
