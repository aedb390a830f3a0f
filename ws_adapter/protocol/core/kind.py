"""Kinds of sessions, as queues, limits and figures tell them apart."""

from enum import StrEnum


class Kind(StrEnum):
    """What a session is: for its limit, for estimating how long it will take, and for those who look on."""

    AUDIO_DUPLEX = "audio_duplex"
    OMNI_DUPLEX = "omni_duplex"
    """With a camera."""
    CHAT = "chat"
    """One turn of it."""
    REALTIME = "realtime"
    """A conversation of turns, from its beginning to its end."""
    TRANSCRIPTION = "transcription"
