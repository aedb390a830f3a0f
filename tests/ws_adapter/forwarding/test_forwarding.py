"""Two adapters on one Redis: a client that lost its connection comes back at the one without its session."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine, hang, listen, running_worker, speak
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.resume.test_resuming import (
    OPENERS,
    assert_alike,
    detached,
    ended,
    lose_and_resume,
    refusal,
    refused,
    target_of,
    told,
    url_of,
)
from tests.ws_adapter.support.backend import age, until_told
from tests.ws_adapter.support.calls import Authority
from tests.ws_adapter.support.conversation import CLOSE, INIT, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Client, Stage, running_adapter, until
from tests.ws_adapter.web.test_http1 import HANDSHAKE
from ws_adapter.access.signing_keys import parse_signing_keys
from ws_adapter.forwarding import forwarder, relay
from ws_adapter.forwarding.introduction import CHALLENGE_BYTES, Introductions
from ws_adapter.resume.tokens import ResumeTokens
from ws_adapter.server import listener

KEY = b"0123456789abcdef0123456789abcdef"
FORWARDING: dict[str, Any] = {"client_secret_key": KEY, "admin_port": 0, "resume_window_s": 60}

pytestmark = pytest.mark.usefixtures("patient_peers")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline strikes because the machine is slow."""
    monkeypatch.setattr(forwarder, "REACH_S", PATIENCE_S)
    monkeypatch.setattr(relay, "FIRST_ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(listener, "OPEN_TIMEOUT_S", PATIENCE_S)


@dataclass
class Pair:
    """Two adapters with the same workers: `owner` has the sessions, `other` is where clients come back."""

    owner: Stage
    other: Stage
    folder: Path
    engine: ScriptedEngine

    @property
    def socket(self) -> Path:
        """Return the path of the socket on which the owner takes forwarded connections."""
        return self.folder / "owner.sock"


@asynccontextmanager
async def pair(
    server: RedisServer,
    folder: Path,
    engine: ScriptedEngine | None = None,
    owner: dict[str, Any] | None = None,
    other: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """Two adapters with these options, and with those of each; without them they listen on Unix sockets."""
    age(server)
    engine = engine or ScriptedEngine(listen(), slots=2)
    options = {"dispatcher": server.url, **FORWARDING, **options}
    first, second = (
        given or {"peer_listen": f"unix:{folder / name}.sock"}
        for name, given in (("owner", owner), ("other", other))
    )
    async with (
        running_worker(engine, slots=engine.slots, dispatcher=server.url),
        running_adapter(**options, **first) as stage,
        running_adapter(**options, **second) as other_stage,
    ):
        yield Pair(stage, other_stage, folder, engine)


def certified(authority: Authority, name: str) -> dict[str, Any]:
    """Options of an adapter that listens with TLS."""
    certificate, key = authority.issue(called=name)
    files = {"peer_ca": authority.ca, "peer_cert": certificate, "peer_cert_key": key}
    return {"peer_listen": "127.0.0.1:0", **files}


async def begin(client: Client) -> tuple[str, int]:
    """Begin a session, which may have to wait a moment for its slot; return its token and event number."""
    await client.expect_until("session.queue_done")
    await client.send({**INIT, "payload": {}})
    created = await client.expect("session.created")
    return created["resume"]["token"], len(client.events)


async def forwarded(stage: Stage) -> float:
    """How many connections an adapter has forwarded."""
    return (await told(stage)).value("antiphon_resumes_total", outcome="forwarded") or 0.0


async def lost_session(two: Pair) -> tuple[str, int]:
    """The token of a session that lost its connection, and the number of its last event."""
    async with two.owner.client() as client:
        lost = await begin(client)
        client.vanish()
    await detached(two.owner)
    return lost


@pytest.mark.parametrize("path", OPENERS)
async def test_missed_events_come_once_and_in_order_at_the_other_adapter(
    path: str, redis_server: RedisServer, folder: Path
) -> None:
    engine = ScriptedEngine(listen(), hang("generate"), speak("word"))
    async with pair(redis_server, folder, engine) as two:
        await lose_and_resume(engine, path, two.owner, two.other)
        assert await forwarded(two.other) == 1
        assert await forwarded(two.owner) == 0
        assert (await told(two.owner)).value("antiphon_resumes_total", outcome="resumed") == 1


async def test_forwarded_connection_that_is_lost_is_resumed_at_either_adapter(
    redis_server: RedisServer, folder: Path
) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await lost_session(two)
        for stage in (two.other, two.other, two.owner, two.other):
            await detached(two.owner)
            async with stage.client(url_of(stage, token, seen)) as client:
                token = (await client.expect("session.resumed"))["resume"]["token"]
                await client.send(append())
                await client.expect("listen")
                seen += 1
                client.vanish()
        assert list(two.engine.session.heard) == [1, 2, 3, 4]
        assert await forwarded(two.other) == 3


async def test_connection_that_takes_over_at_the_other_adapter_closes_the_first(
    redis_server: RedisServer, folder: Path
) -> None:
    async with pair(redis_server, folder) as two, two.owner.client() as first:
        token, seen = await begin(first)
        async with two.other.client(url_of(two.other, token, seen)) as second:
            await second.expect("session.resumed")
            assert await first.end() == ([], 4001)
            await second.send(append())
            await second.expect("listen")
            await second.send(CLOSE)
            events, code = await second.end()
            assert ([event["type"] for event in events], code) == (["session.closed"], 1000)
        await until(lambda: two.engine.session.is_closed)


async def test_end_of_the_forwarding_adapter_loses_a_connection_and_no_session(
    redis_server: RedisServer, folder: Path
) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await lost_session(two)
        async with two.other.client(url_of(two.other, token, seen)) as client:
            token = (await client.expect("session.resumed"))["resume"]["token"]
            two.other.adapter.interrupt()
            two.other.adapter.interrupt()
            assert await client.end() == ([], 1006)
        await detached(two.owner)
        async with two.owner.client(url_of(two.owner, token, seen)) as client:
            await client.expect("session.resumed")
            await client.send(append())
            await client.expect("listen")


async def test_adapters_on_two_machines_speak_tls_with_certificates_of_both(
    redis_server: RedisServer, folder: Path
) -> None:
    authority = Authority(folder / "tls")
    owner, other = certified(authority, "owner"), certified(authority, "other")
    async with pair(redis_server, folder, owner=owner, other=other) as two:
        token, seen = await lost_session(two)
        async with two.other.client(url_of(two.other, token, seen)) as client:
            await client.expect("session.resumed")
            await client.send(append(4.0))
            await client.expect(*["listen"] * 4)


async def test_key_behind_a_forwarded_connection_is_looked_at_and_counted_once(
    redis_server: RedisServer, folder: Path
) -> None:
    keys = KeyFile(folder / "keys", "alice", "bob")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "connections_per_key": 1}
    alice, bob = ({"additional_headers": keys.bearer(name)} for name in ("alice", "bob"))
    async with pair(redis_server, folder, **options) as two:
        async with two.owner.client(**alice) as client:
            token, seen = await begin(client)
            client.vanish()
        url = url_of(two.other, token, seen)
        assert await refused(two.other, url, **bob) == ("resume_failed", 1008)
        assert (await refused_upgrade(two.other, target_of(token, seen))).status_code == 401
        async with two.other.client(url, **alice) as client:
            await client.expect("session.resumed")
            for stage in (two.owner, two.other):
                assert (await refused_upgrade(stage, **alice)).status_code == 429
            await client.send(CLOSE)
            await client.rest()
        await until(lambda: two.engine.session.is_closed)

        async def is_let_in() -> bool:
            try:
                async with two.other.client(**alice):
                    return True
            except InvalidStatus:
                return False

        await until_told(is_let_in)


async def test_attempts_over_the_other_adapter_count_for_the_address_of_the_client(
    redis_server: RedisServer, folder: Path
) -> None:
    options: dict[str, Any] = {"trusted_proxies": ("127.0.0.0/8",), "opens_per_min_per_address": 1}
    async with pair(redis_server, folder, **options) as two:
        first, second = (
            {"additional_headers": {"X-Forwarded-For": f"203.0.113.{number}"}} for number in (5, 6)
        )
        async with two.owner.client(**first) as client:
            token, seen = await begin(client)
            client.vanish()
        full = await refused_upgrade(two.other, target_of(token, seen), **first)
        assert full.status_code == 429
        async with two.other.client(url_of(two.other, token, seen), **second) as client:
            await client.expect("session.resumed")


@pytest.mark.parametrize("fault", ["closes", "silent", "no adapter"])
async def test_unreachable_owner_gives_service_unavailable_and_token_stays_valid(
    fault: str, redis_server: RedisServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "silent":
        monkeypatch.setattr(forwarder, "REACH_S", 0.2)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if fault == "no adapter":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        if fault == "silent":
            await reader.read()
        writer.close()

    async with pair(redis_server, folder) as two:
        token, seen = await lost_session(two)
        hidden = folder / "hidden.sock"
        two.socket.rename(hidden)
        server = await asyncio.start_unix_server(answer, two.socket)
        event, code = await refusal(two.other, url_of(two.other, token, seen))
        assert (event["error"]["code"], code) == ("service_unavailable", 1013)
        assert "same token" in event["error"]["message"]
        server.close()
        two.socket.unlink(missing_ok=True)
        hidden.rename(two.socket)
        async with two.other.client(url_of(two.other, token, seen)) as client:
            await client.expect("session.resumed")


async def test_owner_without_listening_socket_gives_resume_failed(
    redis_server: RedisServer, folder: Path
) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await lost_session(two)
        two.socket.rename(folder / "hidden.sock")
        assert await refused(two.other, url_of(two.other, token, seen)) == ("resume_failed", 1008)


async def test_owner_with_a_certificate_of_another_authority_is_not_reached(
    redis_server: RedisServer, folder: Path
) -> None:
    owner = certified(Authority(folder / "ours"), "owner")
    other = certified(Authority(folder / "theirs"), "other")
    async with pair(redis_server, folder, owner=owner, other=other) as two:
        token, seen = await lost_session(two)
        assert await refused(two.other, url_of(two.other, token, seen)) == ("service_unavailable", 1013)


async def test_tokens_that_lead_nowhere_are_refused_alike_at_both_adapters(
    redis_server: RedisServer, folder: Path
) -> None:
    """Gone with its adapter, ended, used, forged: in these the other adapter answers as the owner does."""
    async with pair(redis_server, folder) as two:
        closed = await ended(two.owner)
        used, seen = await lost_session(two)
        async with two.other.client(url_of(two.other, used, seen)) as client:
            token = (await client.expect("session.resumed"))["resume"]["token"]
            await client.send(append())
            await client.expect("listen")
            gone, _ = ResumeTokens(parse_signing_keys(KEY, ""), "000000000000").make("sess_1", bytes(16))
            forged = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")

            answers = [
                await refusal(stage, url_of(stage, value, seen))
                for stage in (two.owner, two.other)
                for value in (closed, used, gone, forged)
            ]

            assert_alike(answers)
            await client.send(append())
            await client.expect("listen")


async def test_forwarded_connection_is_not_forwarded_again(redis_server: RedisServer, folder: Path) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await lost_session(two)
        reader, writer = await asyncio.open_unix_connection(folder / "other.sock")
        async with asyncio.timeout(PATIENCE_S):
            challenge = await reader.readexactly(CHALLENGE_BYTES)
            writer.write(Introductions(parse_signing_keys(KEY, "")).introduce(challenge, "127.0.0.1"))
            target = target_of(token, seen).encode()
            writer.write(HANDSHAKE.replace(b"/v1/realtime?mode=audio", target) + b"\r\n")
            answer = await reader.readuntil(b"resume_failed")
        assert answer.startswith(b"HTTP/1.1 101 ")
        writer.transport.abort()
        assert await forwarded(two.other) == 0
        async with two.other.client(url_of(two.other, token, seen)) as client:
            await client.expect("session.resumed")


async def test_connection_without_an_introduction_is_cut_and_the_socket_is_of_this_user_alone(
    redis_server: RedisServer, folder: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(folder / "owner.sock"))
    async with pair(redis_server, folder) as two:
        assert os.stat(two.socket).st_mode & 0o777 == 0o600
        for sends in (b"fw_AAAA\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 400):
            reader, writer = await asyncio.open_unix_connection(two.socket)
            writer.write(sends)
            async with asyncio.timeout(PATIENCE_S):
                with suppress(ConnectionResetError):
                    assert len(await reader.read()) == CHALLENGE_BYTES
            writer.transport.abort()
    assert not two.socket.exists()


async def test_resume_over_forwarding_limit_gives_service_unavailable(
    redis_server: RedisServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(redis_server, folder) as two:
        lost = [await lost_session(two)]
        async with two.owner.client() as client:
            lost.append(await begin(client))
            client.vanish()
        monkeypatch.setattr(forwarder, "MOST_FORWARDED", 1)
        async with two.other.client(url_of(two.other, *lost[0])) as client:
            await client.expect("session.resumed")
            assert await refused(two.other, url_of(two.other, *lost[1])) == ("service_unavailable", 1013)
