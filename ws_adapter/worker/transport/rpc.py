"""gRPC calls over HTTP/2, as `https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md` has them."""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from antiphon.semconv import MAX_MESSAGE_BYTES
from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.http2 import Connection
from ws_adapter.worker.transport.http2_control import Headers
from ws_adapter.worker.transport.http2_stream import Received, Stream, StreamRefused
from ws_adapter.worker.transport.rpc_status import CONTENT_TYPE, RpcError, http_error, status_of

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0

NEXT_ADDRESS_S: Final = 0.25
"""After how long the next address of a name is tried beside one that does not answer: RFC 8305, section 8."""

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
_PREFIX: Final = struct.Struct("!BL")
"""Before each message: whether it is compressed, and its size."""

_LONG: Final = 2**12
"""Bytes of a message that are not copied to stand in one frame with its prefix."""

Metadata: TypeAlias = Sequence[tuple[str, str]]
Response = TypeVar("Response", bound=Message)
Answer = TypeVar("Answer", bound=Message)


class Channel:
    """Calls to one worker over one connection, made when there is a call. `on_lost` tells when it breaks.

    A connection that the worker is leaving carries its last calls beside the next one.
    """

    def __init__(
        self, target: str, on_lost: Callable[[], None] = lambda: None, byte_count: ByteCount | None = None
    ) -> None:
        """`target` is `host:port`, `[v6]:port` or `unix:path`; bytes are counted in `byte_count`.

        All addresses of a `host` are tried, in the order in which it resolves.
        """
        self._path = target.removeprefix("unix:") if target.startswith("unix:") else None
        host, _, port = target.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port) if self._path is None else 0
        self.authority = "localhost" if self._path is not None else target
        self._on_lost = on_lost
        self._byte_count = byte_count or ByteCount()
        self._connection: Connection | None = None
        self._open: set[Connection] = set()
        self._connecting: asyncio.Task[Connection | None] | None = None
        self._is_closed = False

    async def connection(self) -> Connection:
        """One that takes calls. Raises `RpcError`."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        if self._connecting is None and not self._is_closed:
            self._connecting = asyncio.create_task(self._connect())
        connection = await asyncio.shield(self._connecting) if self._connecting is not None else None
        if connection is None:
            raise RpcError(code_pb2.UNAVAILABLE, "the worker cannot be reached")
        return connection

    async def ask(self, method: str, request: Message, answer: type[Answer], *, timeout_s: float) -> Answer:
        """A call with one message each way. Raises `RpcError`."""
        again = False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._ask(method, request, answer, timeout_s, again)
                    except RpcError as error:
                        if not error.was_refused:
                            raise
                    again = True
        except TimeoutError:
            raise RpcError(code_pb2.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None

    async def _ask(
        self, method: str, request: Message, answer: type[Answer], timeout_s: float, again: bool
    ) -> Answer:
        answers: list[Answer] = []
        ended: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        call = Call(self, method, answer, answers.append, ended.set_result, timeout_s=timeout_s)
        try:
            await call.start(again=again)
            call.write(request)
            call.half_close()
            error = await asyncio.shield(ended)
        finally:
            call.cancel()  # does nothing to one that has ended
        if error is not None:
            raise error
        if len(answers) != 1:
            raise RpcError(code_pb2.UNIMPLEMENTED, f"expected one answer, got {len(answers)}")
        return answers[0]

    def hang_up(self) -> None:
        """Ends every connection with all its calls; the next call makes another."""
        for connection in list(self._open):
            connection.close()

    def close(self) -> None:
        """Ends every connection with all its calls, and there is no further one."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.hang_up()

    async def _connect(self) -> Connection | None:
        connection: Connection | None = None
        is_settled = False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._reach()
                self._open.add(connection)
                is_settled = await connection.settled()
        except (OSError, UnicodeError):  # the latter for names that can be nobody's
            pass
        except asyncio.CancelledError:
            if not self._is_closed:
                raise  # whoever waits for it otherwise was not cancelled
        finally:
            self._connecting = None
            if connection is not None and not is_settled:
                connection.abort()
        if not is_settled:
            return None
        self._connection = connection
        return connection

    async def _reach(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self._path is not None:
            return (await loop.create_unix_connection(self._make, self._path))[1]
        _, connection = await loop.create_connection(
            self._make, self._host, self._port, happy_eyeballs_delay=NEXT_ADDRESS_S
        )
        return connection

    def _make(self) -> Connection:
        return Connection(self._lost, self._byte_count)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection is self._connection:
            self._connection = None
            if not self._is_closed:
                self._on_lost()


class Call(Stream, Generic[Response]):
    """One call. `on_message` is called for each answer, and once it has begun, `on_end` once: None for OK.

    A call whose answer cannot be handled, as `on_message` raises, is logged and cancelled.
    """

    __slots__ = (
        "_channel",
        "_deadline",
        "_headers",
        "_is_over",
        "_message",
        "_metadata",
        "_on_end",
        "_on_message",
        "_parse",
        "_prefix",
        "_room",
        "_timeout_s",
    )

    def __init__(
        self,
        channel: Channel,
        method: str,
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> None:
        super().__init__()
        self._channel = channel
        self._parse = response.FromString
        self._on_message = on_message
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._headers: Headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{_SERVICE}/{method}"),
            (":authority", channel.authority),
            ("te", "trailers"),
            ("content-type", CONTENT_TYPE),
            ("grpc-timeout", _timeout(timeout_s)),
            *metadata,
        )
        self._metadata: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_over = False
        self._prefix = b""
        self._message: bytearray | None = None
        self._room = memoryview(b"")

    async def start(self, *, again: bool = False) -> None:
        """Sends the request's headers once the worker takes one more call; `again` after it refused one.

        Raises `RpcError`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._channel.connection()
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

    def write_serialized(self, data: bytes) -> None:
        """The same with a message that is serialised already."""
        if self.connection is not None:
            prefix = _PREFIX.pack(0, len(data))
            if len(data) < _LONG:
                self.connection.send(self, prefix + data)
            else:
                self.connection.send(self, prefix, data)

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
        """Puts messages together from the parts that come."""
        size = len(data) - _PREFIX.size
        is_between = self._message is None and not self._prefix
        if is_between and size >= 0 and _PREFIX.unpack_from(data) == (0, size):
            self._take(data[_PREFIX.size :])  # one message, and all of it
            return
        while data:
            if self._message is None:
                if self._prefix or len(data) < _PREFIX.size:
                    missing = _PREFIX.size - len(self._prefix)
                    self._prefix += data[:missing]
                    data = data[missing:]
                    if len(self._prefix) < _PREFIX.size:
                        return
                    is_compressed, size = _PREFIX.unpack(self._prefix)
                    self._prefix = b""
                else:
                    is_compressed, size = _PREFIX.unpack_from(data)
                    data = data[_PREFIX.size :]
                if size > MAX_MESSAGE_BYTES:
                    text = f"a message has {size} bytes, at most {MAX_MESSAGE_BYTES} are taken"
                    self._abandon(RpcError(code_pb2.RESOURCE_EXHAUSTED, text))
                    return
                if is_compressed:
                    self._abandon(RpcError(code_pb2.INTERNAL, "a message is compressed, which was not asked"))
                    return
                if size <= len(data):
                    self._take(data[:size])
                    data = data[size:]
                    continue
                self._message = bytearray(size)
                self._room = memoryview(self._message)
            taken = min(len(data), len(self._room))
            self._room[:taken] = data[:taken]
            self._room = self._room[taken:]
            data = data[taken:]
            if not self._room:
                message, self._message = self._message, None
                self._take(message)

    def _take(self, data: Any) -> None:
        if self.connection is None:
            return
        try:
            message = self._parse(data)
        except DecodeError:
            self._abandon(RpcError(code_pb2.INTERNAL, "a message cannot be parsed"))
            return
        try:
            self._on_message(message)
        except Exception:
            logger.exception("an answer of the worker could not be handled")
            self.cancel()


def _timeout(seconds: float) -> str:
    """As `grpc-timeout` has it: at most eight digits and a unit."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}m" if milliseconds < 10**8 else f"{milliseconds // 1000}S"
