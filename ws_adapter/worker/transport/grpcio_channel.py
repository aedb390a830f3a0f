"""gRPC as grpcio speaks it, in threads of its own."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2

from antiphon.http2.byte_count import ByteCount
from antiphon.http2.keepalive import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from antiphon.semconv import MAX_MESSAGE_BYTES
from ws_adapter.worker.transport.channel import (
    CONNECT_TIMEOUT_S,
    FULL_S,
    NEXT_ADDRESS_S,
    Channel,
    Metadata,
    Response,
    RpcError,
    answered,
    path_of,
)
from ws_adapter.worker.transport.grpcio_call import GrpcioCall, Streams, error_of, lost
from ws_adapter.worker.transport.target import Target
from ws_adapter.worker.transport.tls import WorkerTls

Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Streaming: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"

_FAILED: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class GrpcioChannel(Channel):
    """See `ws_adapter.worker.transport.channel.Channel`.

    After a connection that failed the next call takes a channel of grpcio's that is new: it resolves the name
    again, waits for nothing and uses the certificates of that time.
    """

    def __init__(
        self,
        target: str,
        on_lost: Callable[[], None] = lambda: None,
        byte_count: ByteCount | None = None,
        tls: WorkerTls | None = None,
    ) -> None:
        """`on_lost` tells when a connection breaks; bytes of messages are counted in `byte_count`.

        With `tls` it speaks TLS wherever `target` is no Unix socket.
        """
        self._target = target
        self._tls = None if Target.parse(target).path else tls
        self._on_lost = on_lost
        self._byte_count = byte_count or ByteCount()
        self._line: _Line | None = None
        self._context: ssl.SSLContext | None = None
        """Of the certificates that it was made with."""
        self._left: set[_Line] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def target(self) -> str:
        """See `Channel`."""
        return self._target

    async def ask(
        self, method: str, request: Message, answer: type[Response], *, timeout_s: float
    ) -> Response:
        """See `Channel`."""
        return await answered(lambda again: self._ask(method, request, answer, timeout_s, again), timeout_s)

    async def _ask(
        self, method: str, request: Message, answer: type[Response], timeout_s: float, again: bool
    ) -> Response:
        if again:
            await asyncio.sleep(FULL_S)
        data = request.SerializeToString()
        try:
            asking: Unary = self._ready().inner.unary_unary(path_of(method))
            call = asking(data, timeout=timeout_s)
            return answer.FromString(await call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise lost() from None  # it was the call that was cancelled, by whoever hung up
        except grpc.aio.AioRpcError as error:
            raise error_of(error.code(), error.details(), error.trailing_metadata()) from None
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
    ) -> GrpcioCall[Response]:
        """See `Channel`."""
        begin = partial(self._begin, method, metadata, timeout_s)
        return GrpcioCall(begin, response, on_message, on_end, self._byte_count, timeout_s)

    def _begin(
        self, method: str, metadata: Metadata, timeout_s: float, call: GrpcioCall[Any]
    ) -> tuple[Streams, Callable[[], None]]:
        line = self._ready()
        streaming: Streaming = line.inner.stream_stream(path_of(method))
        line.calls.add(call)
        return streaming(metadata=tuple(metadata), timeout=timeout_s), partial(self._ended, line, call)

    def _ended(self, line: "_Line", call: GrpcioCall[Any]) -> None:
        line.calls.discard(call)
        if line in self._left and not line.calls:
            self._close(line)

    def hang_up(self) -> None:
        """See `Channel`."""
        was_ready = self._line is not None and self._line.state is grpc.ChannelConnectivity.READY
        self._leave()
        for line in list(self._left):
            for call in list(line.calls):
                call.lose()
            self._close(line)
        if was_ready and not self._is_closed:
            self._on_lost()

    def close(self) -> None:
        """See `Channel`."""
        self._is_closed = True
        self.hang_up()

    async def wait_closed(self) -> None:
        """See `Channel`."""
        await asyncio.gather(*self._closing)

    def _ready(self) -> "_Line":
        """One whose next call connects, if it is not connected. Raises `RpcError`."""
        if self._is_closed:
            raise RpcError(code_pb2.UNAVAILABLE, "the channel is closed")
        if self._line is not None:
            state = self._line.state
            is_outdated = self._tls is not None and self._context is not self._tls.context
            if state in _FAILED or (is_outdated and state is not grpc.ChannelConnectivity.READY):
                self._leave()
        if self._line is None:
            inner = self._make()
            self._line = _Line(inner, asyncio.create_task(self._watch(inner)))
        return self._line

    def _make(self) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self._target, options=_options())
        tls = self._tls
        self._context = tls.context
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        return grpc.aio.secure_channel(self._target, credentials, options=_options())

    async def _watch(self, inner: grpc.aio.Channel) -> None:
        state = inner.get_state()
        while True:
            await inner.wait_for_state_change(state)
            was_ready = state is grpc.ChannelConnectivity.READY
            state = inner.get_state()
            if was_ready:
                self._on_lost()

    def _leave(self) -> None:
        """No further call goes over the line; those that are on it may end."""
        line, self._line = self._line, None
        if line is not None:
            line.watching.cancel()
            self._left.add(line)
            if not line.calls:
                self._close(line)

    def _close(self, line: "_Line") -> None:
        if line in self._left:
            self._left.remove(line)
            closing = asyncio.create_task(line.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@dataclass(eq=False)
class _Line:
    """A channel of grpcio's, who watches it, and the calls that go over it."""

    inner: grpc.aio.Channel
    watching: "asyncio.Task[None]"
    calls: set[GrpcioCall[Any]] = field(default_factory=set)

    @property
    def state(self) -> grpc.ChannelConnectivity:
        return self.inner.get_state()

    async def close(self) -> None:
        await asyncio.gather(self.watching, return_exceptions=True)
        await self.inner.close()


def _options() -> list[tuple[str, int]]:
    """What makes grpcio keep the rules of `channel`; times in milliseconds."""
    connect = round(CONNECT_TIMEOUT_S * 1000)
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        # With the probe on, megabytes run ahead of a reader that has stopped.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_time_ms", round(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.http2.ping_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # A channel of ours has a connection and a name of its own, as old as itself.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.client_idle_timeout_ms", 2**31 - 1),
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
        ("grpc.min_reconnect_backoff_ms", connect),
        ("grpc.initial_reconnect_backoff_ms", connect),
        ("grpc.happy_eyeballs_connection_attempt_delay_ms", round(NEXT_ADDRESS_S * 1000)),
        ("grpc.service_config_disable_resolution", 1),
    ]
