"""The adapter's gRPC calls against gRPC's own server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from antiphon.semconv import ERROR_DOMAIN, Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.transport import rpc
from ws_adapter.worker.transport.rpc import Call, Channel
from ws_adapter.worker.transport.rpc_status import RpcError

Handle = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]

PREFIX = 5
FRAME = 2**14


class Server(grpc.GenericRpcHandler):
    """Serves every call with one function of bytes."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.handle)


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


@asynccontextmanager
async def served(
    handle: Handle, target: str = "127.0.0.1", *options: tuple[str, int]
) -> AsyncIterator[tuple[Channel, grpc.aio.Server]]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), *options])
    server.add_generic_rpc_handlers((Server(handle),))
    is_path = target.startswith("unix:")
    port = server.add_insecure_port(target if is_path else f"{target}:0")
    await server.start()
    channel = Channel(target if is_path else f"{target}:{port}")
    try:
        yield channel, server
    finally:
        channel.close()
        await server.stop(None)


class Caller:
    """One call and what became of it. Its messages are PrefillRequests both ways."""

    def __init__(self, channel: Channel, timeout_s: float = 30.0) -> None:
        self.heard: list[pb.PrefillRequest] = []
        self.ends: list[RpcError | None] = []
        self.call = Call(
            channel, "Any", pb.PrefillRequest, self.heard.append, self.ends.append, timeout_s=timeout_s
        )

    async def start(self) -> "Caller":
        await self.call.start()
        return self

    async def end(self) -> RpcError | None:
        await until(lambda: self.ends)
        assert len(self.ends) == 1
        return self.ends[0]


def message(unit: int, size: int) -> pb.PrefillRequest:
    """A message with `size` bytes of audio."""
    request = pb.PrefillRequest(unit=unit)
    request.duplex.audio.data = (unit % 251).to_bytes() * size
    return request


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "unix"])
async def test_messages_of_every_size_come_back_whole_and_in_order(tmp_path: Path, host: str) -> None:
    sizes = [0, 1, 100, FRAME - PREFIX, FRAME, 65_535, 65_536, 200_000, 3_000_000, 7]
    async with served(echo, f"unix:{tmp_path / 'socket'}" if host == "unix" else host) as (channel, _):
        caller = await Caller(channel).start()
        sent = [pb.PrefillRequest(), *(message(unit, size) for unit, size in enumerate(sizes))]
        for request in sent:
            caller.call.write(request)
        caller.call.half_close()
        caller.call.write(message(99, 1))  # after the end of writing

        assert await caller.end() is None
        assert caller.heard == sent


async def test_many_calls_share_a_connection_without_mixing() -> None:
    connections: set[str] = set()

    async def echo_of_peer(requests: AsyncIterator[bytes], context: Any) -> None:
        connections.add(context.peer())
        await echo(requests, context)

    async with served(echo_of_peer) as (channel, _):
        callers = await asyncio.gather(*(Caller(channel).start() for _ in range(60)))
        for round_ in range(10):
            for number, caller in enumerate(callers):
                caller.call.write(message(number, 20_000 + round_))
        for caller in callers:
            caller.call.half_close()
        for number, caller in enumerate(callers):
            assert await caller.end() is None
            assert caller.heard == [message(number, 20_000 + round_) for round_ in range(10)]
    assert len(connections) == 1


async def test_what_a_worker_does_not_read_waits_here() -> None:
    reads = asyncio.Event()

    async def hesitate(requests: AsyncIterator[bytes], context: Any) -> None:
        await reads.wait()
        await echo(requests, context)

    async with served(hesitate, "127.0.0.1", ("grpc.http2.bdp_probe", 0)) as (channel, _):
        caller = await Caller(channel).start()
        other = await Caller(channel).start()
        for unit in range(12):
            caller.call.write(message(unit, 64_000))
        other.call.write(message(1, 64_000))
        await asyncio.sleep(0.05)
        assert len(caller.call.waiting) > 8
        reads.set()
        await until(lambda: len(caller.heard) == 12)
        await until(lambda: other.heard)
        assert not caller.call.waiting


async def test_a_status_is_told_with_its_details() -> None:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=Reason.KV_EXHAUSTED, domain=ERROR_DOMAIN))
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="voll: ü, 100 %", details=[info])

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)
            await context.abort_with_status(rpc_status.to_status(status))

    async with served(refuse) as (channel, _):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 10))
        error = await caller.end()

        assert caller.heard == [message(1, 10)]
        assert error is not None
        assert error.code == code_pb2.RESOURCE_EXHAUSTED
        assert str(error) == "RESOURCE_EXHAUSTED: voll: ü, 100 %"
        assert reason_of(error) is Reason.KV_EXHAUSTED


async def test_a_call_refused_at_once_has_no_metadata() -> None:
    async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nobody")

    async with served(refuse) as (channel, _):
        caller = await Caller(channel).start()
        with pytest.raises(RpcError, match="NOT_FOUND: nobody"):
            await caller.call.initial_metadata()
        assert await caller.end() is not None


async def test_metadata_travels_both_ways() -> None:
    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        given = dict(context.invocation_metadata())
        await context.send_initial_metadata((("echo", given["name"]),))

    async with served(answer) as (channel, _):
        ends: list[RpcError | None] = []
        call = Call(
            channel,
            "Any",
            pb.PrefillRequest,
            lambda message: None,
            ends.append,
            timeout_s=5.0,
            metadata=(("name", "s-1"),),
        )
        await call.start()
        assert (await call.initial_metadata())[b"echo"] == b"s-1"
        await until(lambda: ends)


async def test_a_cancelled_call_ends_on_both_sides_once() -> None:
    over = asyncio.Event()

    async def hang(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            async for _ in requests:
                await context.write(message(1, 1).SerializeToString())
        finally:
            over.set()

    async with served(hang) as (channel, _):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 1))
        await until(lambda: caller.heard)
        caller.call.cancel()
        caller.call.cancel()
        assert not caller.ends, "told a little later"
        error = await caller.end()
        assert error is not None
        assert error.code == code_pb2.CANCELLED
        caller.call.write(message(2, 1))  # does nothing
        async with asyncio.timeout(5):
            await over.wait()
        await Caller(channel).start()


async def test_a_call_cancelled_before_it_began() -> None:
    async with served(echo) as (channel, _):
        caller = Caller(channel)
        caller.call.cancel()
        with pytest.raises(RpcError, match="CANCELLED"):
            await caller.start()
        assert caller.ends == []


async def test_a_call_has_a_deadline() -> None:
    async def hang(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        async for _ in requests:
            pass

    async with served(hang) as (channel, _):
        error = await (await Caller(channel, timeout_s=0.1).start()).end()
        assert error is not None
        assert error.code == code_pb2.DEADLINE_EXCEEDED
        assert reason_of(error) is Reason.SESSION_LIMIT


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "100m"), (86_400.0, "86400000m"), (1e6, "1000000S")])
def test_deadline_as_a_header(seconds: float, text: str) -> None:
    assert rpc._timeout(seconds) == text


async def test_a_message_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 300_000)
    async with served(echo) as (channel, _):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 290_000))
        caller.call.write(message(2, 300_001))
        error = await caller.end()

        assert caller.heard == [message(1, 290_000)]
        assert error is not None
        assert reason_of(error) is Reason.MESSAGE_TOO_LARGE


async def test_a_message_that_is_none() -> None:
    async def babble(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.write(b"\xff\xff\xff")

    async with served(babble) as (channel, _):
        error = await (await Caller(channel).start()).end()
        assert error is not None
        assert error.code == code_pb2.INTERNAL


async def test_an_answer_that_cannot_be_handled_ends_its_call_and_no_other() -> None:
    def fail(message: pb.PrefillRequest) -> None:
        raise ZeroDivisionError

    async with served(echo) as (channel, _):
        other = await Caller(channel).start()
        ends: list[RpcError | None] = []
        call = Call(channel, "Any", pb.PrefillRequest, fail, ends.append, timeout_s=5.0)
        await call.start()
        call.write(message(1, 1))
        await until(lambda: ends)
        other.call.write(message(2, 70_000))
        await until(lambda: other.heard)
        assert ends[0] is not None
        assert ends[0].code == code_pb2.CANCELLED


async def test_a_server_that_leaves_finishes_its_calls_and_gets_no_more() -> None:
    async with served(echo) as (channel, server):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 1))
        await until(lambda: caller.heard)
        connection = await channel.connection()
        stopping = asyncio.create_task(server.stop(10))
        await until(lambda: not connection.is_usable)

        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await Caller(channel).start()
        caller.call.write(message(2, 100_000))
        caller.call.half_close()
        assert await caller.end() is None
        assert [answer.unit for answer in caller.heard] == [1, 2]
        await stopping


async def test_a_lost_connection_ends_its_calls_and_the_next_call_makes_another() -> None:
    lost = asyncio.Event()
    async with served(echo) as (served_at, _):
        channel = Channel(served_at.authority, lost.set)
        callers = [await Caller(channel).start() for _ in range(3)]
        callers[0].call.write(message(1, 1))
        await until(lambda: callers[0].heard)
        (await channel.connection()).abort()
        for caller in callers:
            error = await caller.end()
            assert error is not None
            assert reason_of(error) is Reason.WORKER_LOST
        assert lost.is_set()
        again = await Caller(channel).start()
        again.call.write(message(2, 1))
        await until(lambda: again.heard)
        channel.close()
        assert await again.end() is not None
        with pytest.raises(RpcError):
            await Caller(channel).start()


async def test_calls_beyond_what_the_worker_allows_wait_until_others_have_ended() -> None:
    async with served(echo, "127.0.0.1", ("grpc.max_concurrent_streams", 2)) as (channel, _):
        # It counts a call for a moment longer than we do, and refuses the next one meanwhile.
        questions = [message(unit, 10_000) for unit in range(40)]
        asking = [channel.ask("Any", asked, pb.PrefillRequest, timeout_s=20.0) for asked in questions]
        assert await asyncio.gather(*asking) == questions


def name_worker(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Has `worker.test` resolve to these addresses, in this order."""
    resolve = socket.getaddrinfo

    def resolved(host: str, port: int, *rest: Any, **options: Any) -> Any:
        hosts = addresses if host == "worker.test" else (host,)
        return [info for host in hosts for info in resolve(host, port, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@contextmanager
def unanswering(host: str, port: int) -> Iterator[None]:
    """An address where connections are never made: no more fit into its backlog."""
    with socket.create_server((host, port), backlog=0) as listener, ExitStack() as clients:
        for _ in range(8):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield


@pytest.mark.parametrize("dead", [("127.0.0.2",), ("127.0.0.2", "127.0.0.3"), ("::1", "127.0.0.2")])
async def test_every_address_of_a_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, dead: tuple[str, ...]
) -> None:
    monkeypatch.setattr(rpc, "CONNECT_TIMEOUT_S", 20.0)
    name_worker(monkeypatch, *dead, "127.0.0.1")
    async with served(echo) as (channel, _):
        port = int(channel.authority.rpartition(":")[2])
        with unanswering("127.0.0.2", port):
            by_name = Channel(f"worker.test:{port}")
            answer = await by_name.ask("Any", message(7, 3), pb.PrefillRequest, timeout_s=10.0)
            assert answer == message(7, 3)
            by_name.close()


async def test_one_question_and_one_answer() -> None:
    async with served(echo) as (channel, _):
        answer = await channel.ask("Any", message(7, 3), pb.PrefillRequest, timeout_s=5.0)
        assert answer == message(7, 3)


async def test_a_question_that_nobody_answers() -> None:
    async def hang(requests: AsyncIterator[bytes], context: Any) -> None:
        await asyncio.Event().wait()

    async with served(hang) as (channel, _):
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await channel.ask("Any", message(1, 1), pb.PrefillRequest, timeout_s=0.1)
    with pytest.raises(RpcError, match="UNAVAILABLE"):
        await Channel("127.0.0.1:1").ask("Any", message(1, 1), pb.PrefillRequest, timeout_s=5.0)
