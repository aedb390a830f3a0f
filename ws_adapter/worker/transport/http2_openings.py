"""Streams that wait to be opened on an HTTP/2 connection."""

import asyncio
from collections.abc import Callable
from typing import Final

from antiphon.http2.control import Headers
from ws_adapter.worker.transport.channel import FULL_S
from ws_adapter.worker.transport.http2_stream import Stream, StreamRefused

MOST_OPENINGS: Final = 1024
"""Streams that may wait until the worker takes further ones."""


class Openings:
    """A queue: whoever is first is opened as soon as `has_room`, by `open_stream`, which may refuse it."""

    def __init__(
        self, has_room: Callable[[], bool], open_stream: Callable[[Stream, Headers], StreamRefused | None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = has_room
        self._open_stream = open_stream
        self._refused: dict[Stream, Headers] = {}
        self._waiting: dict[Stream, Headers] = {}
        self._is_full = False

    async def wait(self, stream: Stream, headers: Headers, *, again: bool) -> None:
        """Until the stream is open. Those that were refused go before all others, as they did the first time.

        Raises `StreamRefused`. On cancellation the stream is reset.
        """
        if len(self._refused) + len(self._waiting) >= MOST_OPENINGS:
            raise StreamRefused("too many calls wait for this worker")
        stream.opening = self._loop.create_future()
        queue = self._refused if again else self._waiting
        queue[stream] = headers
        self.look()
        try:
            refused = await stream.opening
        except asyncio.CancelledError:
            stream.reset()
            raise
        finally:
            queue.pop(stream, None)
            stream.opening = None
        if refused is not None:
            raise refused

    def look(self) -> None:
        """Opens the streams that there is room for."""
        while (queue := self._refused or self._waiting) and not self._is_full and self._has_room():
            stream = next(iter(queue))
            headers = queue.pop(stream)
            if stream.opening is not None and not stream.opening.done():
                stream.opening.set_result(self._open_stream(stream, headers))

    def pause(self) -> None:
        """The worker refused a stream that there should have been room for."""
        if not self._is_full:
            self._is_full = True
            self._loop.call_later(FULL_S, self._go_on)

    def _go_on(self) -> None:
        self._is_full = False
        self.look()
