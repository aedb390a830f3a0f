"""Answers on their way out: in order, joined where they can be, bounded."""

import asyncio

import numpy as np

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.api.engine import Done, End, Piece
from inference_service.errors import Draining
from inference_service.rpc.replies import absorb, done, go_away, piece
from inference_service.rpc.session_calls import BACKLOG, Outbox


def said(unit: int, text: str, samples: int = 2) -> pb.GenerateResponse:
    return piece(Piece(unit, text, (1,), np.full(samples, 0.5, np.float32)), 24_000)


def ended(unit: int) -> pb.GenerateResponse:
    return done(Done(unit, End.CHUNK, None, 10))


async def test_messages_leave_in_the_order_they_came() -> None:
    outbox: Outbox[int] = Outbox()
    for number in range(3):
        outbox.put(number)
    assert [await outbox.take() for _ in range(3)] == [0, 1, 2]


async def test_what_waits_is_sent_before_the_end() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put(1)
    outbox.end(error := Draining("bye"))
    outbox.put(2)
    assert [await outbox.take(), await outbox.take()] == [1, None]
    assert outbox.error is error


async def test_a_taker_is_woken_by_the_end() -> None:
    outbox: Outbox[int] = Outbox()
    taker = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.end(None)
    assert await taker is None


async def test_there_is_room_while_less_than_the_backlog_waits() -> None:
    outbox: Outbox[int] = Outbox()
    for number in range(BACKLOG):
        assert outbox.room.is_set()
        outbox.put(number)
    assert not outbox.room.is_set()
    await outbox.take()
    assert outbox.room.is_set()


async def test_pieces_of_one_unit_wait_as_one_message() -> None:
    outbox = Outbox(absorb)
    for message in (said(1, "Hel"), said(1, "lo"), ended(1), said(2, "!")):
        outbox.put(message)
    assert len(outbox) == 2
    first = await outbox.take()
    assert first is not None
    assert (first.text.text, list(first.text.token_ids), len(first.audio.data)) == ("Hello", [1, 1], 16)
    assert first.HasField("done")


def test_an_announcement_joins_nothing() -> None:
    assert not absorb(go_away(1, "a"), go_away(2, "b"))
    assert not absorb(said(1, "a"), go_away(2, "b"))


def test_nothing_joins_a_unit_that_is_done() -> None:
    assert not absorb(ended(1), ended(1))
