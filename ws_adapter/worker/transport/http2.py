"""One HTTP/2 connection to a worker, seen from its client."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from h2.errors import ErrorCodes
from h2.events import Event, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from antiphon.http2 import connection
from antiphon.http2.byte_count import ByteCount
from antiphon.http2.control import Control, Headers
from ws_adapter.worker.transport.http2_openings import Openings
from ws_adapter.worker.transport.http2_stream import Stream, StreamRefused

logger = logging.getLogger(__name__)

STREAM_WINDOW: Final = 2**20
CONNECTION_WINDOW: Final = 2**24
"""Bytes that a worker may send ahead. What comes is taken at once, so they bound what is on the way."""


class Connection(connection.Connection[Stream]):
    """Open from `connection_made` to `connection_lost`; `on_lost` is called once then."""

    def __init__(self, on_lost: Callable[["Connection"], None], byte_count: ByteCount) -> None:
        """What is read and written is counted in `byte_count`."""
        super().__init__(Control(is_client=True), CONNECTION_WINDOW, STREAM_WINDOW, byte_count)
        self._on_lost = on_lost
        self._openings = Openings(self._has_room, self._open)
        self._has_settings = asyncio.Event()

    async def settled(self) -> bool:
        """Waits until the worker has said what it allows; whether it takes streams then."""
        await self._has_settings.wait()
        return self.is_usable

    async def open(self, stream: Stream, headers: Headers, *, again: bool = False) -> None:
        """Sends `headers` as a new request once the worker takes one more stream; `again` after a refusal.

        Raises `StreamRefused`. On cancellation the stream is reset.
        """
        await self._openings.wait(stream, headers, again=again)

    def _has_room(self) -> bool:
        """Also for streams that are then refused."""
        return not self.is_usable or len(self._streams) < self._control.most_streams

    def _open(self, stream: Stream, headers: Headers) -> StreamRefused | None:
        if not self.is_usable:
            return StreamRefused("the worker is going away")
        try:
            number = self._control.open(headers)
        except ProtocolError as error:
            return StreamRefused(str(error))
        stream.connection, stream.number, stream.window = self, number, self._first_window
        self._streams[number] = stream
        self._put_due()
        return None

    def _changed(self) -> None:
        self._openings.look()

    def _settled(self) -> None:
        self._has_settings.set()

    def _fell_silent(self, silent_s: float) -> None:
        logger.error("a worker has said nothing for %.0f s", silent_s)
        self.abort()

    def _ended(self, stream: Stream) -> None:
        self.reset(stream, ErrorCodes.NO_ERROR)
        stream.broken("the worker ended a call without a status")

    def _other_leaves(self, last: int) -> None:
        for stream in [stream for number, stream in self._streams.items() if number > last]:
            self._break(stream, "the worker went away before it took the call")

    def _happened(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    is_end = event.stream_ended is not None
                    if is_end and stream.has_ended:
                        self._forget(stream)
                    elif is_end:
                        self.reset(stream, ErrorCodes.NO_ERROR)  # what is still to be sent is not asked for
                    stream.headers_received(dict(event.headers), is_end)
            case StreamReset():
                stream = self._streams.get(event.stream_id)
                if stream is not None and event.error_code == ErrorCodes.REFUSED_STREAM:
                    self._openings.pause()
                    self._forget(stream)
                    stream.refused()
                elif stream is not None:
                    self._break(stream, f"the worker reset a call with the code {event.error_code}")

    def _lost(self) -> None:
        self._on_lost(self)

    def _give_up(self, error: Exception) -> None:
        logger.error("the connection to a worker is given up: %s", error)
        super()._give_up(error)
