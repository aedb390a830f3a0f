"""What crosses a network, in bytes."""

from dataclasses import dataclass


@dataclass(slots=True)
class ByteCount:
    """Counted as it is read and written."""

    received: int = 0
    sent: int = 0
