"""How the shared queue is reached."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from antiphon import redis
from antiphon.redis import (
    LIBRARY,
    MOST_CONNECTIONS,
    TIMEOUT_S,
    RedisAddress,
    RedisUnusable,
    call,
    connect,
    disconnect,
    parse,
    prefix,
)
from tests.support.redis_server import INSTALLED, MISSING, RedisServer

LIBRARY_SOURCE = (
    f"#!lua name={LIBRARY}\n"
    f"redis.register_function('{LIBRARY}_echo', function(keys, args) return {{keys[1], args[1]}} end)"
)


@asynccontextmanager
async def client(url: str, *, ca: Path | None = None, password: str | None = None) -> AsyncIterator[Redis]:
    connected = connect(url, ca=ca, password=password)
    try:
        yield connected
    finally:
        await disconnect(connected)
        await disconnect(connected)


@pytest.fixture
def closed_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that lets nobody in by default: `worker` may call functions and listen."""
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
def test_addresses_are_read(url: str, address: RedisAddress) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "redis", "http://secret@db", "redis://", "redis://secret@db:port", "redis://db/one"),
        *("redis://a,b:secret@c,d/0", "redis+sentinel://:secret@db", "redis://db/0/1", "unix://secret"),
        *("redis://db?password=secret", "redis://u:sec#ret@db", "rediss://[::1", "redis://db:99999"),
    ],
)
def test_other_addresses_are_refused_with_what_to_write_and_without_what_was_secret(url: str) -> None:
    with pytest.raises(RedisUnusable) as refused:
        parse(url)

    assert "redis://host:6379/0" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_text_of_an_address_has_no_password() -> None:
    address = parse("redis+sentinel://user:hunter2@a:1,[::1]:2/main/3")

    assert str(address) == "redis+sentinel://user:***@a:1,[::1]:2/main/3"
    assert "hunter2" not in repr(address)


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)

    with pytest.raises(RedisUnusable, match=r"pip install 'antiphon\[redis\]'") as refused:
        connect("redis://u:hunter2@db")

    assert "hunter2" not in str(refused.value)


def test_authorities_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RedisUnusable, match="there is no file"):
        connect("rediss://db", ca=tmp_path / "none.pem")
    with pytest.raises(RedisUnusable, match="rediss://"):
        connect("redis://db", ca=tmp_path / "none.pem")


async def test_functions_are_called_by_socket_and_by_port(redis_server: RedisServer) -> None:
    for url in (redis_server.url, redis_server.tcp_url):
        async with client(url) as connected:
            await connected.function_load(LIBRARY_SOURCE, replace=True)
            assert await call(connected, "echo", prefix("p"), 7) == ["antiphon:{p}:", "7"]


async def test_user_may_do_what_a_worker_does_and_nothing_else(closed_server: RedisServer) -> None:
    port = closed_server.port
    async with client(f"redis://:s3cr%2Ft@127.0.0.1:{port}") as owner:
        await owner.function_load(LIBRARY_SOURCE)
    async with client(f"redis://worker:p%40ss@127.0.0.1:{port}") as worker:
        assert await call(worker, "echo", prefix("p"), 1) == ["antiphon:{p}:", "1"]
        with pytest.raises(NoPermissionError):
            await worker.get("x")
    async with client(f"redis://worker@127.0.0.1:{port}", password="p@ss") as worker:
        assert await call(worker, "echo", prefix("p"), 1) == ["antiphon:{p}:", "1"]


async def test_wrong_password_is_an_error_without_it(closed_server: RedisServer) -> None:
    async with client(f"redis://worker:hunter2@127.0.0.1:{closed_server.port}") as worker:
        with pytest.raises((AuthenticationError, ResponseError)) as refused:
            await call(worker, "echo", prefix("p"))

    assert "hunter2" not in str(refused.value)


async def test_tls_is_checked_against_the_authorities_named(tmp_path: Path) -> None:
    if INSTALLED is None:
        pytest.skip(MISSING)
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(ours)
    trustme.CA().cert_pem.write_to_path(theirs)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    server = RedisServer(
        tmp_path,
        *(f"tls-cert-file {tmp_path}/cert.pem", f"tls-key-file {tmp_path}/key.pem"),
        *("tls-auth-clients no", f"tls-ca-cert-file {ours}"),
        tls=True,
    )
    server.start()
    try:
        url = f"rediss://127.0.0.1:{server.port}"
        async with client(url, ca=ours) as connected:
            assert await connected.ping()
        for ca in (theirs, None):
            async with client(url, ca=ca) as connected:
                with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
                    await connected.ping()
    finally:
        server.stop()


async def test_sentinel_leads_to_its_master(redis_server: RedisServer, tmp_path: Path) -> None:
    sentinel = RedisServer(tmp_path, f"sentinel monitor main 127.0.0.1 {redis_server.port} 1", sentinel=True)
    sentinel.start()
    try:
        dead = _closed_port()
        async with client(f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{sentinel.port}/main") as connected:
            await connected.set("here", "yes")
            assert await connected.get("here") == "yes"
        async with client(f"redis+sentinel://127.0.0.1:{sentinel.port}/other") as connected:
            with pytest.raises(RedisError):
                await connected.ping()
    finally:
        sentinel.stop()
    assert redis_server.command("GET", "here").endswith(b"yes")


async def test_many_calls_at_once_share_few_connections(redis_server: RedisServer) -> None:
    async with client(redis_server.url) as connected:
        others = len(await connected.client_list())
        await asyncio.gather(*(connected.ping() for _ in range(4 * MOST_CONNECTIONS)))
        assert MOST_CONNECTIONS // 2 < len(await connected.client_list()) <= others + MOST_CONNECTIONS


async def test_connection_that_is_free_is_waited_for_and_given_up(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "MOST_CONNECTIONS", 1)
    sentinel = RedisServer(tmp_path, f"sentinel monitor main 127.0.0.1 {redis_server.port} 1", sentinel=True)
    sentinel.start()
    try:
        for url in (redis_server.url, f"redis+sentinel://127.0.0.1:{sentinel.port}/main"):
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
    finally:
        sentinel.stop()


async def test_server_that_answers_nothing_is_given_up(redis_server: RedisServer) -> None:
    redis_server.pause()
    async with client(redis_server.url) as connected:
        with pytest.raises((RedisError, OSError)):
            await asyncio.wait_for(connected.ping(), 60)
    redis_server.resume()


async def test_server_that_is_away_is_an_error_at_once_and_found_again(redis_server: RedisServer) -> None:
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
