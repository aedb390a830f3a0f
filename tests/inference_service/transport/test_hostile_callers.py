"""Callers that flood, stall, lie about HTTP/2 or speak something else: their neighbours notice nothing."""

import asyncio
import logging
import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme
from grpc_health.v1.health_pb2 import HealthCheckRequest
from h2.errors import ErrorCodes

from antiphon.http2 import keepalive
from antiphon.http2.connection import HANG_UP_S
from antiphon.http2.control import FEW_STREAMS, MAX_FRAME
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.transport import budget, connection, door
from inference_service.transport.connection import GREETING_S, STREAM_WINDOW, CallerConnection
from inference_service.transport.health import WATCH
from tests.inference_service.support.caller import Caller, channel_to, duplex, soon, until, until_free
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
    answers_in,
    begin_session,
    begin_unit,
    dialled,
    frame,
    framed,
    greeted,
    opened,
    reset,
    settings,
)
from tests.support.passing import Passing
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, running_worker, speak

SLOTS = 4
MOST_CALLS = 4 * SLOTS + 16


class World:
    """A worker under attack, and a neighbour who talks."""

    def __init__(self, worker: RunningWorker, engine: ScriptedEngine, neighbour: Caller) -> None:
        self.address = worker.address
        self.engine = engine
        self._worker = worker
        self._neighbour = neighbour
        self._unit = 0

    @property
    def connections(self) -> list[CallerConnection]:
        """What the worker has of them, the neighbour's first."""
        return list(self._worker.worker._server._door.connections)

    async def talk(self) -> None:
        """A unit of the neighbour."""
        self._unit += 1
        answers = await self._neighbour.unit(self._unit)
        assert answers.samples == 24_000


@asynccontextmanager
async def attacked() -> AsyncIterator[World]:
    """A worker with a neighbour who has talked before and talks afterwards, when all slots are free again."""
    engine = ScriptedEngine(speak("word"), repeat=True, slots=SLOTS)
    async with running_worker(engine, slots=SLOTS) as worker, channel_to(worker.address) as channel:
        neighbour = await Caller(channel).open()
        await neighbour.configure()
        world = World(worker, engine, neighbour)
        await world.talk()
        yield world
        await world.talk()
        await until_free(worker.address, SLOTS - 1)


@pytest.fixture(autouse=True)
def _nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A caller cannot make the worker log an error."""
    yield
    assert [each for each in caplog.get_records("call") if each.levelno >= logging.ERROR] == []


# ------------------------------------------------------------------------------------------ the greeting


@pytest.mark.parametrize("begins", [b"", PREFACE[:10]], ids=["nothing", "half-a-preface"])
async def test_who_does_not_begin_is_cut_off(passing: Passing, begins: bytes) -> None:
    async with attacked() as world, dialled(world.address) as raw:
        raw.say(begins)
        await until(lambda: len(world.connections) == 2)
        await world.talk()
        assert not raw.is_over
        passing(GREETING_S)
        assert await raw.over() is None
        await until(lambda: len(world.connections) == 1)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.1\r\n"],
    ids=["http-1.1", "tls", "http-2.1"],
)
async def test_who_speaks_something_else_is_cut_off_at_once(words: bytes) -> None:
    async with attacked() as world, dialled(world.address) as raw:
        raw.say(words)
        assert await raw.over() is None
        await until(lambda: len(world.connections) == 1)


async def test_a_preface_in_single_bytes_is_a_preface() -> None:
    async with attacked() as world, dialled(world.address) as raw:
        for byte in PREFACE + settings():
            await raw.said(bytes([byte]))
            await asyncio.sleep(0)
        assert await raw.status(raw.ask(GET_INFO)) == "0"


# ------------------------------------------------------------------------------------------------- floods

Flood = Callable[[RawCaller], bytes]

MANY_SETTINGS = frame(SETTINGS, 0, 0, b"".join(struct.pack("!HL", 0x1000 + i, i) for i in range(5400)))


def _resets(raw: RawCaller) -> bytes:
    """Calls that are given up as soon as they are begun."""
    found = b""
    for _ in range(100):
        number = raw.next_number()
        found += frame(HEADERS, END_HEADERS, number, raw.head(PREFILL, SESSION)) + reset(number)
    return found


def _unknown_methods(raw: RawCaller) -> bytes:
    flags = END_HEADERS | END_STREAM
    return b"".join(frame(HEADERS, flags, raw.next_number(), raw.head("/nothing")) for _ in range(100))


def _no_requests(raw: RawCaller) -> bytes:
    flags = END_HEADERS | END_STREAM
    return b"".join(
        frame(HEADERS, flags, raw.next_number(), raw.head(GET_INFO, pseudo_method="GET")) for _ in range(100)
    )


FLOODS: dict[str, Flood] = {
    "pings": lambda _: 1000 * frame(PING, 0, 0, bytes(8)),
    "answers to pings": lambda _: 1000 * frame(PING, ACK, 0, bytes(8)),
    "settings": lambda _: 1000 * settings(),
    "settings that change": lambda _: 500 * (settings(window=1, table=0) + settings(window=2, table=1)),
    "settings of 5400 values": lambda _: MANY_SETTINGS,
    "settings acknowledged": lambda _: 1000 * frame(SETTINGS, ACK, 0),
    "empty DATA": lambda _: 5000 * frame(DATA, 0, 1),
    "DATA of one byte": lambda _: 5000 * frame(DATA, 0, 1, b"\0"),
    "padding": lambda _: 5000 * frame(DATA, PADDED, 1, b"\1\0"),
    "DATA to nobody": lambda _: 5000 * frame(DATA, 0, 4711, b"?"),
    "windows": lambda _: 5000 * opened(0, 1),
    "windows of streams": lambda _: 5000 * opened(1, 1),
    "priorities": lambda _: 1000 * frame(PRIORITY, 0, 3, bytes(5)),
    "unknown frames": lambda _: 1000 * frame(0x42, 0, 0),
    "large unknown frames": lambda _: frame(0x42, 0, 0, bytes(2**15 - 9)),
    "farewells": lambda _: 1000 * frame(GOAWAY, 0, 0, bytes(8)),
    "resets of nobody": lambda _: 1000 * reset(4711),
    "calls given up at once": _resets,
    "calls of unknown methods": _unknown_methods,
    "requests that are no calls": _no_requests,
}


async def test_floods_end_with_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(budget, "MOST", 0.0)
    monkeypatch.setattr(door, "SILENCE_S", 0.0)
    async with attacked() as world:
        for number, flood in enumerate(FLOODS.values()):
            caplog.clear()
            async with greeted(world.address, f"127.0.1.{number}") as raw:
                await begin_session(raw, PREFILL)
                talking = asyncio.create_task(world.talk())
                while not raw.is_over:
                    await raw.said(flood(raw))
                await soon(talking)
            await until(lambda: "a caller sends too many frames" in caplog.text)
            await until_free(world.address, SLOTS - 1)


async def test_single_bytes_cost_what_frames_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame each of whose bytes comes alone wakes the worker as often as a flood of small ones."""
    woken = 0
    read = CallerConnection.buffer_updated

    def counted(connection: CallerConnection, size: int) -> None:
        nonlocal woken
        woken += size == 1
        read(connection, size)

    monkeypatch.setattr(CallerConnection, "buffer_updated", counted)
    monkeypatch.setattr(budget, "MOST", 50.0)
    for name in ("PER_S", "MOST_A_CALL", "PER_S_A_CALL"):
        monkeypatch.setattr(budget, name, 0.0)
    async with attacked() as world, greeted(world.address, "127.0.1.1") as raw:
        for byte in frame(0x42, 0, 0, bytes(5000)):
            came = woken
            raw.say(bytes([byte]))
            while woken == came and not raw.is_over:  # noqa: ASYNC110 (nobody announces it)
                await asyncio.sleep(0)
            if raw.is_over:
                break
        assert await raw.over() == ErrorCodes.ENHANCE_YOUR_CALM
        assert woken <= 50.0 / budget.FRAME


async def test_others_have_their_turn_in_the_middle_of_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    read, obey = CallerConnection.buffer_updated, CallerConnection._control_received

    def counted_read(connection: CallerConnection, size: int) -> None:
        turns.append(0)
        read(connection, size)

    def counted(connection: CallerConnection, data: bytes) -> None:
        turns[-1] += 1
        obey(connection, data)

    monkeypatch.setattr(CallerConnection, "buffer_updated", counted_read)
    monkeypatch.setattr(CallerConnection, "_control_received", counted)
    async with attacked() as world, greeted(world.address) as raw:
        await raw.said(500 * frame(PRIORITY, 0, 3, bytes(5)))
        await until(lambda: sum(turns) >= 500)
        assert max(turns) <= budget.TURN
        assert await raw.status(raw.ask(GET_INFO)) == "0"


async def test_who_never_reads_is_cut_off_when_so_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST", math.inf)
    monkeypatch.setattr(connection, "_MOST_UNREAD", 2**17)
    async with attacked() as world, greeted(world.address) as raw:
        await begin_session(raw, PREFILL)
        transport = world.connections[-1]._transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        raw.stop_reading()
        largest = 0
        while len(world.connections) == 2:
            await asyncio.wait(
                {asyncio.create_task(raw.said(1000 * frame(PING, 0, 0, bytes(8))))}, timeout=0.01
            )
            largest = max(largest, transport.get_write_buffer_size())
        assert largest < 2**17 + 2**18


# ------------------------------------------------------------------------------------- broken connections

SOUND = END_HEADERS | END_STREAM
NOT_CALM, TOO_LONG, BROKEN, OVERFLOW, CLOSED = (
    ErrorCodes.ENHANCE_YOUR_CALM,
    ErrorCodes.FRAME_SIZE_ERROR,
    ErrorCodes.PROTOCOL_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR,
    ErrorCodes.STREAM_CLOSED,
)


def _head_of(size: int, kind: int) -> bytes:
    """The first nine bytes of a frame."""
    return size.to_bytes(3) + struct.pack("!BBL", kind, 0, 1)


def _bomb(raw: RawCaller) -> bytes:
    """A header of 3 KiB, and 60 times one byte that stands for it."""
    raw.encoder.header_table_size = 4096
    block = raw.head(GET_INFO, ("bomb", "x" * 3000))
    return frame(HEADERS, SOUND, raw.next_number(), block + bytes([0x80 | 62]) * 60)


BROKEN_RULES: list[tuple[str, ErrorCodes, Flood]] = [
    ("a frame longer than allowed", TOO_LONG, lambda _: _head_of(MAX_FRAME + 1, DATA)),
    ("a long frame of another kind", NOT_CALM, lambda _: frame(0x42, 0, 0, bytes(2**15))),
    ("no room for padding", BROKEN, lambda _: frame(DATA, PADDED, 1)),
    ("more padding than DATA", BROKEN, lambda _: frame(DATA, PADDED, 1, b"\5abc")),
    ("more padding than HEADERS", BROKEN, lambda _: frame(HEADERS, SOUND | PADDED, 3, b"\5abc")),
    ("no HPACK", BROKEN, lambda _: frame(HEADERS, SOUND, 3, b"\xff" * 20)),
    ("an HPACK bomb", NOT_CALM, _bomb),
    ("a table that is too large", BROKEN, lambda _: frame(HEADERS, SOUND, 3, b"\x3f\xe2\x1f")),
    ("headers over 64 KiB", NOT_CALM, lambda raw: _pieces(raw, b"\x40\x01a\x01b" * 13_200, 2**14)),
    ("headers that never end", NOT_CALM, lambda _: _head_of(0, HEADERS) + 3 * frame(9, 0, 1, bytes(2**14))),
    ("headers in nothing", BROKEN, lambda _: frame(HEADERS, 0, 3) + 100 * frame(CONTINUATION, 0, 3)),
    ("settings between headers", BROKEN, lambda _: frame(HEADERS, 0, 3) + settings()),
    ("a CONTINUATION of nothing", BROKEN, lambda _: frame(CONTINUATION, END_HEADERS, 1)),
    ("settings of one byte", TOO_LONG, lambda _: frame(SETTINGS, 0, 0, b"x")),
    ("settings of a stream", BROKEN, lambda _: frame(SETTINGS, 0, 1)),
    ("a window of 2 GiB", OVERFLOW, lambda _: settings(window=2**31)),
    ("frames of 100 bytes", BROKEN, lambda _: settings(frame=100)),
    ("a ping of 7 bytes", TOO_LONG, lambda _: frame(PING, 0, 0, bytes(7))),
    ("a ping of a stream", BROKEN, lambda _: frame(PING, 0, 1, bytes(8))),
    ("a reset of 3 bytes", TOO_LONG, lambda _: frame(RST_STREAM, 0, 1, bytes(3))),
    ("a reset of the connection", BROKEN, lambda _: reset(0)),
    ("a window opened by nothing", BROKEN, lambda _: opened(0, 0)),
    ("a window opened by 3 bytes", TOO_LONG, lambda _: frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    ("a window that overflows", OVERFLOW, lambda _: opened(0, 2**31 - 1)),
    ("a window of a stream that overflows", OVERFLOW, lambda _: opened(1, 2**31 - 1)),
    ("a farewell of 7 bytes", TOO_LONG, lambda _: frame(GOAWAY, 0, 0, bytes(7))),
    ("a promise", BROKEN, lambda _: frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4))),
    ("a stream of ours", BROKEN, lambda raw: _ask(raw, 2)),
    ("a stream of before", BROKEN, lambda raw: _ask(raw, 4711) + _ask(raw, 5)),
    ("a stream that depends on itself", BROKEN, lambda _: frame(PRIORITY, 0, 3, struct.pack("!LB", 3, 0))),
    ("trailers that do not end", BROKEN, lambda _: frame(HEADERS, END_HEADERS, 1, b"\0\1x\1y")),
    ("DATA after the end", CLOSED, lambda _: frame(DATA, END_STREAM, 1) + frame(DATA, 0, 1, b"more")),
    ("two ends", CLOSED, lambda _: 2 * frame(DATA, END_STREAM, 1)),
    ("more than was asked for", OVERFLOW, lambda _: (STREAM_WINDOW // 99 + 1) * frame(DATA, 0, 1, bytes(99))),
]  # fmt: skip


def _ask(raw: RawCaller, number: int) -> bytes:
    """The headers of a whole call."""
    return frame(HEADERS, SOUND, number, raw.head(GET_INFO))


def _pieces(raw: RawCaller, block: bytes, size: int) -> bytes:
    """Headers over as many frames as they need."""
    number = raw.next_number()
    parts = [block[at : at + size] for at in range(0, len(block), size)]
    flags = [0] * (len(parts) - 1) + [END_HEADERS]
    return frame(HEADERS, END_STREAM, number, parts[0]) + b"".join(
        frame(CONTINUATION, flag, number, part) for flag, part in zip(flags[1:], parts[1:], strict=True)
    )


async def test_who_breaks_the_rules_is_told_how_and_hung_up_on() -> None:
    async with attacked() as world:
        for name, code, words in BROKEN_RULES:
            async with greeted(world.address) as raw:
                await begin_session(raw, *SESSION_PARTS[:2])
                await raw.said(words(raw))
                await world.talk()
                assert (name, await raw.over()) == (name, code)
            await until_free(world.address, SLOTS - 1)


ODDITIES: dict[str, Flood] = {
    "an unknown frame": lambda _: frame(0x42, 0xFF, 0, b"what?"),
    "an unknown frame of a stream": lambda _: frame(0x42, 0xFF, 1, b"what?"),
    "an unknown setting": lambda _: frame(SETTINGS, 0, 0, struct.pack("!HL", 0x4242, 1)),
    "a window twice": lambda _: frame(SETTINGS, 0, 0, 2 * struct.pack("!HL", 4, 2**17)),
    "a priority": lambda _: frame(PRIORITY, 0, 4711, bytes(5)),
    "a ping that was not asked for": lambda _: frame(PING, ACK, 0, bytes(8)),
    "settings that were not sent": lambda _: 3 * frame(SETTINGS, ACK, 0),
    "reserved bits": lambda _: frame(PING, 0, 2**31, bytes(8)) + opened(2**31, 2**31 + 1),
    "a reset of a stream that is not there": lambda _: reset(4711),
    "a reset of a stream of ours": lambda _: reset(2),
    "a window of a stream that is not there": lambda _: opened(4711, 1),
    "DATA of a stream that is not there": lambda _: frame(DATA, END_STREAM, 4711, b"lost"),
    "a reset of a stream that is over": lambda _: reset(1),
    "a window of a stream that is over": lambda _: opened(1, 1),
    "DATA of a stream that is over": lambda _: frame(DATA, END_STREAM, 1, b"late"),
    "padding": lambda raw: frame(HEADERS, SOUND | PADDED, raw.next_number(), b"\1" + raw.head("/x") + b"x"),
}  # fmt: skip


async def test_oddities_cost_nobody_anything() -> None:
    """Each twice: while streams that are over are remembered, and when they are forgotten."""
    async with attacked() as world, greeted(world.address) as raw:
        for _ in range(2):
            assert await raw.status(raw.ask(GET_INFO)) == "0"
            for name, words in ODDITIES.items():
                raw.say(words(raw))
                assert (name, await raw.status(raw.ask(GET_INFO))) == (name, "0")
            for _ in range(8):
                numbers = [raw.ask(GET_INFO) for _ in range(FEW_STREAMS // 4)]
                assert {await raw.status(number) for number in numbers} == {"0"}
        await world.talk()
        assert not raw.is_over


# --------------------------------------------------------------------------------------- what is bounded


async def test_what_a_call_sends_before_its_session_is_there_fits_into_a_window() -> None:
    async with attacked() as world, greeted(world.address) as raw:
        (number,) = await begin_session(raw, PREFILL)
        config = framed(pb.PrefillRequest(config=pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)))
        unit = framed(pb.PrefillRequest(unit=1, duplex=duplex()))
        room = STREAM_WINDOW - len(config) - len(unit)
        raw.say(*(frame(DATA, 0, number, data) for data in (config, unit, b"\0" + room.to_bytes(4))))
        raw.say(*(frame(DATA, 0, number, bytes(size)) for size in (100_000, room - 100_005)))
        await raw.reached()
        await world.talk()
        assert not _opened(raw, number)
        (call,) = world.connections[-1]._streams.values()
        assert len(call._held) == STREAM_WINDOW

        await begin_session(raw, *SESSION_PARTS[1:])
        await until(lambda: world.engine.session.given)
        await until(lambda: _opened(raw, number))
        assert not call._held


@pytest.mark.parametrize("part", range(3))
async def test_what_was_sent_before_the_session_was_whole_may_end_it(part: int) -> None:
    async with attacked() as world, greeted(world.address) as raw:
        numbers = [raw.call(path, SESSION) for path in SESSION_PARTS[:2]]
        for number in numbers[:part]:
            raw.say(frame(DATA, 0, number, framed(b"\xff")))
        numbers.append(raw.call(SESSION_PARTS[2], SESSION))
        raw.say(frame(DATA, 0, numbers[2], framed(b"\xff")))
        assert len({await raw.status(number) for number in numbers}) == 1


def _opened(raw: RawCaller, number: int) -> bool:
    """Whether the worker has given more room to a call."""
    return any(kind == WINDOW_UPDATE and each == number for kind, _, each, _ in raw.frames)


async def test_a_call_more_than_allowed_is_refused_and_the_others_go_on() -> None:
    async with attacked() as world, greeted(world.address) as raw:
        numbers = [raw.call(GET_INFO) for _ in range(MOST_CALLS)]
        refused = [raw.call(GET_INFO, end=end) for end in (False, True)]
        assert [await raw.status(number) for number in refused] == ["reset", "reset"]
        assert {raw.resets[number] for number in refused} == {ErrorCodes.REFUSED_STREAM}
        raw.say(*(frame(DATA, END_STREAM, number, framed()) for number in numbers[1:]))
        assert {await raw.status(number) for number in numbers[1:]} == {"0"}
        assert await raw.status(raw.ask(GET_INFO)) == "0"
        raw.say(reset(numbers[0]))
        again = [raw.ask(GET_INFO) for _ in range(MOST_CALLS)]
        assert {await raw.status(number) for number in again} == {"0"}


async def test_a_connection_too_many_costs_one_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 4)
    watch = framed(HealthCheckRequest())
    async with AsyncExitStack() as stack, attacked() as world:

        async def another() -> RawCaller:
            return await stack.enter_async_context(greeted(world.address))

        talker, watcher, idle = [await another() for _ in range(3)]
        await begin_session(talker, PREFILL)
        watching = watcher.call(WATCH)
        watcher.say(frame(DATA, END_STREAM, watching, watch))
        await watcher.begun(watching)
        newer = await another()
        await idle.over()
        for raw in (talker, watcher, newer):
            await raw.reached()
        await begin_session(newer, SESSION_PARTS[1])
        await another()
        await watcher.over()
        await begin_session(await another(), SESSION_PARTS[2])
        async with dialled(world.address) as turned_away:
            await turned_away.over()
        assert len(world.connections) == 4
        await world.talk()
        talker.say(reset(1))


async def test_nothing_is_left_of_thousands_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST", math.inf)
    async with attacked() as world, greeted(world.address) as raw:
        raw.say(opened(0, 2**30))
        mine = world.connections[-1]
        h2 = mine._control._h2
        for turn in range(200):
            numbers = [raw.ask(GET_INFO) for _ in range(4)]
            numbers += [raw.call(path, end=turn % 2 == 0) for path in ("/nothing", PREFILL)]
            given_up = raw.call(GET_INFO)
            raw.say(reset(given_up))
            for number in numbers:
                await raw.status(number)
            assert len(h2.streams) <= 2 * FEW_STREAMS
        await raw.reached()
        assert not mine._streams
        assert not mine._blocked
        assert not mine._parts
        assert len(h2._closed_streams) <= h2.MAX_CLOSED_STREAMS


async def test_a_frozen_caller_is_noticed(passing: Passing) -> None:
    async with attacked() as world, greeted(world.address) as raw:
        await begin_session(raw, PREFILL)
        raw.answers_pings = False
        passing(keepalive.KEEPALIVE_S)
        await until(lambda: any(each[:2] == (PING, 0) for each in raw.frames))
        await world.talk()
        passing(keepalive.KEEPALIVE_TIMEOUT_S)
        assert await raw.over() is None
        await until_free(world.address, SLOTS - 1)


async def test_last_words_that_nobody_reads_are_not_waited_for_long(
    passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MOST", math.inf)
    async with attacked() as world, greeted(world.address) as raw:
        for path in SESSION_PARTS[:2]:
            await raw.begun(raw.call(path, SESSION, ("grpc-timeout", "1S")))
        mine = world.connections[-1]
        assert mine._transport is not None
        mine._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        raw.stop_reading()
        while mine._transport.get_write_buffer_size() < 2**15:
            await raw.said(1000 * frame(PING, 0, 0, bytes(8)))
        raw.say(frame(DATA, PADDED, 1))
        await until(lambda: mine.lost_by is not None)
        assert mine in world.connections
        passing(1.0)
        await until(lambda: not mine._streams)
        assert mine in world.connections
        passing(HANG_UP_S)
        await until(lambda: mine not in world.connections)


async def test_a_caller_who_leaves_is_answered_what_it_has_asked_and_no_more() -> None:
    async with attacked() as world, greeted(world.address) as raw:
        number = raw.call(GET_INFO)
        raw.say(frame(GOAWAY, 0, 0, bytes(8)))
        assert await raw.status(raw.ask(GET_INFO)) == "reset"
        await world.talk()
        raw.say(frame(DATA, END_STREAM, number, framed()))
        assert await raw.status(number) == "0"
        assert await raw.over() == ErrorCodes.NO_ERROR


# ------------------------------------------------------------------------------------------------ windows


async def test_windows_that_shrink_below_nothing_and_grow_again() -> None:
    async with attacked() as world, greeted(world.address, window=1000) as raw:
        number = await begin_unit(raw)
        await until(lambda: len(raw.body[number]) == 1000)
        for words, size in (
            (settings(window=100), 1000),  # 900 too many
            (opened(number, 800), 1000),
            (opened(number, 150), 1050),
            (settings(window=0), 1050),
            (settings(window=300), 1250),
            (opened(number, 0x7FFF_FFFF - 300), 65_535 - _others(raw, number)),
        ):
            await raw.said(words)
            await raw.reached()
            assert len(raw.body[number]) == size
        await world.talk()
        raw.say(opened(0, 2**20))
        await until(lambda: any(each.HasField("done") for each in answers_in(raw.body[number])))
        assert sum(len(each.audio.data) for each in answers_in(raw.body[number])) == 24_000 * 4


def _others(raw: RawCaller, number: int) -> int:
    """Bytes of all streams but one."""
    return sum(len(body) for each, body in raw.body.items() if each != number)


async def test_frames_are_as_large_as_the_caller_takes_them() -> None:
    async with attacked() as world, greeted(world.address, window=2**20) as raw:
        raw.say(opened(0, 2**20))
        await begin_unit(raw)
        await until(lambda: max((len(each[3]) for each in raw.frames), default=0) > 2**13)
        await raw.reached()
        assert max(len(each[3]) for each in raw.frames) == 2**14
    async with attacked() as world, greeted(world.address, window=2**20, frame=2**24 - 1) as raw:
        raw.say(opened(0, 2**20))
        number = await begin_unit(raw)
        await until(lambda: any(each[0] == DATA and each[2] == number for each in raw.frames))
        await raw.reached()
        assert max(len(each[3]) for each in raw.frames) > 24_000 * 4


# ---------------------------------------------------------------------------------------------------- TLS


async def test_who_never_ends_the_handshake_or_speaks_plainly_does_not_hold_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GREETING_S", 0.3)
    issued = trustme.CA().issue_cert("localhost", "127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    trust.set_alpn_protocols(["h2"])
    async with running_worker(ScriptedEngine(), tls_cert=cert, tls_key=key) as worker:
        async with dialled(worker.address) as silent, dialled(worker.address) as plain:
            silent.say(b"\x16\x03\x01\x02\x00\x01\x00\x01")
            plain.greet()
            async with dialled(worker.address, trust) as raw:
                raw.greet()
                assert await raw.status(raw.ask(GET_INFO)) == "0"
                raw.say(frame(DATA, PADDED, 1))
                assert await raw.over() == BROKEN
            await silent.over()
            await plain.over()
