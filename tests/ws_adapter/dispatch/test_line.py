"""The queue order of one pool, and its estimates."""

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.dispatch.base import HEAD_START, Priority
from ws_adapter.dispatch.estimate import EstimateInputs, Session
from ws_adapter.dispatch.line import Line
from ws_adapter.dispatch.ticket import QueuedTicket, SlotRequest
from ws_adapter.protocol.core.kind import Kind

LIMITS = {Kind.AUDIO_DUPLEX: 600.0}


class Queue:
    """A line of the pool `pool` with one running session."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.line: Line[QueuedTicket] = Line("pool", self.clock)
        self.running_s = 30.0
        self.estimates = 0

    def ticket(self, **fields: object) -> QueuedTicket:
        """Return a ticket that has been added."""
        request = SlotRequest(Kind.AUDIO_DUPLEX, **fields)  # type: ignore[arg-type]
        ticket = QueuedTicket(request, self.clock, 3.0, lambda: self.line.place(ticket, self.inputs))
        self.line.add(ticket)
        return ticket

    def inputs(self) -> EstimateInputs:
        self.estimates += 1
        return self.line.inputs(
            0, [Session(Kind.AUDIO_DUPLEX, self.running_s)] if self.running_s else [], LIMITS
        )


def test_tickets_leave_in_the_order_of_arrival() -> None:
    queue = Queue()
    tickets = [queue.ticket() for _ in range(3)]

    queue.line.remove(tickets[1])
    queue.line.remove(tickets[1])

    assert [queue.line.next(), queue.line.next()] == [tickets[0], tickets[2]]


def test_priority_passes_a_bounded_number_of_earlier_tickets() -> None:
    queue = Queue()
    earlier = [queue.ticket() for _ in range(HEAD_START + 5)]

    high = queue.ticket(priority=Priority.HIGH)

    ahead = list(queue.line.waiting).index(high)
    assert len(earlier) - ahead == HEAD_START - 1


def test_ticket_that_lost_a_worker_of_this_pool_goes_to_the_head_behind_earlier_ones() -> None:
    queue = Queue()
    usual = queue.ticket(priority=Priority.HIGH)
    first, second = queue.ticket(again="pool"), queue.ticket(again="pool")
    other = queue.ticket(again="other")

    assert list(queue.line.waiting) == [first, second, usual, other]


async def test_estimates_are_kept_for_a_second_unless_the_queue_changes() -> None:
    queue = Queue()
    await queue.clock.advance(100)
    ticket = queue.ticket()
    place = queue.line.place(ticket, queue.inputs)
    assert (place.position, place.queue_length, place.estimate_is_guess) == (1, 1, True)

    queue.running_s = 90.0
    await queue.clock.advance(0.5)
    assert queue.line.place(ticket, queue.inputs) == place
    assert queue.estimates == 1
    await queue.clock.advance(0.5)
    assert queue.line.place(ticket, queue.inputs).estimated_wait_s > place.estimated_wait_s
    assert queue.estimates == 2

    queue.ticket()
    assert queue.line.place(ticket, queue.inputs).queue_length == 2
    assert queue.estimates == 3


@pytest.mark.parametrize("max_wait_s", [30.0, 0.0])
def test_estimate_without_any_slot_is_the_longest_wait_as_a_guess(max_wait_s: float) -> None:
    queue = Queue()
    queue.running_s = 0.0
    ticket = queue.ticket(max_wait_s=max_wait_s)

    place = queue.line.place(ticket, queue.inputs)

    assert place.estimated_wait_s == max_wait_s
    assert place.estimate_is_guess
