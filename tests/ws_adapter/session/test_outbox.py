"""Tests of the outbox with a client that reads slowly, or not at all."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.process.load import Load, LoadLimits
from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.answer import Answer, Outcome, Unit
from ws_adapter.protocol.duplex.realtime_events import AudioDelta, ListenDelta, TextDelta
from ws_adapter.protocol.wire.events import NO_TOKENS, Metrics
from ws_adapter.session.outbox import Bounds, Outbox

SECOND = bytes(96_000)
SILENCE = bytes(64_000)


def delta(
    shape: type,
    outcome: Outcome = Outcome.SPEECH,
    response_id: str = "r",
    is_first: bool = False,
    **fields: Any,
) -> Send:
    event = shape(session_id="s", input_id="i", response_id=response_id, metrics=Metrics(), **fields)
    unit = Unit(SILENCE, "i", append=1, ready_at=4999.5)
    answer = Answer(outcome, 7, unit, response_id, 0, 0, 0, NO_TOKENS)
    return Send(event, answer, is_first)


def audio(data: bytes = SECOND, **fields: Any) -> Send:
    return delta(AudioDelta, kind="audio", audio=data, **fields)


def text(value: str = "word", **fields: Any) -> Send:
    return delta(TextDelta, kind="text", text=value, **fields)


def listen(**fields: Any) -> Send:
    return delta(ListenDelta, outcome=Outcome.LISTEN, kind="listen", **fields)


class Line:
    """An outbox with a transport that takes messages only while it is open."""

    def __init__(self, **bounds: Any) -> None:
        self.clock = ManualClock()
        self.sent: list[dict[str, Any]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.buffered = 0
        self.congestion: list[bool] = []
        self.stalls = 0
        self.load = Load(LoadLimits(0, 0, 0), self.clock)
        self.outbox = Outbox(
            self._send,
            lambda: self.buffered,
            self.clock,
            self.load,
            Bounds(**{"audio_s": 3.0, "bytes": 4 * 2**20, "stall_s": 5.0, **bounds}),
            self.congestion.append,
            self._stalled,
            self._send_at_once,
        )
        self.sends_at_once = False
        self.task = asyncio.create_task(self.outbox.run())

    async def _send(self, *parts: bytes) -> None:
        await self.is_open.wait()
        self.sent.append(json.loads(b"".join(parts)))

    def _send_at_once(self, *parts: bytes) -> bool:
        if self.sends_at_once:
            self.sent.append(json.loads(b"".join(parts)))
        return self.sends_at_once

    def _stalled(self) -> None:
        self.stalls += 1

    def stall(self, seconds: int) -> None:
        """The transport takes nothing, while so much sound comes."""
        self.is_open.clear()
        for _ in range(seconds):
            self.outbox.put(audio())

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def line() -> Any:
    line = Line()
    yield line
    line.task.cancel()
    await asyncio.gather(line.task, return_exceptions=True)
    assert line.clock.timers == 0
    assert line.load.inflight_bytes == 0


async def test_events_leave_in_order_and_with_their_times(line: Line) -> None:
    line.outbox.put(text("Seven", is_first=True))
    line.outbox.put(audio())
    await line.outbox.flushed()
    assert [event["kind"] for event in line.sent] == ["text", "audio"]
    assert line.sent[0]["server_send_ts"] == line.clock.unix()
    assert line.sent[0]["metrics"] == {"wall_clock_ms": 500.0}
    assert line.sent[1]["metrics"] == {"wall_clock_ms": 500.0}


async def test_an_event_is_sent_at_once_where_nothing_is_before_it(line: Line) -> None:
    line.is_open.clear()
    line.outbox.put(text("one"))
    await line.settle()
    line.sends_at_once = True
    line.outbox.put(text("two"))  # behind one that is being sent
    assert line.sent == []
    line.is_open.set()
    await line.outbox.flushed()
    line.outbox.put(text("three"))
    assert [event["text"] for event in line.sent] == ["one", "two", "three"]
    assert line.sent[2]["metrics"] == {"wall_clock_ms": 500.0}
    assert (line.outbox.audio_s, line.load.inflight_bytes) == (0.0, 0)

    line.buffered = 1  # in a transport whose client is slow
    line.outbox.put(text("four"))
    assert len(line.sent) == 3
    await line.outbox.flushed()
    assert len(line.sent) == 4


async def test_withdraw_takes_text_and_audio_of_one_response(line: Line) -> None:
    line.is_open.clear()
    line.outbox.put(listen())
    await line.settle()
    kept = [listen(), audio(response_id="other")]
    taken = [text(), audio()]
    for send in (kept[0], *taken, kept[1]):
        line.outbox.put(send)
    before = line.load.inflight_bytes
    assert line.outbox.withdraw("r") == taken
    assert before - line.load.inflight_bytes == 128_000 + 2 * 512
    assert line.outbox.audio_s == 1.0
    line.is_open.set()
    await line.outbox.flushed()
    assert [event["kind"] for event in line.sent] == ["listen", "listen", "audio"]


async def test_congestion_starts_above_in_flight_bound(line: Line) -> None:
    line.is_open.clear()
    line.outbox.put(text())
    line.outbox.put(audio())
    assert line.load.inflight_bytes == 128_000 + 2 * 512
    for _ in range(2):
        line.outbox.put(audio())
    assert line.congestion == []
    line.outbox.put(audio())
    assert line.congestion == [True]
    line.is_open.set()
    await line.outbox.flushed()
    assert line.congestion == [True, False]
    assert line.load.inflight_bytes == 0


async def test_bytes_count_too(line: Line) -> None:
    line.is_open.clear()
    for _ in range(9000):
        line.outbox.put(listen())
    assert line.congestion == [True]


async def test_client_that_reads_nothing_is_slow_after_five_seconds(line: Line) -> None:
    line.stall(4)
    await line.settle()
    await line.clock.advance(4.9)
    assert line.stalls == 0
    await line.advance(0.6)
    assert line.stalls == 1
    await line.advance(60)
    assert line.stalls == 1


async def test_client_that_reads_a_little_is_not_slow(line: Line) -> None:
    line.stall(4)
    line.buffered = 100_000
    for _ in range(20):
        line.buffered -= 1000
        await line.advance(4)
    assert line.stalls == 0


@pytest.mark.parametrize(("count", "waited_s", "stalls"), [(3, 600, 0), (70, 0, 1)], ids=["few", "overflow"])
async def test_overflow_is_slow_at_once(line: Line, count: int, waited_s: float, stalls: int) -> None:
    line.stall(count)
    await line.advance(waited_s)
    assert line.stalls == stalls


async def test_broken_connection_releases_flush() -> None:
    line = Line()

    async def broken(*_parts: bytes) -> None:
        raise ConnectionError

    line.outbox._send = broken
    line.outbox.put(listen())
    with pytest.raises(ConnectionError):
        await line.task
    async with asyncio.timeout(PATIENCE_S):
        await line.outbox.flushed()


async def test_waiting_events_are_encoded_once_and_sent_so(line: Line) -> None:
    line.is_open.clear()
    line.outbox.put(text("one"))
    await line.settle()
    line.outbox.put(text("two"))
    line.outbox.put(audio())

    waiting = [b"".join(parts) for parts in line.outbox.waiting]

    assert [json.loads(event)["kind"] for event in waiting] == ["text", "audio"]
    assert line.outbox.audio_s == 1.0
    await line.clock.advance(1)
    line.is_open.set()
    await line.outbox.flushed()
    assert line.sent[1:] == [json.loads(event) for event in waiting]
    assert line.outbox.waiting == []


async def test_cleared_events_are_not_sent_and_count_no_more(line: Line) -> None:
    line.stall(5)
    await line.settle()

    line.outbox.clear()

    assert line.outbox.audio_s == 0.0
    assert line.load.inflight_bytes == 128_512, "the one that is being sent"
    line.is_open.set()
    await line.outbox.flushed()
    assert len(line.sent) == 1
    assert line.load.inflight_bytes == 0


async def test_each_sent_event_is_progress(line: Line) -> None:
    gate = asyncio.Semaphore(0)

    async def send(*_parts: bytes) -> None:
        await gate.acquire()

    line.outbox._send = send
    line.buffered = 100_000  # one large frame follows another
    for _ in range(12):
        line.outbox.put(audio())
    for _ in range(5):
        await line.clock.advance(4)
        gate.release()
        await line.settle()
    assert line.stalls == 0
    assert line.outbox.is_congested is True
    await line.advance(6)
    assert line.stalls == 1


async def test_detached_outbox_sends_what_is_left_once_it_is_attached(line: Line) -> None:
    attached, waits = asyncio.Event(), asyncio.Event()

    async def until_attached() -> None:
        waits.set()
        await attached.wait()

    line.outbox._until_attached = until_attached
    line.outbox.put(text("dropped"))
    await waits.wait()
    line.outbox.clear()
    line.outbox.put(text("kept"))
    assert line.sent == []
    attached.set()
    await line.outbox.flushed()
    assert [event["text"] for event in line.sent] == ["kept"]

    attached.clear()
    line.outbox.put(text("dropped too"))
    await line.settle()
    line.outbox.clear()
    attached.set()
    await line.settle()
    line.outbox.put(text("last"))
    await line.outbox.flushed()
    assert [event["text"] for event in line.sent] == ["kept", "last"]
    assert line.load.inflight_bytes == 0
