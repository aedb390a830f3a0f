"""Workload W: in cycles of 40 s, a session listens for 24 s and speaks for 16 s, six text tokens per unit.

The text is scripted, so that every run contains the same conversation. The model encodes each unit, and
scores and samples each token. Then the script's token replaces the sampled one, and the model generates the
speech of the script.
"""

from typing import Final

CYCLE: Final = 40
LISTENS: Final = 24
"""The number of listening units at the beginning of a cycle."""
SAYS: Final = 6
"""The number of text tokens of a speaking unit."""
TEXT: Final = "so this is what it is"
"""The text of a session, repeated."""


def name(phase: int, number: int) -> str:
    """Return the id of session `number`, which begins `phase` units into a cycle."""
    return f"w-{phase}-{number}"


def number(session_id: str) -> int:
    """Return the number of a session."""
    return int(session_id.split("-")[2])


def place(session_id: str, unit: int) -> int:
    """Return the position of a unit in its session's cycle, from 0. Units count from 1."""
    return (int(session_id.split("-")[1]) + unit - 1) % CYCLE


def speaks(place: int) -> bool:
    """Return whether a session speaks at position `place` of its cycle."""
    return place >= LISTENS
