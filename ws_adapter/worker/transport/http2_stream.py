"""One request and its answer on an HTTP/2 connection."""

import asyncio
from typing import Protocol, TypeAlias

from h2.errors import ErrorCodes

Received: TypeAlias = dict[bytes, bytes]


class StreamRefused(Exception):
    """The connection takes no further stream now."""


class Carrier(Protocol):
    """The connection of a stream."""

    def pump(self, stream: "Stream") -> None:
        """Sends what waits in `stream`, as far as the windows and the transport allow."""

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
        self.waiting: list[bytes | memoryview] = []
        """What was given to `send` and has not left yet, in whole or in part."""

    def headers_received(self, headers: Received, is_end: bool) -> None:
        """The headers of the answer, or its trailers."""

    def data_received(self, data: memoryview) -> None:
        """A part of the body; `data` is valid until this returns."""

    def broken(self, why: str) -> None:
        """It ended without trailers."""

    def refused(self) -> None:
        """It ended before the worker looked at it; it may be opened again."""

    def send(self, data: bytes) -> None:
        """Sends `data` as soon as the worker's windows allow it."""
        if self.connection is not None and not self.is_ending:
            self.waiting.append(data)
            self.connection.pump(self)

    def end(self) -> None:
        """Nothing more will be sent."""
        if self.connection is not None and not self.is_ending:
            self.is_ending = True
            self.connection.pump(self)

    def reset(self) -> None:
        """Ends it on both sides, or before it was opened; nothing is received any more."""
        if self.connection is not None:
            self.connection.reset(self, ErrorCodes.CANCEL)
        elif self.opening is not None and not self.opening.done():
            self.opening.set_result(StreamRefused("it was given up before it began"))
