"""gRPC's own server for the adapter's calls, with any function behind it, plain or with TLS."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import trustme

from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.dialler import Dial, dialler
from ws_adapter.worker.transport.rpc import RpcError
from ws_adapter.worker.transport.tls import WorkerTls

Handle = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]


class Authority:
    """Signs certificates for workers and adapters, and writes them as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self, *names: str, called: str = "worker", not_after: datetime | None = None
    ) -> tuple[Path, Path]:
        """A new certificate for `names` with a new key, in the same two files for each `called`."""
        issued = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1", "::1")),
            not_before=datetime(2020, 1, 1, tzinfo=UTC) if not_after else None,
            not_after=not_after,
        )
        certificate, key = self.folder / f"{called}.pem", self.folder / f"{called}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def expired(self) -> tuple[Path, Path]:
        """Issue a certificate that expired yesterday."""
        return self.issue(not_after=datetime.now(UTC) - timedelta(days=1))

    def shown(self, *, asks: bool = False, files: tuple[Path, Path] | None = None) -> grpc.ServerCredentials:
        """Return a server's credentials; if it `asks`, clients have to show theirs."""
        certificate, key = files or self.issue()
        pair = (key.read_bytes(), certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes() if asks else None, asks)

    def context(self, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return the same for asyncio's servers, without ALPN."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*(files or self.issue()))
        return context

    def tls(self, *, shows: bool = False) -> WorkerTls:
        """Return the adapter's TLS settings, with a client certificate if it `shows` one."""
        return WorkerTls(self.ca, *(self.issue("adapter.test", called="adapter") if shows else ()))


class Server(grpc.GenericRpcHandler):
    """Serves every call with one function of bytes."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.handle)


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


@asynccontextmanager
async def serving(
    handle: Handle = echo,
    listen: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
    *options: tuple[str, int],
) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
    """A server that listens, and its port."""
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0), *options]
    )
    server.add_generic_rpc_handlers((Server(handle),))
    if credentials is None:
        port = server.add_insecure_port(listen)
    else:
        port = server.add_secure_port(listen, credentials)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)


@asynccontextmanager
async def closing(channel: Channel) -> AsyncIterator[Channel]:
    """Yield a channel that is closed at the end of the block."""
    try:
        yield channel
    finally:
        channel.close()
        await channel.wait_closed()


class Way:
    """The connection to a worker: `tcp`, `unix` or `tls`."""

    def __init__(self, over: str, folder: Path) -> None:
        self.over = over
        self.folder = folder
        self.target = ""
        self.credentials: grpc.ServerCredentials | None = None

    def dial(self, tls: WorkerTls | None = None) -> Dial:
        return dialler(tls)

    @asynccontextmanager
    async def served(
        self, handle: Handle, *options: tuple[str, int], on_lost: Callable[[], None] = lambda: None
    ) -> AsyncIterator[tuple[Channel, grpc.aio.Server]]:
        """Yield a channel and its server; over TLS both show a certificate."""
        authority = Authority(self.folder) if self.over == "tls" else None
        self.credentials = authority.shown(asks=True) if authority else None
        self.target = f"unix:{self.folder / 'socket'}" if self.over == "unix" else "127.0.0.1:0"
        async with serving(handle, self.target, self.credentials, *options) as (server, port):
            if self.over != "unix":
                self.target = f"127.0.0.1:{port}"
            dial = self.dial(authority.tls(shows=True) if authority else None)
            async with closing(dial(self.target, on_lost)) as channel:
                yield channel, server

    def again(self, handle: Handle) -> AbstractAsyncContextManager[tuple[grpc.aio.Server, int]]:
        """Start another server at the address of the last one."""
        return serving(handle, self.target, self.credentials)


class Caller:
    """One call and what became of it. Its messages are PrefillRequests both ways."""

    def __init__(self, channel: Channel, timeout_s: float = 30.0) -> None:
        self.heard: list[pb.PrefillRequest] = []
        self.ends: list[RpcError | None] = []
        self.call = channel.call(
            "Any", pb.PrefillRequest, self.heard.append, self.ends.append, timeout_s=timeout_s
        )

    async def start(self) -> "Caller":
        await self.call.start()
        return self

    async def answered(self, size: int = 1) -> "Caller":
        """Start, and wait for the answer to a first message."""
        await self.start()
        self.call.write(message(1, size))
        await until(lambda: self.heard)
        return self

    async def failure(self) -> RpcError:
        """Return the error with which the call ends."""
        error = await self.end()
        assert error is not None
        return error

    async def end(self) -> RpcError | None:
        await until(lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]


def message(unit: int, size: int) -> pb.PrefillRequest:
    """A message with `size` bytes of audio."""
    request = pb.PrefillRequest(unit=unit)
    request.duplex.audio.data = (unit % 251).to_bytes() * size
    return request


async def ask(channel: Channel, unit: int = 1, timeout_s: float = 30.0) -> None:
    """Ask a question that is echoed."""
    question = message(unit, 3)
    assert await channel.ask("Any", question, pb.PrefillRequest, timeout_s=timeout_s) == question
