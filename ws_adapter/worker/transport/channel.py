"""A connection to one worker over `grpc.aio`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from antiphon.contract import CLIENT_OPTIONS
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.call import REFUSED_PAUSE_S, Call, Streams
from ws_adapter.worker.transport.rpc import (
    Metadata,
    Response,
    RpcError,
    connection_closed,
    error_of,
    path_of,
)
from ws_adapter.worker.transport.target import Target
from ws_adapter.worker.transport.tls import WorkerTls, explain

CONNECT_TIMEOUT_S: Final = 5.0
"""The most seconds of connecting, from the first packet to the worker's SETTINGS frame."""

NEXT_ADDRESS_S: Final = 0.25
"""The connection attempt delay of Happy Eyeballs, in seconds: RFC 8305, section 8."""

_FAILED: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Streaming: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"


class Channel:
    """Calls to one worker over one connection, made for the first call and again after it is lost.

    After a failed connection the next call uses a new grpcio channel, which resolves the name again, without
    back-off, and uses the current certificates. A connection that the worker drains keeps its calls until
    they end.
    """

    def __init__(
        self,
        target: str,
        on_lost: Callable[[], None] = lambda: None,
        byte_count: ByteCount | None = None,
        tls: WorkerTls | None = None,
    ) -> None:
        """`on_lost` is called when a connection breaks. `byte_count` counts messages with their prefix.

        `tls` is used unless `target` is a Unix socket.
        """
        self.target = target
        self._tls = None if Target.parse(target).path else tls
        self._on_lost = on_lost
        self._byte_count = byte_count or ByteCount()
        self._connection: _Connection | None = None
        self._credentials: grpc.ChannelCredentials | None = None
        """The credentials of `_connection`."""
        self._left: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def ask(
        self, method: str, request: Message, answer: type[Response], *, timeout_s: float
    ) -> Response:
        """Make a unary call; retry it while the worker refuses it unprocessed. Raises `RpcError`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._until_taken(lambda: self._ask(method, request, answer, timeout_s))
        except TimeoutError:
            raise RpcError(code_pb2.DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None

    async def _until_taken(self, attempt: Callable[[], Awaitable[Response]]) -> Response:
        while True:
            try:
                return await attempt()
            except RpcError as error:
                if not error.was_refused:
                    raise
            await asyncio.sleep(REFUSED_PAUSE_S)

    async def _ask(self, method: str, request: Message, answer: type[Response], timeout_s: float) -> Response:
        data = request.SerializeToString()
        try:
            asking: Unary = self._ready().inner.unary_unary(path_of(method))
            return answer.FromString(await asking(data, timeout=timeout_s))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise connection_closed() from None  # `disconnect` cancelled the call, not this task
        except grpc.aio.AioRpcError as error:
            text = explain(error.details() or "", self._tls)
            raise error_of(error.code(), text, error.trailing_metadata()) from None
        except DecodeError:
            raise RpcError(code_pb2.INTERNAL, "a message cannot be parsed") from None

    def call(
        self,
        method: str,
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> Call[Response]:
        """Return a call to start, which lasts `timeout_s` seconds at most.

        `on_message` is called for each answer and, once the call has begun, `on_end` once: None for OK. If
        `on_message` raises, the error is logged and the call is cancelled.
        """
        begin = partial(self._begin, method, metadata, timeout_s)
        return Call(begin, response, on_message, on_end, self._byte_count, timeout_s)

    def _begin(
        self, method: str, metadata: Metadata, timeout_s: float, call: Call[Any]
    ) -> tuple[Streams, Callable[[], None]]:
        connection = self._ready()
        streaming: Streaming = connection.inner.stream_stream(path_of(method))
        connection.calls.add(call)
        return streaming(metadata=tuple(metadata), timeout=timeout_s), partial(self._ended, connection, call)

    def _ended(self, connection: "_Connection", call: Call[Any]) -> None:
        connection.calls.discard(call)
        if connection in self._left and not connection.calls:
            self._close(connection)

    def disconnect(self) -> None:
        """Close every connection with all its calls; the next call makes a new one."""
        was_ready = self._connection is not None and self._connection.state is grpc.ChannelConnectivity.READY
        self._leave()
        for connection in list(self._left):
            for call in list(connection.calls):
                call.disconnect()
            self._close(connection)
        if was_ready and not self._is_closed:
            self._on_lost()

    def close(self) -> None:
        """Close every connection with all its calls; further calls raise `RpcError`."""
        self._is_closed = True
        self.disconnect()

    async def wait_closed(self) -> None:
        """Wait until all closing connections are closed."""
        await asyncio.gather(*self._closing)

    def _ready(self) -> "_Connection":
        """Return a connection whose next call connects, if it is not connected. Raises `RpcError`."""
        if self._is_closed:
            raise RpcError(code_pb2.UNAVAILABLE, "the channel is closed")
        if self._connection is not None:
            state = self._connection.state
            is_outdated = self._tls is not None and self._credentials is not self._tls.credentials
            if state in _FAILED or (is_outdated and state is not grpc.ChannelConnectivity.READY):
                self._leave()
        if self._connection is None:
            inner = self._make()
            self._connection = _Connection(inner, asyncio.create_task(self._watch(inner)))
        return self._connection

    def _make(self) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.target, options=_options())
        self._credentials = self._tls.credentials
        named = [("grpc.ssl_target_name_override", self._tls.name)] if self._tls.name is not None else []
        return grpc.aio.secure_channel(self.target, self._credentials, options=[*_options(), *named])

    async def _watch(self, inner: grpc.aio.Channel) -> None:
        state = inner.get_state()
        while True:
            await inner.wait_for_state_change(state)
            was_ready = state is grpc.ChannelConnectivity.READY
            state = inner.get_state()
            if was_ready:
                self._on_lost()

    def _leave(self) -> None:
        """Make no further call over the present connection; its calls may end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.watching.cancel()
            self._left.add(connection)
            if not connection.calls:
                self._close(connection)

    def _close(self, connection: "_Connection") -> None:
        if connection in self._left:
            self._left.remove(connection)
            closing = asyncio.create_task(connection.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@dataclass(eq=False)
class _Connection:
    """A grpcio channel, the task that watches its state, and its calls."""

    inner: grpc.aio.Channel
    watching: "asyncio.Task[None]"
    calls: set[Call[Any]] = field(default_factory=set)

    @property
    def state(self) -> grpc.ChannelConnectivity:
        return self.inner.get_state()

    async def close(self) -> None:
        await asyncio.gather(self.watching, return_exceptions=True)
        await self.inner.close()


def _options() -> list[tuple[str, int]]:
    connect = round(CONNECT_TIMEOUT_S * 1000)
    return [
        *CLIENT_OPTIONS,
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
        # Each grpcio channel has its own connection and DNS answer.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.client_idle_timeout_ms", 2**31 - 1),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.min_reconnect_backoff_ms", connect),
        ("grpc.initial_reconnect_backoff_ms", connect),
        ("grpc.happy_eyeballs_connection_attempt_delay_ms", round(NEXT_ADDRESS_S * 1000)),
        ("grpc.service_config_disable_resolution", 1),
    ]
