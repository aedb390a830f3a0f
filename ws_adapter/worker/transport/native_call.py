"""A gRPC call of our own, as `https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md` has it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol

from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from antiphon.http2.control import Headers
from antiphon.http2.grpc import CONTENT_TYPE, PREFIX
from antiphon.http2.messages import MessageCompressed, Messages, MessageTooLarge
from antiphon.semconv import MAX_MESSAGE_BYTES
from ws_adapter.worker.transport.channel import Metadata, Received, Response, RpcError, path_of
from ws_adapter.worker.transport.http2 import Connection
from ws_adapter.worker.transport.http2_stream import Stream, StreamRefused
from ws_adapter.worker.transport.rpc_status import http_error, status_of

logger = logging.getLogger(__name__)

_PREFIX_BYTES: Final = PREFIX.size


class Route(Protocol):
    """What a call asks of its channel."""

    authority: str
    scheme: str

    async def connection(self) -> Connection:
        """One that takes calls. Raises `RpcError`."""


class NativeCall(Stream, Generic[Response]):
    """See `ws_adapter.worker.transport.channel.Call`."""

    __slots__ = (
        "_deadline",
        "_headers",
        "_is_over",
        "_messages",
        "_metadata",
        "_on_end",
        "_on_message",
        "_parse",
        "_route",
        "_timeout_s",
    )

    def __init__(
        self,
        route: Route,
        method: str,
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> None:
        super().__init__()
        self._route = route
        self._parse = response.FromString
        self._on_message = on_message
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._headers: Headers = (
            (":method", "POST"),
            (":scheme", route.scheme),
            (":path", path_of(method)),
            (":authority", route.authority),
            ("te", "trailers"),
            ("content-type", CONTENT_TYPE),
            ("grpc-timeout", _timeout(timeout_s)),
            *metadata,
        )
        self._metadata: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over = False
        self._messages = Messages(MAX_MESSAGE_BYTES)

    async def start(self, *, again: bool = False) -> None:
        """Sends the request's headers once the worker takes one more call; `again` after it refused one.

        Raises `RpcError`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._route.connection()
                if not self._is_over:
                    await connection.open(self, self._headers, again=again)
        except TimeoutError:
            text = f"it could not begin within {self._timeout_s:g} s"
            raise RpcError(code_pb2.DEADLINE_EXCEEDED, text) from None
        except StreamRefused as refused:
            if not self._is_over:
                raise RpcError(code_pb2.UNAVAILABLE, str(refused)) from None
        if self._is_over:
            raise RpcError(code_pb2.CANCELLED, "it ended before it began")
        self._headers = ()
        self._deadline = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    async def initial_metadata(self) -> Received:
        """What the worker sends before any message. Raises `RpcError` if the call ends without it."""
        return await self._metadata

    def write(self, message: Message) -> None:
        """Sends `message` behind those written before; never waits. After the end it does nothing."""
        if self.connection is not None:
            self.write_serialized(message.SerializeToString())

    def write_serialized(self, *parts: bytes) -> None:
        """The same with a message that is serialised already, in parts that are not copied."""
        connection = self.connection
        if connection is not None:
            size = sum(map(len, parts))
            connection.send(self, _PREFIX_BYTES + size, PREFIX.pack(0, size), *parts)

    def half_close(self) -> None:
        """Nothing more will be written."""
        if self.connection is not None:
            self.connection.end(self)

    def cancel(self) -> None:
        """Ends the call from this side; `on_end` is called a little later."""
        self._abandon(RpcError(code_pb2.CANCELLED, "cancelled by the adapter"))

    def _expire(self) -> None:
        self._abandon(RpcError(code_pb2.DEADLINE_EXCEEDED, f"the call has lasted {self._timeout_s:g} s"))

    def _abandon(self, error: RpcError) -> None:
        if not self._is_over:
            self._is_over = True
            self.reset()
            asyncio.get_running_loop().call_soon(self._tell_end, error)

    def _finish(self, error: RpcError | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_end(error)

    def _tell_end(self, error: RpcError | None) -> None:
        if not self._metadata.done():
            self._metadata.set_exception(error or RpcError(code_pb2.UNKNOWN, "ended before it began"))
            self._metadata.exception()  # whether anybody waits for it or not
        if self._deadline is None:
            return
        self._deadline.cancel()
        try:
            self._on_end(error)
        except Exception:
            logger.exception("the end of a call could not be handled")

    # ------------------------------------------------------------------------------ from the connection

    def headers_received(self, headers: Received, is_end: bool) -> None:
        """See `Stream`."""
        if is_end:
            self._finish(status_of(headers))
        elif (error := http_error(headers)) is not None:
            self._abandon(error)
        elif not self._metadata.done():
            self._metadata.set_result(headers)

    def broken(self, why: str) -> None:
        """See `Stream`."""
        self._finish(RpcError(code_pb2.UNAVAILABLE, why))

    def refused(self) -> None:
        """See `Stream`."""
        self._finish(RpcError(code_pb2.UNAVAILABLE, "the worker takes no further call", was_refused=True))

    def data_received(self, data: memoryview) -> None:
        """See `Stream`."""
        try:
            self._messages.read(data, self._take)
        except MessageTooLarge as error:
            self._abandon(RpcError(code_pb2.RESOURCE_EXHAUSTED, str(error)))
        except MessageCompressed as error:
            self._abandon(RpcError(code_pb2.INTERNAL, str(error)))

    def _take(self, data: Any) -> bool:
        try:
            message = self._parse(data)
        except DecodeError:
            self._abandon(RpcError(code_pb2.INTERNAL, "a message cannot be parsed"))
            return False
        try:
            self._on_message(message)
        except Exception:
            logger.exception("an answer of the worker could not be handled")
            self.cancel()
        return self.connection is not None


def _timeout(seconds: float) -> str:
    """As `grpc-timeout` has it: at most eight digits and a unit."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}m" if milliseconds < 10**8 else f"{milliseconds // 1000}S"
