"""One chat answer over one WebSocket."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from websockets.exceptions import ConnectionClosed

from antiphon.connection import refusals
from antiphon.connection.endpoint import CLOSE_TIMEOUT_S, NORMAL_CLOSURE, open_websocket
from antiphon.connection.resuming import ResumingSocket
from antiphon.errors import AntiphonError, ConnectError, ProtocolError
from antiphon.protocol.chat import Decoder
from antiphon.protocol.events import Answer, ChatEvent, ErrorEvent, Prefilled, Queued
from antiphon.session.endings import closed_here, ended

_PREFILL_TIMEOUT_S: Final = 300.0
"""The seconds without a message after which a server counts as dead, before `Prefilled`.

A queue sends a message every 3 s.
"""

_MAX_ANSWER_BYTES: Final = 512 * 1024 * 1024
"""The largest message in bytes: a spoken answer of 4096 tokens in one piece."""


class ChatTurn:
    """The answer to a chat, an iterator during generation. `Client.chat` returns it.

    Iterating yields `Prefilled` first and `Answer` last. It ends without an error after `Answer` and after
    `close`; an answer that breaks off raises `SessionClosed`.
    """

    def __init__(self, socket: ResumingSocket) -> None:
        self._socket = socket
        self._decoder = Decoder()
        self._events: deque[ChatEvent] = deque()
        self._over = False
        self._end: AntiphonError | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        api_key: str | None,
        request: str,
        on_queue: Callable[[Queued], object] | None,
        *,
        reconnect: bool = False,
    ) -> Self:
        """Connect, send the request, and wait until the model has read it.

        The wait includes the queue. `url` is the whole address. Raises `ConnectError`, `QueueFull`,
        `AuthError`, or `ProtocolError` if the request is refused.
        """
        reopen = partial(open_websocket, api_key=api_key, max_message_bytes=_MAX_ANSWER_BYTES)
        socket = ResumingSocket(await reopen(url), url, reopen if reconnect else None)
        turn = cls(socket)
        try:
            await turn._begin(request, on_queue)
        except BaseException:
            await socket.close(NORMAL_CLOSURE)
            raise
        return turn

    @property
    def trace_id(self) -> str | None:
        """The id of this answer's trace on the server; None if the server does not trace."""
        return self._socket.trace_id

    async def answer(self) -> Answer:
        """Read the remaining events and return the whole answer. Raises `SessionClosed`."""
        async for event in self:
            if isinstance(event, Answer):
                return event
        raise closed_here("There is no more of this answer to read.")

    async def close(self) -> None:
        """Stop an incomplete answer; wait at most 2 s. Repeated calls do nothing."""
        self._over = True
        await self._socket.close(NORMAL_CLOSURE)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        while not self._events:
            if self._end is not None:
                raise self._end
            if self._over:
                raise StopAsyncIteration
            await self._receive()
        event = self._events.popleft()
        self._over = self._over or isinstance(event, Answer)
        return event

    async def _begin(self, request: str, on_queue: Callable[[Queued], object] | None) -> None:
        """Send the request and read up to `Prefilled`, which stays the first event to be read."""
        # If the socket is closed already, the earlier frames contain the reason.
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(request)
        while not self._events:
            try:
                async with asyncio.timeout(_PREFILL_TIMEOUT_S):
                    frame = await self._socket.recv()
            except TimeoutError:
                text = f"The server said nothing for {_PREFILL_TIMEOUT_S:.0f} s before it answered."
                raise ConnectError(text, reason="timeout", retryable=True) from None
            except ConnectionClosed:
                raise refusals.from_close(self._socket.close_code) from None
            for event in self._decoder.decode(frame):
                if isinstance(event, ErrorEvent):
                    raise refusals.from_error_event(event)
                if isinstance(event, Prefilled):
                    self._socket.offered(event.resume)
                    self._events.append(event)
                elif isinstance(event, Queued) and on_queue:
                    on_queue(event)

    async def _receive(self) -> None:
        try:
            events = self._decoder.decode(await self._socket.recv())
        except ProtocolError as breach:
            self._end = breach
            return
        except ConnectionClosed:
            if not self._over:
                self._end = ended(self._socket.close_code, self.trace_id)
            return
        for event in events:
            if isinstance(event, ErrorEvent):
                try:
                    await self._await_close()
                finally:
                    self._end = ended(self._socket.close_code, self.trace_id, error=event)
            elif not isinstance(event, Queued):
                self._events.append(event)

    async def _await_close(self) -> None:
        """Wait for the Close frame after an error; its code belongs to the ending."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.wait_closed()
