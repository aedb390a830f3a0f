"""Messages of clients: what one is, what counts as a small one, and how much of them has come in part."""

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from ws_adapter.protocol.wire.limits import EVENTS_PER_WINDOW, EVENTS_WINDOW_S

SMALL_MESSAGE: Final = 2**10
SMALL_FRAGMENT: Final = 2**12
"""Shorter ones, in bytes, cost more to take apart than they bring, as do pings and pongs: these are counted.
20 ms of audio make a small message, so whoever streams in such steps sends a quarter of what is allowed."""

SMALL_BURST: Final = EVENTS_PER_WINDOW
SMALL_PER_S: Final = EVENTS_PER_WINDOW / EVENTS_WINDOW_S


@dataclass
class Arriving:
    """Bytes of messages that have arrived in part, on all connections; beyond `most` it is full, 0: never."""

    most: int
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nobody may go on with a large message."""
        return 0 < self.most < self.size


class Disconnected(Exception):
    """The connection is over."""


class Message(Struct, frozen=True):
    """A message of a client. `age_s` is its age since it was read from the network."""

    is_text: bool
    data: bytes
    age_s: float
    is_newest: bool
    """No other message has come since."""
