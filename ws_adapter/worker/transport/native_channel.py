"""gRPC of our own: calls over HTTP/2 on the adapter's event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from google.rpc import code_pb2

from antiphon.http2.byte_count import ByteCount
from antiphon.http2.grpc import ALPN
from ws_adapter.worker.transport.channel import (
    CONNECT_TIMEOUT_S,
    NEXT_ADDRESS_S,
    Channel,
    Metadata,
    Response,
    RpcError,
    answered,
)
from ws_adapter.worker.transport.http2 import Connection
from ws_adapter.worker.transport.native_call import NativeCall
from ws_adapter.worker.transport.target import Target
from ws_adapter.worker.transport.tls import WorkerTls, explain


class NativeChannel(Channel):
    """See `ws_adapter.worker.transport.channel.Channel`."""

    def __init__(
        self,
        target: str,
        on_lost: Callable[[], None] = lambda: None,
        byte_count: ByteCount | None = None,
        tls: WorkerTls | None = None,
    ) -> None:
        """`on_lost` tells when a connection breaks; bytes are counted in `byte_count`.

        With `tls` it speaks TLS wherever `target` is no Unix socket.
        """
        self._target = target
        self._where = where = Target.parse(target)
        self._tls = None if where.path else tls
        self.authority = "localhost" if where.path else target
        self.scheme = "https" if self._tls is not None else "http"
        self._on_lost = on_lost
        self._byte_count = byte_count or ByteCount()
        self._connection: Connection | None = None
        self._open: set[Connection] = set()
        self._connecting: asyncio.Task[Connection | str] | None = None
        self._is_closed = False

    @property
    def target(self) -> str:
        """See `Channel`."""
        return self._target

    async def connection(self) -> Connection:
        """One that takes calls. Raises `RpcError`."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        if self._is_closed:
            raise RpcError(code_pb2.UNAVAILABLE, "the channel is closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connection = await asyncio.shield(self._connecting)
        if isinstance(connection, str):
            raise RpcError(code_pb2.UNAVAILABLE, f"the worker cannot be reached: {connection}")
        return connection

    async def ask(
        self, method: str, request: Message, answer: type[Response], *, timeout_s: float
    ) -> Response:
        """See `Channel`."""
        return await answered(lambda again: self._ask(method, request, answer, timeout_s, again), timeout_s)

    async def _ask(
        self, method: str, request: Message, answer: type[Response], timeout_s: float, again: bool
    ) -> Response:
        answers: list[Response] = []
        ended: asyncio.Future[RpcError | None] = asyncio.get_running_loop().create_future()
        call = self.call(method, answer, answers.append, ended.set_result, timeout_s=timeout_s)
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

    def call(
        self,
        method: str,
        response: type[Response],
        on_message: Callable[[Response], None],
        on_end: Callable[[RpcError | None], None],
        *,
        timeout_s: float,
        metadata: Metadata = (),
    ) -> NativeCall[Response]:
        """See `Channel`."""
        return NativeCall(self, method, response, on_message, on_end, timeout_s=timeout_s, metadata=metadata)

    def hang_up(self) -> None:
        """See `Channel`."""
        for connection in list(self._open):
            connection.close()

    def close(self) -> None:
        """See `Channel`."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.hang_up()

    async def wait_closed(self) -> None:
        """See `Channel`."""
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)

    async def _connect(self) -> Connection | str:
        """A connection, or why there is none."""
        connection: Connection | None = None
        is_settled = False
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._reach()
                self._open.add(connection)
                is_settled = await connection.settled()
        except TimeoutError:
            return f"no answer within {CONNECT_TIMEOUT_S:g} s"
        except (OSError, UnicodeError) as error:  # the latter for names that can be nobody's
            return explain(error)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise  # whoever waits for it otherwise was not cancelled
        finally:
            self._connecting = None
            if connection is not None and not is_settled:
                connection.abort()
        if connection is None or not is_settled:
            return self._unsettled(connection)
        self._connection = connection
        return connection

    def _unsettled(self, connection: Connection | None) -> str:
        if connection is not None and connection.lost_by is not None:
            return explain(connection.lost_by)
        what = "hung up before it spoke HTTP/2"
        if self._tls is None:
            return f"it {what}; if it wants TLS, pass --worker-ca"
        if self._tls.certificate is None:
            return f"it {what}; if it wants a certificate, pass --worker-cert and --worker-cert-key"
        return f"it {what}; it may not know who signed the certificate of --worker-cert"

    async def _reach(self) -> Connection:
        loop, where = asyncio.get_running_loop(), self._where
        if where.path:
            return (await loop.create_unix_connection(self._make, where.path))[1]
        secured: dict[str, Any] = {}
        if self._tls is not None:
            secured = {
                "ssl": self._tls.context,
                "server_hostname": self._tls.name or where.host,
                "ssl_handshake_timeout": CONNECT_TIMEOUT_S,
            }
        _, connection = await loop.create_connection(
            self._make, where.host, where.port, happy_eyeballs_delay=NEXT_ADDRESS_S, **secured
        )
        if self._tls is not None and connection.spoken != ALPN:
            connection.abort()
            raise ConnectionError("it does not offer HTTP/2 over TLS (ALPN h2)")
        return connection

    def _make(self) -> Connection:
        return Connection(self._lost, self._byte_count)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection is self._connection:
            self._connection = None
            if not self._is_closed:
                self._on_lost()
