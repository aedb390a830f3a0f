"""Answers on their way out: in order, joined where they can be, bounded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import Done, End, Piece
from inference_service.rpc.outbox import BACKLOG, Outbox
from inference_service.rpc.replies import absorb, done, go_away, piece


class Line:
    """A caller who takes a message when told to."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.under_way: list[asyncio.Future[None]] = []

    async def write(self, message: Any) -> None:
        self.taken.append(message)
        self.under_way.append(asyncio.get_running_loop().create_future())
        await self.under_way[-1]

    def take(self) -> None:
        self.under_way.pop(0).set_result(None)


@asynccontextmanager
async def outbox_to(line: Line, *join: Any) -> AsyncIterator[tuple[Outbox[Any], "asyncio.Task[None]"]]:
    outbox: Outbox[Any] = Outbox(lambda: 5.0, *join)
    running = asyncio.create_task(outbox.run(line.write))
    await asyncio.sleep(0)
    yield outbox, running
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def turns(is_so: Callable[[], object]) -> None:
    """Turns of the event loop until something is so; at most a few."""
    for _ in range(10):
        if is_so():
            return
        await asyncio.sleep(0)
    assert is_so()


def said(unit: int, text: str, samples: int = 2) -> pb.GenerateResponse:
    return piece(Piece(unit, text, (1,), np.full(samples, 0.5, np.float32)), 24_000)


def ended(unit: int) -> pb.GenerateResponse:
    return done(Done(unit, End.CHUNK, None, 10))


async def soon(waiting: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(waiting, 10)


async def test_a_message_is_written_where_it_is_flushed() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, _):
        outbox.put(1)
        assert line.taken == []
        outbox.flush()
        assert line.taken == [1]


async def test_what_came_before_the_call_could_be_written_to_is_written_then() -> None:
    line = Line()
    outbox: Outbox[Any] = Outbox(lambda: 0.0)
    outbox.put(1)
    outbox.end()
    outbox.flush()
    running = asyncio.create_task(outbox.run(line.write))
    await turns(lambda: line.taken == [1])
    line.take()
    await soon(running)


async def test_messages_leave_one_at_a_time_in_the_order_they_came() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, _):
        for number in range(3):
            outbox.put(number)
            outbox.flush()
        for number in range(3):
            await turns(lambda number=number: line.taken == [*range(number + 1)])
            line.take()


async def test_what_waits_is_sent_before_the_end() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, running):
        for number in range(2):
            outbox.put(number)
        outbox.end()
        outbox.put(2)
        outbox.flush()
        for number in range(2):
            await turns(lambda number=number: line.taken == [*range(number + 1)])
            assert not running.done()
            line.take()
        await soon(running)
        assert line.taken == [0, 1]


async def test_an_outbox_with_nothing_to_write_ends_at_once() -> None:
    async with outbox_to(Line()) as (outbox, running):
        outbox.end()
        outbox.flush()
        await soon(running)


async def test_a_caller_is_waited_for_since_its_message_was_made() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, _):
        assert outbox.writing_since is None
        outbox.put(1)
        outbox.flush()
        assert outbox.writing_since == 5.0
        line.take()
        assert outbox.writing_since is None


async def test_there_is_room_while_less_than_the_backlog_waits() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, _):
        outbox.put("under way")
        outbox.flush()
        for number in range(BACKLOG):
            assert not outbox.is_full
            outbox.put(number)
        outbox.flush()
        assert outbox.is_full
        room = asyncio.create_task(outbox.room())
        await asyncio.sleep(0)
        assert not room.done()
        line.take()
        await soon(room)
        assert not outbox.is_full


async def test_a_write_that_fails_ends_the_call_with_its_error() -> None:
    async def fail(message: Any) -> None:
        raise OSError("the caller is gone")

    outbox: Outbox[Any] = Outbox(lambda: 0.0)
    running = asyncio.create_task(outbox.run(fail))
    outbox.put(1)
    with pytest.raises(OSError, match="the caller is gone"):
        await soon(running)
    outbox.put(2)
    outbox.flush()
    assert outbox.writing_since is None


async def test_a_write_that_fails_while_more_waits_ends_the_call_with_its_error() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, running):
        outbox.put(1)
        outbox.put(2)
        outbox.flush()
        line.under_way[0].set_exception(OSError("the caller is gone"))
        with pytest.raises(OSError, match="the caller is gone"):
            await soon(running)
        assert line.taken == [1]


async def test_a_call_that_is_cancelled_gives_up_its_write() -> None:
    line = Line()
    async with outbox_to(line) as (outbox, running):
        outbox.put(1)
        outbox.flush()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(running)
        assert line.under_way[0].cancelled()
        outbox.put(2)
        outbox.flush()
        assert line.taken == [1]


async def test_pieces_of_one_unit_wait_as_one_message() -> None:
    line = Line()
    async with outbox_to(line, absorb) as (outbox, _):
        for message in (said(1, "Hel"), said(1, "lo"), ended(1), said(2, "!")):
            outbox.put(message)
        assert len(outbox) == 2
        outbox.flush()
        (first,) = line.taken
        assert (first.text.text, list(first.text.token_ids), len(first.audio.data)) == ("Hello", [1, 1], 16)
        assert first.HasField("done")


def test_an_announcement_joins_nothing() -> None:
    assert not absorb(go_away(1, "a"), go_away(2, "b"))
    assert not absorb(said(1, "a"), go_away(2, "b"))


def test_nothing_joins_a_unit_that_is_done() -> None:
    assert not absorb(ended(1), ended(1))
