"""Errors of loading a model and of reading voice recordings."""

from collections.abc import Sequence

_NAMED = 8
"""Limit of names that an error lists."""


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the message says what is wrong with it."""


class VoiceError(Exception):
    """A recording that cannot become a voice; the message says what to give instead."""


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
