"""Kinds of sessions, by which queues, limits and metrics are kept apart."""

from enum import StrEnum


class Kind(StrEnum):
    """The kind of a session, which decides its limit, its estimated length and its metrics."""

    AUDIO_DUPLEX = "audio_duplex"
    OMNI_DUPLEX = "omni_duplex"
    """Full duplex with a camera."""
    CHAT = "chat"
    """One turn of a chat."""
    REALTIME = "realtime"
    """A conversation of turns, from its beginning to its end."""
    TRANSCRIPTION = "transcription"
