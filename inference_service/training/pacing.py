"""How many words the model says in one unit."""

MAX_CHARACTERS = 16
MAX_WORDS = 4


def chunks(reply: str) -> list[list[str]]:
    """The words of each speaking unit: as many as the voice says in about a second.

    A unit takes words while they are at most four and, joined by spaces, at most 16 characters.
    """
    result: list[list[str]] = []
    for word in reply.split():
        if result and len(result[-1]) < MAX_WORDS and len(" ".join([*result[-1], word])) <= MAX_CHARACTERS:
            result[-1].append(word)
        else:
            result.append([word])
    return result
