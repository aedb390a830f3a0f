"""Messages of clients: their type, the rate limit of small ones, and the count of incomplete bytes."""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.wire.limits import EVENTS_PER_WINDOW, EVENTS_WINDOW_S

SMALL_MESSAGE: Final = 2**10
SMALL_FRAGMENT: Final = 2**12
"""The sizes in bytes below which messages and fragments count as small, as do all pings and pongs. Their rate
is limited, since parsing dominates their cost. A client that streams audio in steps of 20 ms sends a quarter
of the allowed rate."""

SMALL_BURST: Final = EVENTS_PER_WINDOW
SMALL_PER_S: Final = EVENTS_PER_WINDOW / EVENTS_WINDOW_S


@dataclass
class Arriving:
    """The bytes of incomplete messages on all connections, and their bound `most`; 0 is no bound."""

    most: int
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the bound is exceeded, so that no client may continue a large message."""
        return 0 < self.most < self.size


class Disconnected(Exception):
    """The client's connection is over."""


class Message(Struct, frozen=True):
    """A message of a client. `age_s` is its age since it was read from the network."""

    is_text: bool
    data: bytes
    age_s: float
    is_newest: bool
    """Whether no later message has arrived."""
