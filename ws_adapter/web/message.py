"""Messages of clients: their type, the bound of small ones, and the bytes of incomplete ones."""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.wire.limits import EVENTS_PER_WINDOW, EVENTS_WINDOW_S

SMALL_MESSAGE: Final = 2**10
SMALL_FRAGMENT: Final = 2**12
"""The bytes below which messages, pings and pongs are counted: they cost more to parse than they carry. 20
ms of audio make a small message, so a client that streams in such steps sends a quarter of the allowed
rate."""

SMALL_BURST: Final = EVENTS_PER_WINDOW
SMALL_PER_S: Final = EVENTS_PER_WINDOW / EVENTS_WINDOW_S


@dataclass
class Arriving:
    """The bytes of incomplete messages on all connections; beyond `most` it is full, 0: never."""

    most: int
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether no client may continue a large message."""
        return 0 < self.most < self.size


class Disconnected(Exception):
    """The connection is over."""


class Message(Struct, frozen=True):
    """A message of a client. `age_s` is its age since it was read from the network."""

    is_text: bool
    data: bytes
    age_s: float
    is_newest: bool
    """Whether no other message has come since."""
