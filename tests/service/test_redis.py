"""Tests of connections to the shared queue in Redis."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from antiphon_service import redis
from antiphon_service.redis import (
    LIBRARY,
    MOST_CONNECTIONS,
    TIMEOUT_S,
    RedisAddress,
    RedisTls,
    RedisUnusable,
    call,
    connect,
    disconnect,
    parse,
    prefix,
    read_password,
    read_tls,
)
from tests.support.redis_server import INSTALLED, MISSING, RedisServer
from tests.ws_adapter.support.calls import Authority

LIBRARY_SOURCE = (
    f"#!lua name={LIBRARY}\n"
    f"redis.register_function('{LIBRARY}_echo', function(keys, args) return {{keys[1], args[1]}} end)"
)


@asynccontextmanager
async def client(
    url: str, *, tls: RedisTls | None = None, password: str | None = None
) -> AsyncIterator[Redis]:
    connected = connect(url, tls=tls, password=password)
    try:
        yield connected
    finally:
        await disconnect(connected)
        await disconnect(connected)


async def assert_refused(url: str, tls: RedisTls | None, match: str | None = None) -> None:
    """A client with these certificates gets no answer."""
    async with client(url, tls=tls) as connected:
        with pytest.raises((RedisError, OSError), match=match):
            await connected.ping()


@pytest.fixture
def closed_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server without rights for the default user; `worker` may call functions and subscribe."""
    if INSTALLED is None:
        pytest.skip(MISSING)
    server = RedisServer(
        tmp_path,
        "requirepass s3cr/t",
        "user worker on >p@ss ~antiphon:* &antiphon:* +fcall +subscribe +psubscribe",
    )
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://db.example", RedisAddress("redis", (("db.example", 6379),))),
        ("redis://db:7000/3", RedisAddress("redis", (("db", 7000),), db=3)),
        ("rediss://u:p%40ss@db:1", RedisAddress("rediss", (("db", 1),), user="u", password="p@ss")),
        ("redis://:p@[::1]:7", RedisAddress("redis", (("::1", 7),), password="p")),
        ("unix:///run/redis.sock", RedisAddress("unix", path="/run/redis.sock")),
        (
            "redis+sentinel://u:p@a:1,b/antiphon/2",
            RedisAddress("redis+sentinel", (("a", 1), ("b", 26379)), "antiphon", "", 2, "u", "p"),
        ),
        ("rediss+sentinel://a/x", RedisAddress("rediss+sentinel", (("a", 26379),), "x")),
    ],
)
def test_valid_addresses_are_parsed(url: str, address: RedisAddress) -> None:
    assert parse(url) == address


def test_other_addresses_are_refused_and_no_text_has_a_password() -> None:
    for url in (
        *("", "redis", "http://secret@db", "redis://", "redis://secret@db:port", "redis://db/one"),
        *("redis://a,b:secret@c,d/0", "redis+sentinel://:secret@db", "redis://db/0/1", "unix://secret"),
        *("redis://db?password=secret", "redis://u:sec#ret@db", "rediss://[::1", "redis://db:99999"),
    ):
        with pytest.raises(RedisUnusable) as refused:
            parse(url)
        assert "redis://host:6379/0" in str(refused.value), url
        assert "secret" not in str(refused.value)
    address = parse("redis+sentinel://user:hunter2@a:1,[::1]:2/main/3")
    assert str(address) == "redis+sentinel://user:***@a:1,[::1]:2/main/3"
    assert "hunter2" not in repr(address)


def test_missing_redis_package_error_names_install_command_without_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(RedisUnusable, match=r"pip install 'antiphon\[redis\]'") as refused:
        connect("redis://u:hunter2@db")
    assert "hunter2" not in str(refused.value)


def test_unusable_tls_and_password_files_are_refused(tmp_path: Path) -> None:
    missing, file, empty = tmp_path / "none.pem", tmp_path / "password", tmp_path / "empty"
    with pytest.raises(RedisUnusable, match=r"Cannot read .*none\.pem for TLS"):
        read_tls("rediss://db", missing, None, None)
    for ca, certificate in ((missing, None), (None, missing)):
        with pytest.raises(RedisUnusable, match="rediss://"):
            read_tls("redis://db", ca, certificate, certificate)
    assert read_tls("redis://db", None, None, None) is None

    file.write_text("p@ss word\n")
    empty.write_text("\n")
    assert read_password(file) == "p@ss word", "without its line end"
    assert read_password(None) is None
    for path, problem in ((empty, "is empty"), (missing, "No such file")):
        with pytest.raises(RedisUnusable, match=problem):
            read_password(path)


async def test_functions_are_called_by_socket_and_by_port(redis_server: RedisServer) -> None:
    for url in (redis_server.url, redis_server.tcp_url):
        async with client(url) as connected:
            await connected.function_load(LIBRARY_SOURCE, replace=True)
            assert await call(connected, "echo", prefix("p"), 7) == ["antiphon:{p}:", "7"]


async def test_worker_user_has_only_the_rights_of_a_worker(closed_server: RedisServer) -> None:
    port = closed_server.port
    async with client(f"redis://:s3cr%2Ft@127.0.0.1:{port}") as owner:
        await owner.function_load(LIBRARY_SOURCE)
    async with client(f"redis://worker:p%40ss@127.0.0.1:{port}") as worker:
        assert await call(worker, "echo", prefix("p"), 1) == ["antiphon:{p}:", "1"]
        with pytest.raises(NoPermissionError):
            await worker.get("x")
    async with client(f"redis://worker@127.0.0.1:{port}", password="p@ss") as worker:
        assert await call(worker, "echo", prefix("p"), 1) == ["antiphon:{p}:", "1"]
    async with client(f"redis://worker:hunter2@127.0.0.1:{port}") as worker:
        with pytest.raises((AuthenticationError, ResponseError)) as refused:
            await call(worker, "echo", prefix("p"))
    assert "hunter2" not in str(refused.value)


@dataclass
class TlsServer:
    """A Redis that speaks TLS and wants a client certificate, and what its clients need."""

    server: RedisServer
    authority: Authority

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.server.port}"

    def tls(self, authority: Authority | None = None) -> RedisTls:
        """Return a client's settings, with a new certificate by `authority`, by default the server's."""
        certificate = (authority or self.authority).issue("adapter", called="client")
        return RedisTls(self.authority.ca, *certificate)


def tls_settings(authority: Authority) -> list[str]:
    certificate, key = authority.issue()
    return [
        *(f"tls-cert-file {certificate}", f"tls-key-file {key}"),
        *("tls-auth-clients yes", f"tls-ca-cert-file {authority.ca}"),
    ]


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[TlsServer]:
    if INSTALLED is None:
        pytest.skip(MISSING)
    authority = Authority(tmp_path)
    server = RedisServer(tmp_path, *tls_settings(authority), tls=True)
    server.start()
    yield TlsServer(server, authority)
    server.stop()


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    """An authority that signed nothing of the server's."""
    return Authority(tmp_path / "other")


async def test_connection_with_a_certificate_of_the_authority_alone_is_served(
    tls_server: TlsServer, other: Authority
) -> None:
    async with client(tls_server.url, tls=tls_server.tls()) as connected:
        assert await connected.ping()
    for url, refused in (
        (tls_server.url, RedisTls(tls_server.authority.ca)),
        (tls_server.url, tls_server.tls(other)),
        (tls_server.url.replace("rediss", "redis"), None),
    ):
        await assert_refused(url, refused)


async def test_server_of_another_authority_is_refused(tls_server: TlsServer, other: Authority) -> None:
    certificate = tls_server.authority.issue("adapter", called="client")
    for ca in (other.ca, None):
        await assert_refused(tls_server.url, RedisTls(ca, *certificate), "CERTIFICATE_VERIFY_FAILED")


async def test_named_authority_replaces_those_of_the_system(
    tls_server: TlsServer, other: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: the holder of a public authority's certificate impersonates the Redis of a private one."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.authority.ca))
    certificate = tls_server.authority.issue("adapter", called="client")
    async with client(tls_server.url, tls=RedisTls(None, *certificate)) as connected:
        assert await connected.ping()
    await assert_refused(tls_server.url, RedisTls(other.ca, *certificate), "CERTIFICATE_VERIFY_FAILED")


async def test_replaced_certificate_is_shown_after_reload(tls_server: TlsServer, other: Authority) -> None:
    tls = tls_server.tls(other)
    async with client(tls_server.url, tls=tls) as connected:
        with pytest.raises((RedisError, OSError)):
            await connected.ping()
        for file in tls_server.authority.issue("adapter", called="client"):
            file.replace(other.folder / file.name)
        with pytest.raises((RedisError, OSError)):
            await connected.ping()
        tls.reload()
        assert await connected.ping()
        (other.folder / "client.pem").write_text("broken")
        with pytest.raises(RedisUnusable, match="Cannot use"):
            tls.reload()
        await connected.connection_pool.disconnect()
        assert await connected.ping()


@contextmanager
def sentinel_of(port: int, folder: Path, *settings: str, tls: bool = False) -> Iterator[int]:
    """Port of a sentinel that watches the master `main` at `port`."""
    sentinel = RedisServer(
        folder, *settings, f"sentinel monitor main 127.0.0.1 {port} 1", sentinel=True, tls=tls
    )
    sentinel.start()
    try:
        yield sentinel.port
    finally:
        sentinel.stop()


async def test_sentinel_leads_to_its_master(redis_server: RedisServer, tmp_path: Path) -> None:
    with sentinel_of(redis_server.port, tmp_path) as port:
        dead = _closed_port()
        async with client(f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{port}/main") as connected:
            await connected.set("here", "yes")
            assert await connected.get("here") == "yes"
        await assert_refused(f"redis+sentinel://127.0.0.1:{port}/other", None)
    assert redis_server.command("GET", "here").endswith(b"yes")


async def test_sentinel_and_its_master_are_reached_with_the_certificate(
    tls_server: TlsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = (*tls_settings(tls_server.authority), "tls-replication yes")
    folder = tmp_path_factory.mktemp("sentinel")
    with sentinel_of(tls_server.server.port, folder, *settings, tls=True) as port:
        url = f"rediss+sentinel://127.0.0.1:{port}/main"
        async with client(url, tls=tls_server.tls()) as connected:
            assert await connected.ping()
        await assert_refused(url, RedisTls(tls_server.authority.ca))


async def test_many_calls_at_once_share_few_connections(redis_server: RedisServer) -> None:
    async with client(redis_server.url) as connected:
        others = len(await connected.client_list())
        await asyncio.gather(*(connected.ping() for _ in range(4 * MOST_CONNECTIONS)))
        assert MOST_CONNECTIONS // 2 < len(await connected.client_list()) <= others + MOST_CONNECTIONS


async def test_exhausted_pool_waits_for_free_connection_until_timeout(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "MOST_CONNECTIONS", 1)
    with sentinel_of(redis_server.port, tmp_path) as port:
        for url in (redis_server.url, f"redis+sentinel://127.0.0.1:{port}/main"):
            async with client(url) as connected:
                pool: Any = connected.connection_pool
                assert pool.timeout == TIMEOUT_S
                async with connected.pubsub() as holder:
                    await holder.subscribe("news")
                    pool.timeout = 0.01
                    with pytest.raises(ConnectionError):
                        await connected.ping()
                    pool.timeout = 60
                    waiting = asyncio.create_task(connected.ping())
                    await asyncio.sleep(0)
                assert await waiting


async def test_unreachable_server_is_an_error_until_it_returns(redis_server: RedisServer) -> None:
    redis_server.pause()
    async with client(redis_server.url) as connected:
        with pytest.raises((RedisError, OSError)):
            await asyncio.wait_for(connected.ping(), 60)
    redis_server.resume()
    async with client(redis_server.tcp_url) as connected:
        await connected.set("a", "1")
        redis_server.stop()
        with pytest.raises((RedisError, OSError)):
            await connected.get("a")
        redis_server.start()
        assert await connected.get("a") == "1"


def _closed_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
