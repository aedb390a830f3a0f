"""States of a session and of its slot, in the dialects with long sessions."""

from enum import Enum, auto


class State(Enum):
    """The states from the opening of the socket to its end."""

    QUEUED = auto()
    CONNECTED = auto()
    """The session has a slot, and waits for its settings."""
    CONFIGURING = auto()
    """The settings are at a worker."""
    ACTIVE = auto()
    PAUSED = auto()
    """The client has paused the session; in full duplex alone."""
    CLOSING = auto()
    CLOSED = auto()


class SlotPhase(Enum):
    """The states of a session's slot, in the dialects that take one on demand."""

    NONE = auto()
    WANTED = auto()
    """The session waits in the queue."""
    OPENING = auto()
    """The settings are sent to the worker."""
    READY = auto()
    RUNNING = auto()
    """A turn is running."""
