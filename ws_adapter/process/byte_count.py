"""Counts of bytes that cross a network."""

from dataclasses import dataclass


@dataclass(slots=True)
class ByteCount:
    """Bytes received and sent, counted as they are read and written."""

    received: int = 0
    sent: int = 0
