"""Whatever one caller sends, in whatever order: others are answered, and nothing of it is left."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.transport.health import CHECK, WATCH
from tests.inference_service.support.caller import Caller, channel_to, duplex, until, until_free
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
    PRIORITY,
    SESSION,
    SESSION_PARTS,
    RawCaller,
    dialled,
    frame,
    framed,
    opened,
    reset,
)
from tests.inference_service.support.raw_caller import settings as told_settings
from tests.support.long import examples
from tests.support.scripted_engine import RunningWorker, ScriptedEngine, running_worker, speak

SLOTS = 2

REQUESTS = [
    pb.PrefillRequest(config=pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)),
    pb.PrefillRequest(unit=1, duplex=duplex()),
    pb.PrefillRequest(unit=2, duplex=duplex()),
    pb.GenerateRequest(unit=1, run=pb.GenerateUnit()),
    pb.GenerateRequest(unit=1, cancel=pb.CancelUnits()),
    pb.FinalizeRequest(unit=1),
]
PATHS = [*SESSION_PARTS, GET_INFO, CHECK, WATCH, "/nothing"]

numbers = st.integers(0, 9)
"""Of streams: those that are there, that are not, and the connection."""


@dataclass(frozen=True)
class Begin:
    """The headers of a new call; with padding they come in two frames."""

    path: str
    end: bool
    padding: bytes
    timeout: str | None

    def said(self, raw: RawCaller) -> bytes:
        number = raw.next_number()
        more = () if self.timeout is None else (("grpc-timeout", self.timeout),)
        block = raw.head(self.path, SESSION, *more)
        if not self.padding:
            return frame(HEADERS, END_HEADERS | self.end, number, block)
        first = bytes([len(self.padding)]) + block[:7] + self.padding
        return frame(HEADERS, PADDED | self.end, number, first) + frame(
            CONTINUATION, END_HEADERS, number, block[7:]
        )


@dataclass(frozen=True)
class Trailers:
    """The end of a call."""

    number: int

    def said(self, raw: RawCaller) -> bytes:
        return frame(HEADERS, END_HEADERS | END_STREAM, self.number, raw.encoder.encode([("x", "y")]))


@dataclass(frozen=True)
class Request:
    """DATA with one of `REQUESTS`: they are large, and many are drawn."""

    number: int
    end: bool
    which: int

    def said(self, raw: RawCaller) -> bytes:
        return frame(DATA, self.end, self.number, framed(REQUESTS[self.which]))


Step = bytes | Begin | Trailers | Request

calls = st.builds(
    Begin,
    st.sampled_from(PATHS),
    st.booleans(),
    st.binary(max_size=3),
    st.sampled_from([None, None, "1n", "1H", "never"]),
)
requests = st.builds(
    Request, numbers, st.sampled_from([False, False, False, True]), st.integers(0, len(REQUESTS) - 1)
)
odd = st.one_of(
    st.binary(max_size=12),
    st.just(framed(b"\xff" * 9)),
    st.just(framed(b"x", is_compressed=True)),
    st.just(b"\0\xff\xff\xff\xff"),
)
data = st.builds(frame, st.just(DATA), st.sampled_from([0, END_STREAM]), numbers, odd)
rarely = st.one_of(
    st.builds(opened, numbers, st.sampled_from([1, 1000, 2**20, 2**31 - 1, 0])),
    st.builds(reset, numbers, st.integers(0, 20)),
    st.builds(lambda window: told_settings(window=window), st.sampled_from([0, 1, 100, 2**20, 2**31 - 1])),
    st.builds(lambda size: told_settings(table=size), st.integers(0, 5000)),
    st.builds(lambda size: told_settings(frame=size), st.sampled_from([2**14, 2**20, 1])),
    st.builds(frame, st.just(PING), st.sampled_from([0, ACK]), st.just(0), st.just(bytes(8))),
    st.builds(frame, st.just(PRIORITY), st.just(0), numbers, st.binary(min_size=5, max_size=5)),
    st.builds(frame, st.just(GOAWAY), st.just(0), st.just(0), st.just(bytes(8))),
)
anything = st.builds(frame, st.integers(0, 12), st.integers(0, 255), numbers, st.binary(max_size=20))
mutated = st.builds(
    lambda whole, at, byte: whole[: at % len(whole)] + bytes([byte]) + whole[at % len(whole) + 1 :],
    st.one_of(data, rarely),
    st.integers(0, 40),
    st.integers(0, 255),
)

valid = st.one_of(calls, calls, requests, requests, data, rarely, st.builds(Trailers, numbers))
"""Each of them by itself."""


async def _talk(raw: RawCaller, said: list[Step], pieces: list[int]) -> None:
    """Sends all of it, in pieces of such sizes."""
    whole = b"".join(step if isinstance(step, bytes) else step.said(raw) for step in said)
    for size in pieces:
        await raw.said(whole[:size])
        whole = whole[size:]
    await raw.said(whole)


async def _attacked(worker: RunningWorker, said: list[Step], pieces: list[int], *, waits: bool) -> None:
    before = asyncio.all_tasks()
    async with channel_to(worker.address) as channel:
        neighbour = await Caller(channel).open()
        await neighbour.configure()
        async with dialled(worker.address, source="127.0.0.2") as raw:
            raw.greet()
            await _talk(raw, said, pieces)
            if waits:  # not for an answer: what was said last may be half a frame
                await neighbour.unit(1)
        await until(lambda: len(worker.worker._server._door.connections) == 1)
        await until_free(worker.address, SLOTS - 1)
        await neighbour.unit(1 + waits)
        for call in neighbour.calls.values():
            call.cancel()
    await until_free(worker.address, SLOTS)
    await until(lambda: not worker.worker._server._health._watches)
    await until(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()})


class Errors(logging.Handler):
    """What was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextmanager
def no_errors() -> Iterator[None]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(errors)
    assert errors.found == []


@settings(max_examples=examples(200), deadline=None)
@given(
    said=st.lists(valid, max_size=25),
    wrong=st.lists(st.one_of(anything, mutated, calls), max_size=5),
    pieces=st.lists(st.integers(1, 400), max_size=10),
    waits=st.booleans(),
)
def test_whatever_a_caller_sends_others_notice_nothing(
    said: list[Step], wrong: list[Step], pieces: list[int], waits: bool
) -> None:
    async def run() -> None:
        engine = ScriptedEngine(speak("word"), repeat=True, slots=SLOTS)
        async with running_worker(engine, slots=SLOTS) as worker:
            await _attacked(worker, said + wrong, pieces, waits=waits)

    with no_errors():
        asyncio.run(run())
