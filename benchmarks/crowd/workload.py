"""Workload W: of every 40 seconds a session listens in 24 and speaks in 16, six words of text in each.

The text is scripted, so that every run holds the same conversation. The model still computes everything: it
encodes each second, scores and samples each token before the script's replaces it, and generates the speech
of the script.
"""

from typing import Final

CYCLE: Final = 40
LISTENS: Final = 24
"""The number of listening units at the beginning of a cycle."""
SAYS: Final = 6
"""The number of text tokens of a speaking unit."""
TEXT: Final = "so this is what it is"
"""The words to say, repeated."""


def name(phase: int, number: int) -> str:
    """Id of a session that begins `phase` units into a cycle."""
    return f"w-{phase}-{number}"


def number(session_id: str) -> int:
    """Return the number of a session."""
    return int(session_id.split("-")[2])


def place(session_id: str, unit: int) -> int:
    """Return where in its cycle a unit is, from 0. Units count from 1."""
    return (int(session_id.split("-")[1]) + unit - 1) % CYCLE


def speaks(place: int) -> bool:
    """Return whether a session speaks at this place of its cycle."""
    return place >= LISTENS
