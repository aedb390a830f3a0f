"""Attacks on the worker's gRPC port: floods, broken HTTP/2, connections that stall. Neighbours go on."""

import logging
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from h2.errors import ErrorCodes

from tests.inference_service.support.caller import Caller, channel_to, until, until_free
from tests.inference_service.support.raw_caller import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GET_INFO,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PREFILL,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SESSION,
    SESSION_PARTS,
    SETTINGS,
    WINDOW_UPDATE,
    RawCaller,
    begin_session,
    dialled,
    frame,
    greeted,
    opened,
    reset,
    settings,
)
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, running_worker, speak

SLOTS = 4
ROUNDS = 20
"""Repetitions of a flood, unless the worker disconnects it first."""


class SessionEffects:
    """A worker under attack, and a neighbour in conversation."""

    def __init__(self, worker: RunningWorker, neighbour: Caller) -> None:
        self.address = worker.address
        self._neighbour = neighbour
        self._unit = 0

    async def talk(self) -> None:
        """Let the neighbour send a unit and hear the whole answer."""
        self._unit += 1
        answers = await self._neighbour.unit(self._unit)
        assert answers.samples == 24_000


@asynccontextmanager
async def attacked() -> AsyncIterator[SessionEffects]:
    """A worker whose neighbour talks before and after; then all other slots are free again."""
    engine = ScriptedEngine(speak("word"), repeat=True, slots=SLOTS)
    async with running_worker(engine, slots=SLOTS) as worker, channel_to(worker.address) as channel:
        neighbour = await Caller(channel).ready()
        world = SessionEffects(worker, neighbour)
        await world.talk()
        yield world
        await world.talk()
        await until_free(worker.address, SLOTS - 1)


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A caller cannot make the worker log an error."""
    yield
    assert [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR] == []


Flood = Callable[[RawCaller], bytes]

BOTH = END_HEADERS | END_STREAM
MANY_SETTINGS = frame(SETTINGS, 0, 0, b"".join(struct.pack("!HL", 0x1000 + i, i) for i in range(2700)))


def _rapid_resets(raw: RawCaller) -> bytes:
    """Calls that are cancelled as soon as they are begun."""
    found = b""
    for _ in range(100):
        number = raw.next_number()
        found += frame(HEADERS, END_HEADERS, number, raw.head(PREFILL, SESSION)) + reset(number)
    return found


def _calls(raw: RawCaller, path: str, **changed: str) -> bytes:
    return b"".join(frame(HEADERS, BOTH, raw.next_number(), raw.head(path, **changed)) for _ in range(100))


FLOODS: dict[str, Flood] = {
    "pings": lambda _: 1000 * frame(PING, 0, 0, bytes(8)),
    "ping acks": lambda _: 1000 * frame(PING, ACK, 0, bytes(8)),
    "settings": lambda _: 1000 * settings(),
    "changing settings": lambda _: 500 * (settings(window=1, table=0) + settings(window=2, table=1)),
    "many settings in one frame": lambda _: MANY_SETTINGS,
    "settings acks": lambda _: 1000 * frame(SETTINGS, ACK, 0),
    "empty DATA": lambda _: 5000 * frame(DATA, 0, 1),
    "DATA for unknown streams": lambda _: 5000 * frame(DATA, 0, 4711, b"?"),
    "connection windows": lambda _: 5000 * opened(0, 1),
    "stream windows": lambda _: 5000 * opened(1, 1),
    "priorities": lambda _: 1000 * frame(PRIORITY, 0, 3, bytes(5)),
    "unknown frames": lambda _: 1000 * frame(0x42, 0, 0),
    "GOAWAYs": lambda _: 1000 * frame(GOAWAY, 0, 0, bytes(8)),
    "resets of unknown streams": lambda _: 1000 * reset(4711),
    "rapid resets": _rapid_resets,
    "unknown methods": lambda raw: _calls(raw, "/nothing"),
    "other HTTP methods": lambda raw: _calls(raw, GET_INFO, pseudo_method="GET"),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_flood_leaves_neighbours_and_slots_alone(name: str) -> None:
    async with attacked() as world, greeted(world.address) as raw:
        await begin_session(raw, PREFILL)
        for _ in range(ROUNDS):
            if raw.is_over:
                break
            await raw.said(FLOODS[name](raw))
            await world.talk()
        async with greeted(world.address) as newcomer:
            assert await newcomer.status(newcomer.ask(GET_INFO)) == "0"


async def test_keepalive_pings_beyond_the_enforced_rate_close_the_connection() -> None:
    async with attacked() as world, greeted(world.address) as raw:
        while not raw.is_over:
            await raw.reached()
        assert raw.goaway_code == ErrorCodes.ENHANCE_YOUR_CALM


def _bomb(raw: RawCaller) -> bytes:
    """A header of 3 KiB, and 60 times one byte that stands for it."""
    raw.encoder.header_table_size = 4096
    block = raw.head(GET_INFO, ("bomb", "x" * 3000))
    return frame(HEADERS, BOTH, raw.next_number(), block + bytes([0x80 | 62]) * 60)


def _ask(raw: RawCaller, number: int) -> bytes:
    return frame(HEADERS, BOTH, number, raw.head(GET_INFO))


def _pieces(raw: RawCaller, block: bytes, size: int) -> bytes:
    """Headers over as many frames as they need."""
    number = raw.next_number()
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    flags = [0] * (len(parts) - 1) + [END_HEADERS]
    return frame(HEADERS, END_STREAM, number, parts[0]) + b"".join(
        frame(CONTINUATION, flag, number, part) for flag, part in zip(flags[1:], parts[1:], strict=True)
    )


BROKEN_FRAMES: dict[str, Flood] = {
    "too long": lambda _: (2**20).to_bytes(3) + struct.pack("!BBL", DATA, 0, 1),
    "no room for padding": lambda _: frame(DATA, PADDED, 1),
    "more padding than DATA": lambda _: frame(DATA, PADDED, 1, b"\5abc"),
    "no HPACK": lambda _: frame(HEADERS, BOTH, 3, b"\xff" * 20),
    "HPACK bomb": _bomb,
    "headers over 64 KiB": lambda raw: _pieces(raw, b"\x40\x01a\x01b" * 13_200, 2**14),
    "settings between headers": lambda _: frame(HEADERS, 0, 3) + settings(),
    "CONTINUATION of nothing": lambda _: frame(CONTINUATION, END_HEADERS, 1),
    "settings of one byte": lambda _: frame(SETTINGS, 0, 0, b"x"),
    "window of 2 GiB": lambda _: settings(window=2**31),
    "ping of 7 bytes": lambda _: frame(PING, 0, 0, bytes(7)),
    "reset of 3 bytes": lambda _: frame(RST_STREAM, 0, 1, bytes(3)),
    "window opened by 3 bytes": lambda _: frame(WINDOW_UPDATE, 0, 0, bytes(3)),
    "overflowing window": lambda _: opened(0, 2**31 - 1),
    "GOAWAY of 7 bytes": lambda _: frame(GOAWAY, 0, 0, bytes(7)),
    "promise": lambda _: frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)),
    "even stream number": lambda raw: _ask(raw, 2),
    "DATA after the end": lambda _: frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"more"),
    "more DATA than the window": lambda _: 9 * frame(DATA, 0, 1, bytes(2**14)),
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
async def test_broken_frame_leaves_neighbours_and_slots_alone(name: str) -> None:
    async with attacked() as world:
        async with greeted(world.address) as raw:
            await begin_session(raw, *SESSION_PARTS[:2])
            await raw.said(BROKEN_FRAMES[name](raw))
            await world.talk()
        await until_free(world.address, SLOTS - 1)


@pytest.mark.parametrize("begins", [b"", PREFACE[:10]], ids=["nothing", "half-a-preface"])
async def test_connection_that_never_begins_is_closed(monkeypatch: pytest.MonkeyPatch, begins: bytes) -> None:
    monkeypatch.setattr("inference_service.rpc.server.HANDSHAKE_S", 0.2)
    async with attacked() as world, dialled(world.address) as raw:
        raw.say(begins)
        await until(lambda: raw.is_over)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.1\r\n"],
    ids=["http-1.1", "tls", "http-2.1"],
)
async def test_other_protocols_are_disconnected(words: bytes) -> None:
    async with attacked() as world, dialled(world.address) as raw:
        raw.say(words)
        await until(lambda: raw.is_over)


async def test_connections_beyond_the_bound_are_closed_and_sessions_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inference_service.rpc.server.MAX_CONNECTIONS", 8)
    async with attacked() as world, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(dialled(world.address)) for _ in range(40)]
        for raw in crowd:
            raw.greet()
        await until(lambda: sum(raw.is_over for raw in crowd) >= 40 - 8)
        await world.talk()
