"""Crowds at the door: whoever comes too often, hangs in the handshake or floods us is in their own way only.

The attackers are 127.0.0.2, their neighbours 127.0.0.1.
"""

import asyncio
import logging
import math
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1.health_pb2 import HealthCheckRequest
from h2.errors import ErrorCodes

from inference_service.session.units import Stream
from inference_service.transport import budget, connection, door, origins
from inference_service.transport.budget import ARRIVAL, BYTE, CONTROL, FRAME, HANDSHAKE, MOST_A_CALL
from inference_service.transport.connection import CallerConnection
from inference_service.transport.door import Door
from inference_service.transport.health import WATCH
from inference_service.transport.server import most_calls
from tests.inference_service.support.caller import Caller, channel_to, soon, until
from tests.inference_service.support.raw_caller import (
    DATA,
    END_STREAM,
    GET_INFO,
    LOOPBACK,
    PING,
    PREFILL,
    PRIORITY,
    SESSION_PARTS,
    RawCaller,
    begin_session,
    dialled,
    frame,
    framed,
    greeted,
)
from tests.support.passing import Passing
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, running_worker

ATTACKER = "127.0.0.2"
SLOTS = 2
MOST = budget.MOST + MOST_A_CALL * most_calls(SLOTS)
"""What an origin may spend at once."""
PINGS = 200 * frame(PING, 0, 0, bytes(8))
PRIORITIES = 100 * frame(PRIORITY, 0, 3, bytes(5))
PRICE = 100 * (CONTROL + 14 * BYTE)
WATCHED = framed(HealthCheckRequest())

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
TRUSTING.set_alpn_protocols(["h2"])


@pytest.fixture(autouse=True)
def _nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A caller cannot make the worker log an error."""
    yield
    assert [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR] == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tls")
    issued = trustme.CA().issue_cert("localhost", "127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    return {"tls_cert": cert, "tls_key": key}


@pytest.fixture
def nothing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an origin has spent is spent."""
    monkeypatch.setattr(budget, "PER_S", 0.0)
    monkeypatch.setattr(budget, "PER_S_A_CALL", 0.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is cut for being slow to begin."""
    monkeypatch.setattr(connection, "GREETING_S", 1e6)


@asynccontextmanager
async def working(**options: Any) -> AsyncIterator[RunningWorker]:
    async with running_worker(ScriptedEngine(slots=SLOTS), slots=SLOTS, **options) as worker:
        yield worker


def door_of(worker: RunningWorker) -> Door:
    return worker.worker._server._door


def those_of(worker: RunningWorker, origin: str) -> list[CallerConnection]:
    """Connections, the oldest first."""
    return [each for each in door_of(worker).connections if each.origin.name == origin]


async def answered(raw: RawCaller) -> None:
    """A call is."""
    assert await raw.status(raw.ask(GET_INFO)) == "0"


@asynccontextmanager
async def silent(address: str, count: int) -> AsyncIterator[list[socket.socket]]:
    """Connections of the attacker that say nothing."""
    host, _, port = address.rpartition(":")
    socks: list[socket.socket] = []
    try:
        for _ in range(count):
            socks.append(sock := socket.socket())
            sock.bind((ATTACKER, 0))
            sock.setblocking(False)
            await soon(asyncio.get_running_loop().sock_connect(sock, (host, int(port))))
        yield socks
    finally:
        for sock in socks:
            sock.close()


def is_cut(sock: socket.socket) -> bool:
    """Whether the worker has hung up; it has said nothing, or its HTTP/2 settings."""
    try:
        while sock.recv(2**12):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


# -------------------------------------------------------------------------------- what an origin may spend


@pytest.mark.usefixtures("nothing_comes_back")
async def test_all_connections_of_one_origin_spend_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    obeyed: Counter[str] = Counter()
    obey = CallerConnection._control_received

    def counted(connection: CallerConnection, data: bytes) -> None:
        obey(connection, data)
        obeyed[connection.origin.name] += 1

    monkeypatch.setattr(CallerConnection, "_control_received", counted)
    async with AsyncExitStack() as stack, working() as worker:
        neighbour = await stack.enter_async_context(greeted(worker.address))
        crowd = [await stack.enter_async_context(greeted(worker.address, ATTACKER)) for _ in range(8)]
        for _ in range(int(MOST / PRICE / 4)):
            for raw in crowd:
                await raw.said(PRIORITIES)
        assert [await raw.over() for raw in crowd] == 8 * [ErrorCodes.ENHANCE_YOUR_CALM]
        assert obeyed[ATTACKER] <= MOST - 8 * ARRIVAL
        await answered(neighbour)


@pytest.mark.usefixtures("nothing_comes_back")
async def test_who_has_spent_all_is_hung_up_on_before_anything_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working() as worker, greeted(worker.address) as neighbour:
        affordable = int(MOST / ARRIVAL)
        async with silent(worker.address, affordable + 100) as socks:
            await until(lambda: sum(map(is_cut, socks)) == 100)
            assert len(those_of(worker, ATTACKER)) == affordable
            await answered(neighbour)
            async with greeted(worker.address) as newcomer:
                await answered(newcomer)
        turned_away = [each for each in caplog.messages if "callers are turned away or hung up on" in each]
        assert len(turned_away) == 1, "of many at once one line of the log tells"


async def test_sessions_live_on_what_they_need_when_others_of_their_origin_have_left_nothing(
    monkeypatch: pytest.MonkeyPatch, passing: Passing
) -> None:
    async with AsyncExitStack() as stack, working() as worker:
        talker, idle, flooder = [
            await stack.enter_async_context(greeted(worker.address, ATTACKER)) for _ in range(3)
        ]
        await begin_session(talker, *SESSION_PARTS)
        passing(4.0)  # which they save for
        origin = those_of(worker, ATTACKER)[0].origin
        monkeypatch.setattr(origin.budget, "spend", lambda *_: False)
        await flooder.said(PINGS)
        assert await flooder.over() == ErrorCodes.ENHANCE_YOUR_CALM
        async with dialled(worker.address, source=ATTACKER) as newcomer:
            assert await newcomer.over() is None
        for raw in (talker, idle):
            raw.say(10 * frame(PING, 0, 0, bytes(8)))
            await raw.reached()
            assert not raw.is_over
        talker.say(int(12 / FRAME) * frame(PING, 0, 0, bytes(8)))
        await talker.reached()
        assert not talker.is_over


@pytest.mark.usefixtures("nothing_comes_back")
async def test_sessions_that_have_begun_took_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come and go on one connection, one after another."""
    monkeypatch.setattr(budget, "MOST", 250.0)
    monkeypatch.setattr(budget, "MOST_A_CALL", 0.0)
    async with working() as worker, channel_to(worker.address) as channel:
        for _ in range(100):
            caller = await Caller(channel).open()
            (connection,) = those_of(worker, LOOPBACK)
            await caller.configure()
            await caller.half_close(*Stream)
            assert (await caller.end()).code is grpc.StatusCode.OK
        assert those_of(worker, LOOPBACK) == [connection]


# ---------------------------------------------------------------------------------- who has to make room


@pytest.mark.parametrize("watches", [False, True], ids=["idle", "watching"])
async def test_a_flood_of_connections_pushes_out_its_own(
    monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 8)
    async with AsyncExitStack() as stack, working() as worker:

        async def another(origin: str) -> RawCaller:
            return await stack.enter_async_context(greeted(worker.address, origin))

        adapter = await another("127.0.0.1")
        for _ in range(30):
            raw = await another(ATTACKER)
            if watches:
                number = raw.call(WATCH)
                raw.say(frame(DATA, END_STREAM, number, WATCHED))
                await raw.begun(number)
        assert len(door_of(worker).connections) == 8
        newcomer = await another("127.0.0.3")
        await another(ATTACKER)
        for neighbour in (adapter, newcomer):
            await answered(neighbour)


async def test_who_has_many_sessions_is_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway with a connection for each of them keeps its next one before a crowd that holds nothing."""
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 4)
    async with AsyncExitStack() as stack, working() as worker:

        async def another(origin: str) -> RawCaller:
            return await stack.enter_async_context(greeted(worker.address, origin))

        gateway = [await another("127.0.0.1") for _ in range(3)]
        for raw, path in zip(gateway[:2], SESSION_PARTS, strict=False):
            await begin_session(raw, path)
        for _ in range(5):
            await another(ATTACKER)
        await answered(gateway[2])


async def test_a_door_full_of_sessions_is_shut_to_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 1)
    async with working() as worker, greeted(worker.address) as talker:
        await begin_session(talker, PREFILL)
        async with dialled(worker.address, source=ATTACKER) as newcomer:
            assert await newcomer.over() is None
        assert not talker.is_over


# ------------------------------------------------------------------------------------------- the handshake


@pytest.mark.usefixtures("patient")
async def test_thousands_of_half_open_handshakes_push_out_their_own(
    monkeypatch: pytest.MonkeyPatch, certificate: dict[str, Any]
) -> None:
    monkeypatch.setattr(budget, "MOST", math.inf)
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 64)
    async with working(**certificate) as worker, dialled(worker.address, TRUSTING) as adapter:
        adapter.greet()
        await adapter.reached()
        async with silent(worker.address, 2000) as socks:
            await until(lambda: sum(map(is_cut, socks)) == 2000 - 63)
            await answered(adapter)
            async with dialled(worker.address, TRUSTING) as newcomer:
                newcomer.greet()
                await answered(newcomer)
            assert len(door_of(worker).connections) <= 64
        await until(lambda: len(door_of(worker).connections) == 1)


@pytest.mark.usefixtures("nothing_comes_back")
async def test_handshakes_in_a_loop_are_over_when_their_origin_has_spent_all(
    certificate: dict[str, Any],
) -> None:
    async with working(**certificate) as worker, dialled(worker.address, TRUSTING) as neighbour:
        neighbour.greet()
        affordable = int(MOST / (ARRIVAL + HANDSHAKE))
        ended = 0
        for _ in range(2 * affordable):
            try:
                async with dialled(worker.address, TRUSTING, source=ATTACKER):
                    ended += 1
            except (OSError, EOFError):
                pass
            await answered(neighbour)
        assert ended == affordable
        async with dialled(worker.address, TRUSTING) as newcomer:
            newcomer.greet()
            await answered(newcomer)


@pytest.mark.usefixtures("patient")
async def test_handshakes_of_one_origin_take_turns(
    monkeypatch: pytest.MonkeyPatch, certificate: dict[str, Any]
) -> None:
    loop = asyncio.get_running_loop()
    begun: list[str] = []
    shake = loop.connect_accepted_socket

    async def counted(protocol: Any, sock: socket.socket, **how: Any) -> Any:
        begun.append(sock.getpeername()[0])
        return await shake(protocol, sock, **how)

    async with working(**certificate) as worker:
        monkeypatch.setattr(loop, "connect_accepted_socket", counted)
        async with silent(worker.address, origins.MOST_ENTERING + 4) as socks:
            await until(lambda: len(door_of(worker).connections) == len(socks))
            async with dialled(worker.address, TRUSTING) as newcomer:
                newcomer.greet()
                await answered(newcomer)
            assert Counter(begun) == {ATTACKER: origins.MOST_ENTERING, "127.0.0.1": 1}
            for sock in socks[:4]:
                sock.close()
            await until(lambda: Counter(begun)[ATTACKER] == len(socks))
            late = asyncio.create_task(_come_in(worker.address))
            await until(lambda: len(those_of(worker, ATTACKER)) == origins.MOST_ENTERING + 1)
            assert not late.done()
            socks[4].close()
            await soon(late)


async def _come_in(address: str) -> None:
    async with dialled(address, TRUSTING, source=ATTACKER) as raw:
        raw.greet()
        await answered(raw)


async def test_nobody_waits_for_a_turn_for_ever(
    monkeypatch: pytest.MonkeyPatch, certificate: dict[str, Any]
) -> None:
    monkeypatch.setattr(connection, "GREETING_S", 0.3)
    monkeypatch.setattr(origins, "MOST_ENTERING", 1)
    async with working(**certificate) as worker:
        async with silent(worker.address, 20) as socks:
            await until(lambda: all(map(is_cut, socks)))
        await until(lambda: not door_of(worker).connections)


@pytest.mark.usefixtures("patient")
async def test_who_waits_for_a_turn_and_has_to_make_room_goes_at_once(
    monkeypatch: pytest.MonkeyPatch, certificate: dict[str, Any]
) -> None:
    monkeypatch.setattr(origins, "MOST_ENTERING", 1)
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 4)
    async with working(**certificate) as worker:
        before = _descriptors()
        async with silent(worker.address, 20) as socks:
            await until(lambda: sum(map(is_cut, socks)) == 16)
            await until(lambda: _descriptors() <= before + 20 + 4)


def _descriptors() -> int:
    """How many are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("patient")
async def test_a_worker_that_stops_waits_for_no_handshake(certificate: dict[str, Any]) -> None:
    async with working(**certificate) as worker:
        async with silent(worker.address, origins.MOST_ENTERING + 4) as socks:
            await until(lambda: len(door_of(worker).connections) == len(socks))
            await soon(worker.worker._server.stop(1e6))
            await until(lambda: all(map(is_cut, socks)))


# -------------------------------------------------------------------------------------------------- limits


async def test_without_descriptors_nobody_comes_in_for_a_while(passing: Passing) -> None:
    async with working() as worker, greeted(worker.address) as neighbour:
        host, _, port = worker.address.rpartition(":")
        with closing(socket.socket()) as caller:
            caller.setblocking(False)
            with _no_descriptor_left():
                caller.connect_ex((host, int(port)))
                await answered(neighbour)
                await answered(neighbour)
                assert len(door_of(worker).connections) == 1
            passing(door._PAUSE_S)
            await until(lambda: len(door_of(worker).connections) == 2)


@contextmanager
def _no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = Path("/dev/null").open("rb").fileno()  # noqa: SIM115 (closed at once)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
