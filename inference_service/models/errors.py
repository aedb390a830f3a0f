"""Errors of loading a model, and of what it is given to speak with."""

from collections.abc import Sequence

_NAMED = 8
"""Names that an error lists."""


class CheckpointError(Exception):
    """A checkpoint that cannot be loaded; the message says what is wrong with it."""


class VoiceError(Exception):
    """A recording that no voice can be made of; the message says what to give instead."""


def listed(names: Sequence[str]) -> str:
    """Return the first of them, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
