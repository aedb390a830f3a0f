"""Workers that refuse, reset or abandon calls, as an HTTP/2 peer written with `h2` does it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from google.rpc import code_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from h2.exceptions import StreamClosedError

from antiphon.contract import METADATA_WORKER_ID, Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.session_streams import SessionStream
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import RpcError

HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def framed(message: pb.FinalizeRequest | pb.FinalizeResponse) -> bytes:
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

    def start(self) -> None:
        self.h2.initiate_connection()
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

    def reset(self, stream: int, code: ErrorCodes = ErrorCodes.REFUSED_STREAM) -> None:
        with suppress(StreamClosedError):  # given up meanwhile
            self.h2.reset_stream(stream, code)
        self.flush()

    def count(self, shape: type[Event]) -> int:
        return sum(isinstance(event, shape) for event in self.events)


class Client:
    def __init__(self, channel: Channel) -> None:
        self.heard: list[int] = []
        self.ends: list[RpcError | None] = []
        self.call = channel.call(
            "Finalize",
            pb.FinalizeResponse,
            lambda message: self.heard.append(message.unit),
            self.ends.append,
            timeout_s=30.0,
        )

    async def end(self) -> RpcError | None:
        await until(lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]


@asynccontextmanager
async def reachable() -> AsyncIterator[tuple[list[Peer], Channel]]:
    """A channel, and the peers at the other end of its connections, one after another."""
    peers: list[Peer] = []
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        peers.append(peer)
        peer.start()
        with suppress(ConnectionError):
            await peer.read()
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    channel = Channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield peers, channel
    finally:
        channel.close()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def attached(
    channel: Channel, ends: list[Reason | None]
) -> "tuple[SessionStream[pb.FinalizeRequest, pb.FinalizeResponse], asyncio.Task[None]]":
    """A call of a session that begins, and its beginning."""
    call: SessionStream[pb.FinalizeRequest, pb.FinalizeResponse] = SessionStream(
        channel, "Finalize", pb.FinalizeResponse, (), 10.0, lambda answer: None, ends.append
    )
    return call, asyncio.create_task(call.attached("worker-1"))


async def test_session_call_refused_unprocessed_is_made_again() -> None:
    ends: list[Reason | None] = []
    async with reachable() as (peers, channel):
        _, attaching = attached(channel, ends)
        await until(lambda: peers)
        peer = peers[0]
        peer.reset(await peer.request())
        await until(lambda: peer.count(RequestReceived) == 2)
        number = await peer.request()
        peer.h2.send_headers(number, [*HEADERS, (METADATA_WORKER_ID, "worker-1")])
        peer.flush()
        await attaching
        assert ends == []
        peer.finish(number)
        await until(lambda: ends == [None])


async def test_question_refused_every_time_ends_at_its_deadline() -> None:
    async with reachable() as (peers, channel):
        asking = asyncio.create_task(
            channel.ask("Finalize", pb.FinalizeRequest(), pb.FinalizeResponse, timeout_s=0.2)
        )
        await until(lambda: peers)
        refused = 0
        while not asking.done():
            numbers = [event.stream_id for event in peers[0].events if isinstance(event, StreamEnded)]
            for number in numbers[refused:]:
                peers[0].reset(number)
            refused = len(numbers)
            await asyncio.sleep(0.001)
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await asking
        assert 1 < refused < 20, "again, and not as fast as it can be refused"


async def test_question_refused_unprocessed_is_asked_again() -> None:
    question, answer = pb.FinalizeRequest(unit=1), pb.FinalizeResponse(unit=1)
    async with reachable() as (peers, channel):
        asking = asyncio.create_task(channel.ask("Finalize", question, pb.FinalizeResponse, timeout_s=30.0))
        await until(lambda: peers and peers[0].count(StreamEnded) == 1)
        peer = peers[0]
        peer.reset(await peer.request())
        await until(lambda: peer.count(StreamEnded) == 2)
        number = await peer.request()
        peer.answer(number)
        peer.h2.send_data(number, framed(answer))
        peer.finish(number)
        assert await asking == answer


async def test_session_call_cancelled_while_refused_is_not_made_again() -> None:
    async with reachable() as (peers, channel):
        call, attaching = attached(channel, [])
        await until(lambda: peers)
        peer = peers[0]
        number = await peer.request()
        call.cancel()
        peer.reset(number)
        with pytest.raises(RpcError):
            await attaching
        assert peer.count(RequestReceived) == 1


async def test_call_reset_by_the_worker_ends_alone() -> None:
    async with reachable() as (peers, channel):
        first, second = Client(channel), Client(channel)
        await first.call.start()
        peer = peers[0]
        reset = await peer.request()
        await second.call.start()
        await until(lambda: peer.count(RequestReceived) == 2)
        peer.reset(reset, ErrorCodes.INTERNAL_ERROR)
        peer.answer(await peer.request())
        peer.finish(await peer.request())
        assert await first.end() is not None
        assert await second.end() is None


async def test_call_answered_without_grpc_ends_with_an_error() -> None:
    async with reachable() as (peers, channel):
        client = Client(channel)
        await client.call.start()
        peer = peers[0]
        number = await peer.request()
        peer.h2.send_headers(number, [(":status", "503"), ("content-type", "text/html")], end_stream=True)
        peer.flush()
        error = await client.end()
        assert error is not None
        assert error.code == code_pb2.UNAVAILABLE


async def test_goaway_ends_calls_that_were_not_taken() -> None:
    async with reachable() as (peers, channel):
        client = Client(channel)
        await client.call.start()
        peer = peers[0]
        await peer.request()
        peer.write(b"\0\0\x08\x07\0" + bytes(4) + bytes(8))  # GOAWAY, last stream 0, NO_ERROR
        error = await client.end()
        assert error is not None
        assert error.code == code_pb2.UNAVAILABLE
