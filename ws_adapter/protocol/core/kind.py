"""Kinds of sessions, as queues, limits and figures tell them apart."""

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a session, which decides its limit, its estimated length and its metrics."""

    AUDIO_DUPLEX = "audio_duplex"
    OMNI_DUPLEX = "omni_duplex"
    """With a camera."""
    CHAT = "chat"
    """One turn of it."""
    REALTIME = "realtime"
    """A conversation of turns, from its beginning to its end."""
    TRANSCRIPTION = "transcription"
