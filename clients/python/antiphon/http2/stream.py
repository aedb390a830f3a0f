"""One request and its answer on an HTTP/2 connection, as far as they have come."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from h2.errors import ErrorCodes

Part: TypeAlias = bytes | memoryview


class Carrier(Protocol):
    """The connection of a stream."""

    def send(self, stream: Any, size: int, *parts: Part) -> None:
        """Sends `parts`, `size` bytes in all, as soon as windows and transport allow it."""

    def end(self, stream: Any) -> None:
        """Nothing more will be sent."""

    def reset(self, stream: Any, code: ErrorCodes) -> None:
        """Ends `stream` on both sides."""


class Stream:
    """One request and its answer. Those who use it say by overriding what is to be done with what comes."""

    __slots__ = ("connection", "credit", "has_ended", "is_ending", "number", "waiting", "window")

    def __init__(self) -> None:
        self.connection: Carrier | None = None
        """None before it is opened, and after its end."""
        self.number = 0
        self.window = 0
        """Bytes that may be sent."""
        self.credit = 0
        """Bytes that have come and for which no new room was given."""
        self.is_ending = False
        self.has_ended = False
        self.waiting: list[tuple[int, Sequence[Part]]] = []
        """What is to be sent and has not left yet, in whole or in part: bytes in all, and the bytes."""

    def data_received(self, data: memoryview) -> None:
        """A part of the body; `data` is valid until this returns."""

    def drained(self) -> None:
        """What waited has left."""

    def broken(self, why: str) -> None:
        """It ended on both sides, and not as it should."""
