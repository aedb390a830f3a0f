"""One request and its answer on an HTTP/2 connection, as far as they have come."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from h2.errors import ErrorCodes

from ws_adapter.worker.transport.channel import Received

Part: TypeAlias = bytes | memoryview


class StreamRefused(Exception):
    """The connection takes no further stream now."""


class Carrier(Protocol):
    """The connection of a stream."""

    def send(self, stream: "Stream", size: int, *parts: bytes) -> None:
        """Sends `parts`, `size` bytes in all, as soon as the worker's windows and the transport allow it."""

    def end(self, stream: "Stream") -> None:
        """Nothing more will be sent."""

    def reset(self, stream: "Stream", code: ErrorCodes) -> None:
        """Ends `stream` without waiting for its answer."""


class Stream:
    """One request and its answer. Those who use it say by overriding what is to be done with what comes."""

    __slots__ = ("connection", "credit", "has_ended", "is_ending", "number", "opening", "waiting", "window")

    def __init__(self) -> None:
        self.opening: asyncio.Future[StreamRefused | None] | None = None
        """Done when it was opened, or is not going to be."""
        self.connection: Carrier | None = None
        """None before it is opened, and after its end."""
        self.number = 0
        self.window = 0
        self.credit = 0
        self.is_ending = False
        self.has_ended = False
        self.waiting: list[tuple[int, Sequence[Part]]] = []
        """What is to be sent and has not left yet, in whole or in part: bytes in all, and the bytes."""

    def headers_received(self, headers: Received, is_end: bool) -> None:
        """The headers of the answer, or its trailers."""

    def data_received(self, data: memoryview) -> None:
        """A part of the body; `data` is valid until this returns."""

    def broken(self, why: str) -> None:
        """It ended without trailers."""

    def refused(self) -> None:
        """It ended before the worker looked at it; it may be opened again."""

    def reset(self) -> None:
        """Ends it on both sides, or before it was opened; nothing is received any more."""
        if self.connection is not None:
            self.connection.reset(self, ErrorCodes.CANCEL)
        elif self.opening is not None and not self.opening.done():
            self.opening.set_result(StreamRefused("it was given up before it began"))
