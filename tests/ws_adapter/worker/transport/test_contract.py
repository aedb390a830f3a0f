"""The rules of a channel to a worker, against `grpc.aio`'s server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from antiphon.contract import ERROR_DOMAIN, Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.calls import Caller, Way, ask, closing, echo, message
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.transport import channel as transport
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import RpcError

PREFIX = 5
FRAME = 2**14


@pytest.fixture
def way(tmp_path: Path) -> Way:
    """Plain TCP: where TLS or a Unix socket could make a difference, the test asks for `any_way`."""
    return Way("tcp", tmp_path)


@pytest.fixture(params=["tcp", "unix", "tls"])
def any_way(request: pytest.FixtureRequest, tmp_path: Path) -> Way:
    return Way(request.param, tmp_path)


async def hang(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.send_initial_metadata(())
    async for _ in requests:
        pass
    await asyncio.Event().wait()


async def until_refused(channel: Channel) -> None:
    """A worker that leaves closes its door a moment after it was told to."""
    code = code_pb2.OK
    while code != code_pb2.UNAVAILABLE:
        try:
            await ask(channel, 9)
        except RpcError as error:  # CANCELLED, if it came in while the door closed
            code = error.code


async def test_messages_of_every_size_come_back_whole_and_in_order(any_way: Way) -> None:
    sizes = [0, 1, 100, FRAME - PREFIX, FRAME, 65_535, 65_536, 200_000, 3_000_000, 7]
    async with any_way.served(echo) as (channel, _):
        caller = await Caller(channel).start()
        sent = [pb.PrefillRequest(), *(message(unit, size) for unit, size in enumerate(sizes))]
        for request in sent:
            caller.call.write(request)
        caller.call.half_close()
        caller.call.write(message(99, 1))  # after the end of writing
        assert await caller.end() is None
        assert caller.heard == sent


async def test_many_calls_share_a_connection_without_mixing(any_way: Way) -> None:
    connections: set[str] = set()

    async def echo_of_peer(requests: AsyncIterator[bytes], context: Any) -> None:
        connections.add(context.peer())
        await echo(requests, context)

    async with any_way.served(echo_of_peer) as (channel, _):
        callers = await asyncio.gather(*(Caller(channel).start() for _ in range(30)))
        for round_ in range(5):
            for number, caller in enumerate(callers):
                caller.call.write(message(number, 20_000 + round_))
        for caller in callers:
            caller.call.half_close()
        for number, caller in enumerate(callers):
            assert await caller.end() is None
            assert caller.heard == [message(number, 20_000 + round_) for round_ in range(5)]
    assert len(connections) == 1


async def test_messages_unread_by_worker_are_held_by_caller(any_way: Way) -> None:
    reads = asyncio.Event()

    async def hesitate(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("begun", "yes"),))
        await reads.wait()
        await echo(requests, context)

    async with any_way.served(hesitate, ("grpc.http2.bdp_probe", 0)) as (channel, _):
        caller = await Caller(channel).start()
        other = await Caller(channel).start()
        await caller.call.initial_metadata()
        for unit in range(40):
            caller.call.write(message(unit, 64_000))
        other.call.write(message(1, 64_000))
        await other.call.initial_metadata()
        assert len(caller.call.waiting) > 20
        reads.set()
        await until(lambda: len(caller.heard) == 40)
        await until(lambda: other.heard)
        assert not caller.call.waiting


async def test_error_status_arrives_with_its_details(any_way: Way) -> None:
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=Reason.KV_EXHAUSTED, domain=ERROR_DOMAIN))
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="voll: ü, 100 %", details=[info])

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)
            await context.abort_with_status(rpc_status.to_status(status))

    async with any_way.served(refuse) as (channel, _):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 10))
        error = await caller.failure()
        assert caller.heard == [message(1, 10)]
        assert error.code == code_pb2.RESOURCE_EXHAUSTED
        assert str(error) == "RESOURCE_EXHAUSTED: voll: ü, 100 %"
        assert reason_of(error) is Reason.KV_EXHAUSTED


async def test_a_call_refused_at_once_has_no_metadata(way: Way) -> None:
    async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nobody")

    async with way.served(refuse) as (channel, _):
        caller = await Caller(channel).start()
        with pytest.raises(RpcError, match="NOT_FOUND: nobody"):
            await caller.call.initial_metadata()
        assert await caller.end() is not None
        with pytest.raises(RpcError, match="NOT_FOUND: nobody"):
            await ask(channel)


async def test_metadata_travels_both_ways(any_way: Way) -> None:
    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        given = dict(context.invocation_metadata())
        await context.send_initial_metadata((("echo", given["name"]),))
        async for _ in requests:
            pass

    async with any_way.served(answer) as (channel, _):
        ends: list[RpcError | None] = []
        call = channel.call(
            "Any",
            pb.PrefillRequest,
            lambda message: None,
            ends.append,
            timeout_s=30.0,
            metadata=(("name", "s-1"),),
        )
        await call.start()
        assert (await call.initial_metadata())[b"echo"] == b"s-1"
        call.half_close()
        await until(lambda: ends)


async def test_a_cancelled_call_ends_on_both_sides_once(any_way: Way) -> None:
    over = asyncio.Event()

    async def hang(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            async for _ in requests:
                await context.write(message(1, 1).SerializeToString())
        finally:
            over.set()

    async with any_way.served(hang) as (channel, _):
        caller = await Caller(channel).answered()
        caller.call.cancel()
        caller.call.cancel()
        assert not caller.ends, "told a little later"
        assert (await caller.failure()).code == code_pb2.CANCELLED
        caller.call.write(message(2, 1))  # does nothing
        await until(over.is_set)
        await Caller(channel).start()


async def test_a_call_cancelled_before_it_began(way: Way) -> None:
    async with way.served(echo) as (channel, _):
        caller = Caller(channel)
        caller.call.cancel()
        with pytest.raises(RpcError, match="CANCELLED"):
            await caller.start()
        assert caller.ends == []


async def test_calls_cancelled_before_start_raise_and_hold_no_stream(way: Way) -> None:
    async with way.served(echo, ("grpc.max_concurrent_streams", 1)) as (channel, _):
        first = await Caller(channel).answered()
        given_up, interrupted = Caller(channel), Caller(channel)
        starting = [asyncio.create_task(caller.start()) for caller in (given_up, interrupted)]
        await asyncio.wait(starting, timeout=0.05)
        given_up.call.cancel()
        starting[1].cancel()
        with pytest.raises(RpcError, match="CANCELLED"):
            await starting[0]
        with pytest.raises(asyncio.CancelledError):
            await starting[1]
        first.call.cancel()
        await ask(channel, 2)
        assert given_up.ends == interrupted.ends == []


async def test_a_call_has_a_deadline(any_way: Way) -> None:
    async with any_way.served(hang, ("grpc.max_concurrent_streams", 2)) as (channel, _):
        await Caller(channel).start()  # so that there is a connection
        error = await (await Caller(channel, timeout_s=2.0).start()).failure()
        assert error.code == code_pb2.DEADLINE_EXCEEDED
        assert reason_of(error) is Reason.SESSION_LIMIT
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            await ask(channel, timeout_s=0.5)
        await Caller(channel).start()
        with pytest.raises(RpcError, match=r"DEADLINE_EXCEEDED: the call could not begin within 0\.5 s"):
            await Caller(channel, timeout_s=0.5).start()


async def test_a_message_that_is_too_large(any_way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "grpc.max_receive_message_length"
    options = tuple(option for option in transport.CLIENT_OPTIONS if option[0] != name)
    monkeypatch.setattr(transport, "CLIENT_OPTIONS", (*options, (name, 300_000)))
    async with any_way.served(echo) as (channel, _):
        caller = await Caller(channel).start()
        caller.call.write(message(1, 290_000))
        await until(lambda: caller.heard)
        caller.call.write(message(2, 300_001))
        assert reason_of(await caller.failure()) is Reason.MESSAGE_TOO_LARGE
        assert caller.heard == [message(1, 290_000)]


async def test_a_message_that_is_none(way: Way) -> None:
    async def babble(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.write(b"\xff\xff\xff")

    async with way.served(babble) as (channel, _):
        assert (await (await Caller(channel).start()).failure()).code == code_pb2.INTERNAL


async def test_an_answer_that_cannot_be_handled_ends_its_call_and_no_other(way: Way) -> None:
    def fail(message: pb.PrefillRequest) -> None:
        raise ZeroDivisionError

    async with way.served(echo) as (channel, _):
        other = await Caller(channel).start()
        ends: list[RpcError | None] = []
        call = channel.call("Any", pb.PrefillRequest, fail, ends.append, timeout_s=30.0)
        await call.start()
        call.write(message(1, 1))
        await until(lambda: ends)
        other.call.write(message(2, 70_000))
        await until(lambda: other.heard)
        assert ends[0] is not None
        assert ends[0].code == code_pb2.CANCELLED


async def test_a_server_that_leaves_finishes_its_calls_and_gets_no_more(any_way: Way) -> None:
    async with any_way.served(echo) as (channel, server):
        caller = await Caller(channel).answered()
        stopping = asyncio.create_task(server.stop(30))
        await until_refused(channel)
        caller.call.write(message(2, 100_000))
        caller.call.half_close()
        assert await caller.end() is None
        assert [answer.unit for answer in caller.heard] == [1, 2]
        await stopping


async def test_a_lost_connection_ends_its_calls_and_the_next_call_makes_another(any_way: Way) -> None:
    lost = asyncio.Event()
    async with any_way.served(echo, on_lost=lost.set) as (channel, server):
        callers = [await Caller(channel).start() for _ in range(3)]
        callers[0].call.write(message(1, 1))
        await until(lambda: callers[0].heard)
        await server.stop(None)
        for caller in callers:
            assert reason_of(await caller.failure()) is Reason.WORKER_LOST
        await until(lost.is_set)
        async with any_way.again(echo) as (again, _):
            await ask(channel, 2)
            assert again is not server


async def test_channel_reconnects_after_hang_up_and_rejects_calls_after_close(any_way: Way) -> None:
    async with any_way.served(echo) as (channel, _):
        for _ in range(2):
            caller = await Caller(channel).answered()
            channel.disconnect()
            await caller.failure()
        caller = await Caller(channel).start()
        channel.close()
        await channel.wait_closed()
        assert await caller.end() is not None
        with pytest.raises(RpcError, match="UNAVAILABLE: the channel is closed"):
            await Caller(channel).start()


async def test_request_during_hang_up_fails_as_unavailable(way: Way) -> None:
    begun = asyncio.Event()

    async def hang_on(requests: AsyncIterator[bytes], context: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with way.served(hang_on) as (channel, _):
        asking = asyncio.create_task(ask(channel))
        await begun.wait()
        channel.disconnect()
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await asking


async def test_calls_beyond_what_the_worker_allows_wait_until_others_have_ended(any_way: Way) -> None:
    async with any_way.served(echo, ("grpc.max_concurrent_streams", 2)) as (channel, _):
        # It counts a call for a moment longer than we do, and refuses the next one meanwhile.
        questions = [message(unit, 10_000) for unit in range(30)]
        asking = [channel.ask("Any", asked, pb.PrefillRequest, timeout_s=60.0) for asked in questions]
        assert await asyncio.gather(*asking) == questions


async def test_a_worker_that_is_not_there(way: Way) -> None:
    async with closing(way.dial()("127.0.0.1:1", lambda: None)) as channel:
        with pytest.raises(RpcError, match=r"UNAVAILABLE: .*[Cc]onnect"):
            await ask(channel)


async def test_channel_1000_calls_opened_at_once_are_all_served(any_way: Way) -> None:
    async with any_way.served(echo, ("grpc.max_concurrent_streams", 4_000)) as (channel, _):
        callers = [Caller(channel) for _ in range(1_000)]
        await asyncio.gather(*(caller.start() for caller in callers))
        for number, caller in enumerate(callers):
            caller.call.write(message(number, 10))
            caller.call.half_close()
        await until(lambda: all(caller.ends for caller in callers), 60.0)
        assert all(caller.ends == [None] for caller in callers)
        assert [caller.heard[0].unit for caller in callers] == list(range(1_000))
