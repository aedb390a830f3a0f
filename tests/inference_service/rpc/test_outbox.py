"""Answers on their way out: in order, joined where they can be, bounded."""

from typing import Any

import numpy as np
import pytest

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import Done, End, Piece
from inference_service.rpc.messages.replies import absorb, done, go_away, piece
from inference_service.rpc.transport.outbox import BACKLOG, Outbox


class Way:
    """An outbox, and at its end a caller who has room for one message, and takes it when told to."""

    def __init__(self, *join: Any) -> None:
        self.outbox: Outbox[Any] = Outbox(lambda: 5.0, *join)
        self.written: list[Any] = []
        self.is_busy = False
        self.is_finished = False

    def write(self, message: Any) -> None:
        assert not self.is_busy
        self.written.append(message)
        self.is_busy = True

    def finish(self) -> None:
        self.is_finished = True

    def open(self) -> "Way":
        self.outbox.open(self)
        return self

    def put(self, *messages: Any) -> None:
        for message in messages:
            self.outbox.put(message)
        self.outbox.flush()

    def take(self) -> None:
        self.is_busy = False
        self.outbox.flush()


def said(unit: int, text: str, samples: int = 2) -> pb.GenerateResponse:
    return piece(Piece(unit, text, (1,), np.full(samples, 0.5, np.float32)), 24_000)


def ended(unit: int) -> pb.GenerateResponse:
    return done(Done(unit, End.CHUNK, None, 10))


def test_a_message_is_written_where_it_is_flushed() -> None:
    way = Way().open()
    way.outbox.put(1)
    assert (way.written, way.outbox.is_pending) == ([], True)
    way.outbox.flush()
    assert (way.written, way.outbox.is_pending) == ([1], False)


def test_answers_before_open_are_written_on_open() -> None:
    way = Way()
    way.put(1)
    way.outbox.end()
    way.outbox.flush()
    assert way.open().written == [1]
    way.take()
    assert way.is_finished


def test_messages_leave_as_the_caller_takes_them_in_the_order_they_came() -> None:
    way = Way().open()
    way.put(0, 1, 2)
    for number in range(3):
        assert way.written == [*range(number + 1)]
        way.take()


def test_pending_answers_are_sent_before_end_and_later_ones_dropped() -> None:
    way = Way().open()
    way.put(0, 1)
    way.outbox.end()
    way.put(2)
    for _ in range(2):
        assert not way.is_finished
        way.take()
    assert (way.written, way.is_finished) == ([0, 1], True)
    empty = Way().open()
    empty.outbox.end()
    empty.outbox.flush()
    assert empty.is_finished


def test_a_caller_is_waited_for_since_its_message_was_written() -> None:
    way = Way().open()
    assert way.outbox.writing_since is None
    way.put(1)
    assert way.outbox.writing_since == 5.0
    way.take()
    assert way.outbox.writing_since is None


def test_there_is_room_while_less_than_the_backlog_waits() -> None:
    way = Way().open()
    way.put("under way")
    for number in range(BACKLOG):
        assert not way.outbox.is_full
        way.put(number)
    assert way.outbox.is_full
    way.take()
    assert not way.outbox.is_full


def test_closed_outbox_writes_nothing_to_disconnected_caller() -> None:
    way = Way().open()
    way.put(1, 2)
    way.outbox.close()
    way.put(3)
    way.take()
    assert (way.written, way.outbox.writing_since) == ([1], None)


def test_pieces_of_one_unit_wait_as_one_message() -> None:
    way = Way(absorb)
    way.put(said(1, "Hel"), said(1, "lo"), ended(1), said(2, "!"))
    assert len(way.outbox) == 2
    (first,) = way.open().written
    assert (first.text.text, list(first.text.token_ids), len(first.audio.data)) == ("Hello", [1, 1], 16)
    assert first.HasField("done")


def test_announcements_rewinds_and_units_that_are_done_join_nothing() -> None:
    rewound = pb.GenerateResponse(unit=1, rewound=pb.UnitsRewound(rewound_units=1))
    assert not absorb(go_away(1, "a"), go_away(2, "b"))
    assert not absorb(said(1, "a"), go_away(2, "b"))
    assert not absorb(ended(1), ended(1))
    assert not absorb(said(1, "a"), rewound)
    assert not absorb(rewound, said(1, "a"))


@pytest.mark.parametrize(
    ("samples", "sent"),
    [([0.5, -1.0], [0.5, -1.0]), ([np.nan, np.inf, -np.inf, 2.0], [0.0, 1.0, -1.0, 1.0])],
    ids=["within bounds", "beyond them"],
)
def test_output_audio_is_finite_and_bounded(samples: list[float], sent: list[float]) -> None:
    message = piece(Piece(1, audio=np.array(samples, np.float32)), 24_000)
    assert np.frombuffer(message.audio.data, "<f4").tolist() == sent
