"""TLS to workers: what is refused, in which words, and certificates that are replaced."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import pytest

from tests.ws_adapter.support.calls import Authority, Caller, Way, ask, closing, echo, message, serving
from tests.ws_adapter.support.stage import until
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.worker.transport import channel as transport
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import RpcError
from ws_adapter.worker.transport.tls import WorkerTls


@pytest.fixture
def way(tmp_path: Path) -> Way:
    return Way("tls", tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "stranger")


def dialled(way: Way, target: str, tls: WorkerTls | None) -> AbstractAsyncContextManager[Channel]:
    return closing(way.dial(tls)(target, lambda: None))


@pytest.mark.parametrize(
    ("host", "shows"), [("127.0.0.1", False), ("127.0.0.1", True), ("[::1]", False), ("localhost", False)]
)
async def test_names_that_are_in_the_certificate(
    way: Way, authority: Authority, host: str, shows: bool
) -> None:
    """Also where both sides show one."""
    async with serving(echo, f"{host}:0", authority.shown(asks=shows)) as (_, port):
        async with dialled(way, f"{host}:{port}", authority.tls(shows=shows)) as channel:
            await ask(channel)


async def test_certificate_is_checked_for_the_name_that_is_given(way: Way, authority: Authority) -> None:
    shown = authority.shown(files=authority.issue("workers.test"))
    async with serving(credentials=shown) as (_, port):
        async with dialled(way, f"127.0.0.1:{port}", WorkerTls(authority.ca, name="workers.test")) as channel:
            await ask(channel)
        async with dialled(way, f"127.0.0.1:{port}", WorkerTls(authority.ca, name="redis.test")) as channel:
            with pytest.raises(RpcError, match="UNAVAILABLE"):
                await ask(channel)


UNREACHABLE = "UNAVAILABLE: the worker cannot be reached: "


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("name", f"{UNREACHABLE}its certificate is not accepted: it is not valid for this name"),
        ("expired", f"{UNREACHABLE}its certificate is not accepted: certificate has expired"),
        ("asks", f"{UNREACHABLE}it closed the connection; if it wants a certificate, pass --worker-cert"),
        ("plain", f"{UNREACHABLE}TLS failed: it does not speak TLS"),
        ("authority", "UNAVAILABLE: .*(certificate|CERTIFICATE)"),
        ("own authority", "UNAVAILABLE: .*authority that signed --worker-cert"),
        ("own plain", "UNAVAILABLE: .*if it wants TLS, pass --worker-ca"),
    ],
)
async def test_workers_that_are_not_trusted_or_do_not_trust(
    way: Way, authority: Authority, stranger: Authority, fault: str, text: str
) -> None:
    shown: grpc.ServerCredentials | None = authority.shown(asks="asks" in fault or fault == "own authority")
    tls: WorkerTls | None = authority.tls()
    match fault:
        case "name":
            shown = authority.shown(files=authority.issue("other.test"))
        case "expired":
            shown = authority.shown(files=authority.expired())
        case "plain":
            shown = None
        case "authority":
            shown = stranger.shown()
        case "own authority":
            tls = WorkerTls(authority.ca, *stranger.issue("adapter.test", called="adapter"))
        case "own plain":
            tls = None
    async with serving(credentials=shown) as (_, port), dialled(way, f"127.0.0.1:{port}", tls) as channel:
        with pytest.raises(RpcError, match=text):
            await ask(channel)


async def test_a_server_that_offers_no_http2(way: Way, authority: Authority) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0, ssl=authority.context())
    port = server.sockets[0].getsockname()[1]
    async with dialled(way, f"127.0.0.1:{port}", authority.tls()) as channel:
        with pytest.raises(RpcError, match=r"UNAVAILABLE: .*(ALPN|alpn)"):
            await ask(channel)
    server.close()


async def test_a_handshake_that_hangs_has_a_deadline(
    way: Way, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.5)
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with dialled(way, f"127.0.0.1:{port}", authority.tls()) as channel:
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await ask(channel)
    server.close()
    for writer in held:
        writer.close()


@pytest.mark.parametrize("politely", [True, False])
async def test_a_connection_that_ends_in_the_middle(way: Way, authority: Authority, politely: bool) -> None:
    """A relay that opens TLS on both sides, and ends it with or without a word."""
    cut: list[Callable[[], None]] = []
    async with serving() as (_, behind):

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner = await asyncio.open_connection("127.0.0.1", behind)
            cut.append(lambda: end(writer, politely))
            await asyncio.gather(pump(reader, inner), pump(inner_reader, writer))

        context = authority.context()
        context.set_alpn_protocols(["h2"])
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with dialled(way, f"127.0.0.1:{port}", authority.tls()) as channel:
            caller = await Caller(channel).answered(200_000)
            cut[0]()
            await caller.failure()
            await ask(channel)  # over another connection
        server.close()


def end(writer: asyncio.StreamWriter, politely: bool) -> None:
    if politely:
        writer.close()
    asyncio.get_running_loop().call_soon(writer.transport.abort)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def test_certificates_count_for_the_next_connection(
    way: Way, authority: Authority, tmp_path: Path
) -> None:
    tls = authority.tls(shows=True)
    async with serving(credentials=authority.shown(asks=True)) as (server, port):
        target = f"127.0.0.1:{port}"
        async with dialled(way, target, tls) as channel:
            caller = await Caller(channel).start()
            newer = Authority(tmp_path)  # in the same files
            newer.issue("adapter.test", called="adapter")
            tls.reload()
            caller.call.write(message(1, 1))
            await until(lambda: caller.heard)
            await ask(channel)  # a connection that stands keeps what it has
            await server.stop(None)
            await caller.end()
            async with serving(echo, target, newer.shown(asks=True)):
                await ask(channel)


def test_unusable_files_leave_the_old_ones(authority: Authority, tmp_path: Path) -> None:
    tls = authority.tls(shows=True)
    before = tls.credentials
    (tmp_path / "adapter.key").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"adapter.pem with the key .*adapter.key for TLS"):
        tls.reload()
    (tmp_path / "ca.pem").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"ca.pem as an authority for TLS"):
        tls.reload()
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(ConfigurationError, match=r"Cannot read .*ca.pem for TLS: No such file or directory."):
        tls.reload()
    assert tls.credentials is before


async def test_unix_socket_with_tls_configured_stays_plain(authority: Authority, tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/socket"
    async with serving(echo, target), closing(Channel(target, tls=authority.tls())) as channel:
        await ask(channel)
