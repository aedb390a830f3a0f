"""The adapter's HTTP/2 connections against peers that use what gRPC seldom does, or break the rules."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from google.rpc import code_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, PingAckReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from antiphon.http2 import connection as base
from antiphon.http2 import keepalive
from antiphon.http2.byte_count import ByteCount
from antiphon.semconv import METADATA_WORKER_ID, Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.support.passing import Passing
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.session_streams import SessionStream
from ws_adapter.worker.transport import http2, http2_openings
from ws_adapter.worker.transport.channel import RpcError
from ws_adapter.worker.transport.http2_stream import Stream
from ws_adapter.worker.transport.native_channel import NativeChannel

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]

DATA, GOAWAY, WINDOW_UPDATE = 0, 7, 8


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + struct.pack("!BBL", kind, flags, stream) + body


def framed(message: pb.FinalizeRequest | pb.FinalizeResponse) -> bytes:
    """A message as gRPC has it."""
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


class Peer:
    """The server's end of a connection; bytes can be written past h2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.events: list[Event] = []
        self.received = b""
        self.is_over = False
        self._reader = reader
        self._writer = writer

    def start(self, **settings: int) -> None:
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings({SettingCodes[name]: value for name, value in settings.items()})
        self.flush()

    def flush(self) -> None:
        self.write(self.h2.data_to_send())

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def read(self) -> None:
        """Until the adapter hangs up; then `is_over`."""
        while data := await self._reader.read(2**16):
            for event in self.h2.receive_data(data):
                self.events.append(event)
                if isinstance(event, DataReceived):
                    self.received += event.data
            self.flush()
        self.is_over = True

    async def request(self) -> int:
        """The number of the newest request, once it is there."""
        await until(lambda: self.count(RequestReceived))
        return [event.stream_id for event in self.events if isinstance(event, RequestReceived)][-1]

    def answer(self, stream: int) -> None:
        self.h2.send_headers(stream, HEADERS)
        self.flush()

    def finish(self, stream: int) -> None:
        self.h2.send_headers(stream, OK, end_stream=True)
        self.flush()

    def count(self, shape: type[Event]) -> int:
        return sum(isinstance(event, shape) for event in self.events)


class Client:
    """One call and what became of it."""

    def __init__(self, channel: NativeChannel, timeout_s: float = 30.0) -> None:
        self.heard: list[int] = []
        self.ends: list[RpcError | None] = []
        self.call = channel.call(
            "Finalize",
            pb.FinalizeResponse,
            lambda message: self.heard.append(message.unit),
            self.ends.append,
            timeout_s=timeout_s,
        )

    async def end(self) -> RpcError | None:
        await until(lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]


@asynccontextmanager
async def reachable(prepare: Callable[[Peer], None]) -> AsyncIterator[tuple[list[Peer], NativeChannel]]:
    """A channel, and the peers at the other end of its connections, one after another."""
    peers: list[Peer] = []
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        peers.append(peer)
        prepare(peer)
        with suppress(ConnectionError):
            await peer.read()
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    channel = NativeChannel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield peers, channel
    finally:
        channel.close()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@asynccontextmanager
async def met(
    prepare: Callable[[Peer], None] = lambda peer: peer.start(),
) -> AsyncIterator[tuple[Peer, Client, NativeChannel]]:
    """A peer and a call that has reached it."""
    async with reachable(prepare) as (peers, channel):
        client = Client(channel)
        await client.call.start()
        yield peers[0], client, channel


async def test_an_answer_in_single_bytes_with_padding_and_empty_frames() -> None:
    async with met() as (peer, client, _):
        number = await peer.request()
        peer.answer(number)
        stream = (
            framed(pb.FinalizeResponse(unit=1))
            + framed(pb.FinalizeResponse())
            + framed(pb.FinalizeResponse(unit=3))
        )
        raw = b"".join(frame(DATA, 8, number, b"\2" + bytes([byte]) + b"\0\0") for byte in stream)
        raw += frame(DATA, 0, number, b"") + frame(DATA, 8, number, b"\0")
        for i in range(len(raw)):
            peer.write(raw[i : i + 1])
            if i % 16 == 0:
                await asyncio.sleep(0)
        peer.finish(number)

        assert await client.end() is None
        assert client.heard == [1, 0, 3]


async def test_windows_bound_what_is_sent_and_change_while_it_is() -> None:
    async with met(lambda peer: peer.start(INITIAL_WINDOW_SIZE=10)) as (peer, client, _):
        number = await peer.request()
        await until(lambda: client.call.window == 10)
        request = pb.PrefillRequest()
        request.duplex.audio.data = bytes(200_000)
        whole = 5 + request.ByteSize()
        client.call.write(request)
        await until(lambda: len(peer.received) == 10)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        peer.flush()
        await until(lambda: len(peer.received) == 100)
        peer.h2.increment_flow_control_window(2**20, number)
        peer.flush()
        await until(lambda: len(peer.received) == 65_535, 5)  # the window of the connection
        client.call.half_close()
        peer.h2.increment_flow_control_window(2**20)
        peer.flush()
        await until(lambda: peer.count(StreamEnded))

        assert len(peer.received) == whole
        assert peer.received[5:] == request.SerializeToString()


async def test_frames_are_as_large_as_the_worker_allows() -> None:
    settings = {"MAX_FRAME_SIZE": 20_000, "INITIAL_WINDOW_SIZE": 2**20}
    async with met(lambda peer: peer.start(**settings)) as (peer, client, _):
        await peer.request()
        await until(lambda: client.call.window == 2**20)
        request = pb.PrefillRequest()
        request.duplex.audio.data = bytes(50_000)
        client.call.write(request)
        await until(lambda: len(peer.received) == 5 + request.ByteSize())

        sizes = [len(event.data) for event in peer.events if isinstance(event, DataReceived)]
        assert sizes == [20_000, 20_000, 5 + request.ByteSize() - 40_000]


async def test_credit_is_given_back_also_for_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "STREAM_WINDOW", 2**15)
    monkeypatch.setattr(http2, "CONNECTION_WINDOW", 2**17)
    message = framed(pb.FinalizeResponse(unit=1))
    async with met() as (peer, client, _):
        number = await peer.request()
        await until(lambda: peer.h2.outbound_flow_control_window == 2**17)
        peer.answer(number)
        sent = 0
        while sent * len(message) < 2**18:
            await until(lambda: peer.h2.local_flow_control_window(number) > 2**13)
            peer.h2.send_data(number, message * 1000)
            peer.flush()
            sent += 1000
        await until(lambda: len(client.heard) == sent)

        client.call.cancel()
        await until(lambda: peer.count(StreamReset))
        before = peer.h2.outbound_flow_control_window
        for _ in range(8):
            peer.write(frame(DATA, 0, number, bytes(2**13)))
        await until(lambda: peer.h2.outbound_flow_control_window > before)


async def test_goaway_ends_the_calls_that_were_not_taken() -> None:
    async with met() as (peer, client, channel):
        number = await peer.request()
        late = Client(channel)
        await late.call.start()
        await until(lambda: peer.count(RequestReceived) == 2)
        peer.answer(number)
        peer.write(frame(GOAWAY, 0, 0, struct.pack("!LL", number, 0)))
        error = await late.end()
        assert error is not None
        assert error.code == code_pb2.UNAVAILABLE
        peer.h2.send_data(number, framed(pb.FinalizeResponse(unit=5)))
        peer.finish(number)

        assert await client.end() is None
        assert client.heard == [5]


async def test_a_connection_that_is_left_is_closed_with_the_channel() -> None:
    async with reachable(lambda peer: peer.start()) as (peers, channel):
        left = Client(channel)
        await left.call.start()
        number = await peers[0].request()
        connection = await channel.connection()
        peers[0].write(frame(GOAWAY, 0, 0, struct.pack("!LL", number, 0)))
        await until(lambda: not connection.is_usable)
        newer = Client(channel)
        await newer.call.start()
        await peers[1].request()
        assert not left.ends, "what the worker has taken goes on"

        channel.close()
        assert await left.end() is not None
        assert await newer.end() is not None
        await until(lambda: peers[0].is_over and peers[1].is_over)


async def test_a_connection_that_is_left_closes_with_its_last_call() -> None:
    async with met() as (peer, client, _):
        number = await peer.request()
        peer.write(frame(GOAWAY, 0, 0, struct.pack("!LL", number, 0)))
        peer.answer(number)
        peer.finish(number)
        assert await client.end() is None
        await until(lambda: peer.is_over)


async def test_nothing_is_asked_of_a_worker_after_hanging_up(
    monkeypatch: pytest.MonkeyPatch, passing: Passing, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(base, "HANG_UP_S", 1000.0)

    def prepare(peer: Peer) -> None:
        peer.start(INITIAL_WINDOW_SIZE=2**30)
        peer.h2.increment_flow_control_window(2**30)
        peer.flush()
        peer.read = lambda: _silent(peer)  # type: ignore[method-assign]

    async with reachable(prepare) as (_, channel):
        client = Client(channel)
        await client.call.start()
        request = pb.PrefillRequest()
        request.duplex.audio.data = bytes(2**24)
        client.call.write(request)
        await asyncio.sleep(0)  # what is due is written, and waits in the transport: nobody reads
        channel.hang_up()
        for seconds in (keepalive.KEEPALIVE_S, keepalive.KEEPALIVE_TIMEOUT_S, 1000.0):
            passing(seconds)
            for _ in range(5):
                await asyncio.sleep(0.01)
        assert await client.end() is not None, "cut, since its last words did not leave"

    assert caplog.records == [], "neither a question that h2 forbids nor an answer that is missed"


async def test_calls_beyond_what_the_worker_takes_wait_in_turn() -> None:
    async with met(lambda peer: peer.start(MAX_CONCURRENT_STREAMS=1)) as (peer, first, channel):
        others = [Client(channel) for _ in range(3)]
        starting = [asyncio.create_task(other.call.start()) for other in others]
        number = await peer.request()
        peer.answer(number)
        peer.finish(number)
        assert await first.end() is None
        await starting[0]
        assert [task.done() for task in starting] == [True, False, False]
        peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
        peer.flush()
        await starting[1]
        others[0].call.cancel()
        await starting[2]
        assert [other.call.number for other in others] == [3, 5, 7]
        assert not others[1].ends


async def test_no_call_is_sent_before_the_worker_has_said_how_many_it_takes() -> None:
    async with reachable(lambda peer: None) as (peers, channel):
        clients = [Client(channel) for _ in range(3)]
        starting = [asyncio.create_task(client.call.start()) for client in clients]
        await until(lambda: peers)
        await asyncio.wait(starting, timeout=0.1)
        assert peers[0].count(RequestReceived) == 0
        peers[0].start(MAX_CONCURRENT_STREAMS=2)
        await asyncio.gather(*starting[:2])
        await until(lambda: peers[0].count(RequestReceived) == 2)
        assert not starting[2].done()
        starting[2].cancel()


async def test_a_call_that_waits_is_refused_when_the_worker_leaves() -> None:
    async with met(lambda peer: peer.start(MAX_CONCURRENT_STREAMS=1)) as (peer, client, channel):
        number = await peer.request()
        starting = asyncio.create_task(Client(channel).call.start())
        await asyncio.sleep(0)
        peer.write(frame(GOAWAY, 0, 0, struct.pack("!LL", number, 0)))
        with pytest.raises(RpcError, match="UNAVAILABLE: the worker is going away"):
            await starting
        assert not client.ends


async def test_a_call_given_up_while_it_waits_is_never_sent() -> None:
    async with met(lambda peer: peer.start(MAX_CONCURRENT_STREAMS=1)) as (peer, first, channel):
        given_up, cancelled, last = (Client(channel) for _ in range(3))
        starting = [asyncio.create_task(client.call.start()) for client in (given_up, cancelled, last)]
        await asyncio.sleep(0)
        given_up.call.cancel()
        starting[1].cancel()
        with pytest.raises(RpcError, match="CANCELLED"):
            await starting[0]
        with pytest.raises(asyncio.CancelledError):
            await starting[1]
        first.call.cancel()
        await starting[2]
        await until(lambda: peer.count(RequestReceived) == 2)
        assert last.call.number == 3


async def test_how_many_calls_wait_is_bounded_and_so_is_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_openings, "MOST_OPENINGS", 1)
    async with met(lambda peer: peer.start(MAX_CONCURRENT_STREAMS=1)) as (_, _, channel):
        waiting = asyncio.create_task(Client(channel, timeout_s=0.1).call.start())
        await asyncio.sleep(0)
        with pytest.raises(RpcError, match="UNAVAILABLE: too many calls wait"):
            await Client(channel).call.start()
        with pytest.raises(RpcError, match=r"DEADLINE_EXCEEDED: it could not begin within 0\.1 s"):
            await waiting


async def test_a_call_that_the_worker_refused_unseen_is_made_again_before_those_that_wait() -> None:
    async with reachable(lambda peer: peer.start(MAX_CONCURRENT_STREAMS=2)) as (peers, channel):
        questions = [pb.FinalizeRequest(unit=unit) for unit in range(3)]
        asking = [
            asyncio.create_task(channel.ask("Finalize", asked, pb.FinalizeResponse, timeout_s=10.0))
            for asked in questions
        ]
        await until(lambda: peers and peers[0].count(StreamEnded) == 2)
        peer = peers[0]
        refused = [event.stream_id for event in peer.events if isinstance(event, StreamEnded)]
        for number in refused:
            peer.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
        peer.received = b""
        peer.flush()
        await until(lambda: peer.count(StreamEnded) == 4)
        assert peer.received == framed(questions[0]) + framed(questions[1]), "the third waits as before"
        for number in [event.stream_id for event in peer.events if isinstance(event, StreamEnded)][2:]:
            peer.answer(number)
            peer.h2.send_data(number, framed(pb.FinalizeResponse(unit=number)))
            peer.finish(number)
        assert [answer.unit for answer in await asyncio.gather(*asking[:2])] == [5, 7]
        last = await peer.request()
        peer.answer(last)
        peer.h2.send_data(last, framed(pb.FinalizeResponse(unit=last)))
        peer.finish(last)
        assert (await asking[2]).unit == 9


async def test_a_call_of_a_session_that_was_refused_unseen_is_made_again() -> None:
    ends: list[Reason | None] = []
    async with reachable(lambda peer: peer.start()) as (peers, channel):
        call: SessionStream[pb.FinalizeRequest, pb.FinalizeResponse] = SessionStream(
            channel, "Finalize", pb.FinalizeResponse, (), 10.0, lambda answer: None, ends.append
        )
        attaching = asyncio.create_task(call.attached("worker-1"))
        await until(lambda: peers)
        peer = peers[0]
        peer.h2.reset_stream(await peer.request(), ErrorCodes.REFUSED_STREAM)
        peer.flush()
        await until(lambda: peer.count(RequestReceived) == 2)
        number = await peer.request()
        peer.h2.send_headers(number, [*HEADERS, (METADATA_WORKER_ID, "worker-1")])
        peer.flush()
        await attaching
        assert ends == []
        peer.finish(number)
        await until(lambda: ends == [None])


async def test_a_call_of_a_session_given_up_when_it_was_refused_is_not_made_again() -> None:
    async with reachable(lambda peer: peer.start()) as (peers, channel):
        call: SessionStream[pb.FinalizeRequest, pb.FinalizeResponse] = SessionStream(
            channel, "Finalize", pb.FinalizeResponse, (), 10.0, lambda answer: None, lambda reason: None
        )
        attaching = asyncio.create_task(call.attached("worker-1"))
        await until(lambda: peers)
        peer = peers[0]
        number = await peer.request()
        peer.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
        peer.flush()
        await until(lambda: cast(Stream, call._call).connection is None)
        call.cancel()
        with pytest.raises(RpcError):
            await attaching
        with pytest.raises(AssertionError):
            await until(lambda: peer.count(RequestReceived) > 1, 0.1)


async def test_a_worker_that_refuses_every_call_is_asked_no_longer_than_the_deadline() -> None:
    async with reachable(lambda peer: peer.start()) as (peers, channel):
        asking = asyncio.create_task(
            channel.ask("Finalize", pb.FinalizeRequest(), pb.FinalizeResponse, timeout_s=0.2)
        )
        await until(lambda: peers)
        refused = 0
        while not asking.done():
            numbers = [event.stream_id for event in peers[0].events if isinstance(event, StreamEnded)]
            for number in numbers[refused:]:
                with suppress(StreamClosedError):  # given up meanwhile
                    peers[0].h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            refused = len(numbers)
            peers[0].flush()
            await asyncio.sleep(0.001)
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await asking
        assert 1 < refused < 20, "again, and not as fast as it can be refused"


async def test_a_reset_ends_one_call() -> None:
    async with met() as (peer, client, channel):
        number = await peer.request()
        other = Client(channel)
        await other.call.start()
        await until(lambda: peer.count(RequestReceived) == 2)
        peer.h2.reset_stream(number, 2)
        peer.flush()
        error = await client.end()
        assert error is not None
        assert error.code == code_pb2.UNAVAILABLE
        second = await peer.request()
        peer.answer(second)
        peer.finish(second)
        assert await other.end() is None


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda peer, number: peer.h2.send_headers(number, [(":status", "502")]), "HTTP status 502"),
        (lambda peer, number: _body(peer, number, b"\1\0\0\0\1x"), "compressed"),
        (lambda peer, number: _body(peer, number, b"", end=True), "without a status"),
        (lambda peer, number: _body(peer, number, b"\0\0\0\0\3\xff\xff\xff"), "cannot be parsed"),
        (lambda peer, number: _trailers(peer, number, "99"), "UNKNOWN"),
        (lambda peer, number: _trailers(peer, number, "x"), "UNKNOWN"),
    ],
)
async def test_answers_that_are_no_grpc_end_their_call(
    answer: Callable[[Peer, int], None], text: str
) -> None:
    async with met() as (peer, client, channel):
        number = await peer.request()
        answer(peer, number)
        peer.flush()
        error = await client.end()
        assert error is not None
        assert text in str(error)

        again = Client(channel)
        await again.call.start()
        await until(lambda: peer.count(RequestReceived) == 2)
        second = await peer.request()
        peer.answer(second)
        peer.finish(second)
        assert await again.end() is None


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        *(
            ([(":status", status), ("content-type", "text/html")], code)
            for status, code in [
                ("400", code_pb2.INTERNAL),
                ("401", code_pb2.UNAUTHENTICATED),
                ("403", code_pb2.PERMISSION_DENIED),
                ("404", code_pb2.UNIMPLEMENTED),
                ("429", code_pb2.UNAVAILABLE),
                ("502", code_pb2.UNAVAILABLE),
                ("503", code_pb2.UNAVAILABLE),
                ("504", code_pb2.UNAVAILABLE),
                ("500", code_pb2.UNKNOWN),
                ("204", code_pb2.UNKNOWN),
            ]
        ),
        ([(":status", "200")], code_pb2.UNKNOWN),
        ([(":status", "200"), ("content-type", "text/html")], code_pb2.UNKNOWN),
        ([(":status", "200"), ("content-type", "application/grpcweb")], code_pb2.UNKNOWN),
    ],
)
@pytest.mark.parametrize("is_all", [True, False])
async def test_what_answers_without_grpc_has_the_code_of_its_http_status(
    headers: list[tuple[str, str]], code: int, is_all: bool
) -> None:
    async with met() as (peer, client, channel):
        number = await peer.request()
        peer.h2.send_headers(number, headers, end_stream=is_all)
        if not is_all:
            peer.h2.send_data(number, b"<html>", end_stream=True)
        peer.flush()
        error = await client.end()
        assert error is not None
        assert error.code == code
        assert (await channel.connection()).is_usable
        with pytest.raises(RpcError):
            await client.call.initial_metadata()


@pytest.mark.parametrize(
    "content_type", ["application/grpc+proto", "application/grpc;x=y", "Application/gRPC"]
)
async def test_content_types_of_grpc(content_type: str) -> None:
    async with met() as (peer, client, _):
        number = await peer.request()
        peer.h2.send_headers(number, [(":status", "200"), ("content-type", content_type)])
        peer.h2.send_data(number, framed(pb.FinalizeResponse(unit=1)))
        peer.finish(number)
        assert await client.end() is None
        assert client.heard == [1]


async def test_a_grpc_status_counts_for_more_than_one_of_http() -> None:
    async with met() as (peer, client, _):
        number = await peer.request()
        peer.h2.send_headers(number, [(":status", "503"), ("grpc-status", "5")], end_stream=True)
        peer.flush()
        error = await client.end()
        assert error is not None
        assert error.code == code_pb2.NOT_FOUND


def _body(peer: Peer, number: int, data: bytes, *, end: bool = False) -> None:
    peer.h2.send_headers(number, HEADERS)
    peer.h2.send_data(number, data, end_stream=end)


def _trailers(peer: Peer, number: int, status: str) -> None:
    peer.h2.send_headers(number, [*HEADERS, ("grpc-status", status)], end_stream=True)


@pytest.mark.parametrize(
    "bytes_",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(DATA, 0, 1, bytes(2**17 + 1)),
        frame(DATA, 8, 1, b""),
        frame(DATA, 8, 1, b"\5abc"),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(WINDOW_UPDATE, 0, 0, bytes(3)),
        frame(WINDOW_UPDATE, 0, 0, (2**31 - 1).to_bytes(4)),
        frame(WINDOW_UPDATE, 0, 1, (2**31 - 1).to_bytes(4)),
        frame(GOAWAY, 0, 0, bytes(7)),
        frame(1, 4, 1, b"\xff" * 20),  # HEADERS that are no HPACK
        frame(9, 4, 1, b""),  # a CONTINUATION of nothing
    ],
)
async def test_a_connection_that_breaks_the_rules_is_given_up(bytes_: bytes) -> None:
    async with met() as (peer, client, channel):
        await peer.request()
        connection = await channel.connection()
        peer.write(bytes_)
        error = await client.end()
        assert error is not None
        assert error.code == code_pb2.UNAVAILABLE
        assert not connection.is_usable


async def test_frames_of_unknown_kind_and_pings_do_not_matter() -> None:
    async with met() as (peer, client, _):
        number = await peer.request()
        peer.write(frame(0x42, 0xFF, 0, b"what?"))
        peer.h2.ping(b"12345678")
        peer.answer(number)
        await until(lambda: peer.count(PingAckReceived))
        peer.finish(number)
        assert await client.end() is None


async def _silent(peer: Peer) -> None:
    await asyncio.Event().wait()


async def _alive(peer: Peer) -> None:
    await Peer.read(peer)


@pytest.mark.parametrize(("reads", "is_lost"), [(_silent, True), (_alive, False)])
async def test_a_silent_worker_is_asked_and_a_frozen_one_is_lost(
    monkeypatch: pytest.MonkeyPatch, reads: Callable[[Peer], Awaitable[None]], is_lost: bool
) -> None:
    monkeypatch.setattr(keepalive, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(keepalive, "KEEPALIVE_TIMEOUT_S", 0.2 if is_lost else 2.0)
    asked = 0
    ping = http2.Connection._ping

    def counted(connection: http2.Connection) -> None:
        nonlocal asked
        asked += 1
        ping(connection)

    monkeypatch.setattr(http2.Connection, "_ping", counted)

    def prepare(peer: Peer) -> None:
        peer.start()
        peer.read = lambda: reads(peer)  # type: ignore[method-assign,assignment,return-value]

    async with met(prepare) as (_, client, channel):
        connection = await channel.connection()
        if is_lost:
            error = await client.end()
            assert error is not None
            assert error.code == code_pb2.UNAVAILABLE
            assert asked == 1
        else:
            await until(lambda: asked == 2)
            assert connection.is_usable
            assert not client.ends


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def set_write_buffer_limits(self, high: int) -> None:
        """It takes everything."""

    def abort(self) -> None:
        """There is nothing to cut."""


async def wired(stream: Stream) -> tuple[http2.Connection, Wire, ByteCount]:
    """A connection on which `stream` is open, and its wire, on which nothing is left to read."""
    wire, count = Wire(), ByteCount()
    connection = http2.Connection(lambda connection: None, count)
    connection.connection_made(cast(asyncio.Transport, cast(Any, wire)))
    await connection.open(
        stream, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "w")]
    )
    await asyncio.sleep(0)
    wire.writes.clear()
    return connection, wire, count


async def test_what_is_sent_in_one_turn_of_the_loop_leaves_in_one_piece() -> None:
    stream = Stream()
    connection, wire, count = await wired(stream)
    before = count.sent
    await asyncio.sleep(0)
    assert wire.writes == [], "nothing is sent, so nothing is written"
    connection.send(stream, 3, b"one")
    connection.send(stream, 7, b"an", b"other")
    await asyncio.sleep(0)
    assert wire.writes == [frame(DATA, 0, 1, b"one") + frame(DATA, 0, 1, b"another")]
    assert count.sent - before == len(wire.writes[0])
    connection.abort()


@pytest.mark.parametrize("is_reversed", [False, True], ids=["connection-first", "stream-first"])
async def test_what_waits_for_windows_leaves_in_whole_messages_once_all_that_came_is_read(
    is_reversed: bool,
) -> None:
    stream = Stream()
    connection, wire, _ = await wired(stream)
    room = stream.window
    connection.send(stream, room, bytes(room))
    connection.send(stream, 7, b"an", b"other")
    connection.send(stream, 3, b"one")
    await asyncio.sleep(0)
    wire.writes.clear()

    opened = [frame(WINDOW_UPDATE, 0, number, struct.pack("!L", 10)) for number in (0, 1)]
    came = b"".join(reversed(opened) if is_reversed else opened)
    connection.get_buffer(len(came))[: len(came)] = came
    connection.buffer_updated(len(came))
    await asyncio.sleep(0)

    assert b"".join(wire.writes) == frame(DATA, 0, 1, b"another") + frame(DATA, 0, 1, b"one")
    connection.abort()


async def test_a_message_that_windows_cut_goes_on_where_it_was_cut() -> None:
    stream = Stream()
    connection, wire, _ = await wired(stream)
    room = stream.window
    connection.send(stream, room - 4, bytes(room - 4))
    connection.send(stream, 12, b"one", b"message", b"of")
    connection.send(stream, 4, b"more")
    await asyncio.sleep(0)
    sent = b"".join(wire.writes)
    assert sent.endswith(frame(DATA, 0, 1, b"onem"))
    wire.writes.clear()

    for number in (0, 1):
        more = frame(WINDOW_UPDATE, 0, number, struct.pack("!L", 100))
        connection.get_buffer(len(more))[: len(more)] = more
        connection.buffer_updated(len(more))
    await asyncio.sleep(0)

    assert b"".join(wire.writes) == frame(DATA, 0, 1, b"essageof") + frame(DATA, 0, 1, b"more")
    connection.abort()
