"""States of a session and of its slot, in the dialects whose sessions live long."""

from enum import Enum, auto


class State(Enum):
    """The states from the opening of the socket to its end."""

    QUEUED = auto()
    CONNECTED = auto()
    """It has a slot, and its settings are waited for."""
    CONFIGURING = auto()
    """A worker is told the settings."""
    ACTIVE = auto()
    PAUSED = auto()
    """In full duplex alone."""
    CLOSING = auto()
    CLOSED = auto()


class SlotPhase(Enum):
    """The states of a session's slot, in the dialects that take one when they need it."""

    NONE = auto()
    WANTED = auto()
    """In the queue."""
    OPENING = auto()
    """The worker is being told what the session is."""
    READY = auto()
    RUNNING = auto()
    """A turn is answered."""
