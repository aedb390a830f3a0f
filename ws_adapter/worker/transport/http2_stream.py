"""A request to a worker and its answer, as far as they have come."""

import asyncio

from h2.errors import ErrorCodes

from antiphon.http2 import stream
from ws_adapter.worker.transport.channel import Received


class StreamRefused(Exception):
    """The connection takes no further stream now."""


class Stream(stream.Stream):
    """One request and its answer. Those who use it say by overriding what is to be done with what comes."""

    __slots__ = ("opening",)

    def __init__(self) -> None:
        super().__init__()
        self.opening: asyncio.Future[StreamRefused | None] | None = None
        """Done when it was opened, or is not going to be."""

    def headers_received(self, headers: Received, is_end: bool) -> None:
        """The headers of the answer, or its trailers."""

    def refused(self) -> None:
        """It ended before the worker looked at it; it may be opened again."""

    def reset(self) -> None:
        """Ends it on both sides, or before it was opened; nothing is received any more."""
        if self.connection is not None:
            self.connection.reset(self, ErrorCodes.CANCEL)
        elif self.opening is not None and not self.opening.done():
            self.opening.set_result(StreamRefused("it was given up before it began"))
