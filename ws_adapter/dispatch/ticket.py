"""A caller's request for a slot, and its ticket in the queue of any dispatcher."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ws_adapter.dispatch.base import ANY_TERMS, ANYTHING, Lease, LeaseTerms, Need, Priority, QueuePlace, Share
from ws_adapter.process.clock import Clock
from ws_adapter.process.errors import DispatchError, SlotLimit
from ws_adapter.protocol.core.kind import Kind


@dataclass(frozen=True)
class SlotRequest:
    """The slot that a caller wants; see `Dispatcher.acquire`."""

    kind: Kind
    need: Need = ANYTHING
    label: str = ""
    again: str | None = None
    max_wait_s: float = 0.0
    terms: LeaseTerms = ANY_TERMS
    share: Share | None = None
    priority: Priority = Priority.NORMAL
    revision: str = ""


def slot_limit(most: int) -> SlotLimit:
    """Return the error of a caller that wants more than `most` slots of a pool."""
    return SlotLimit(f"one key or address may hold or wait for at most {most} slots of a pool; end one first")


class QueuedTicket:
    """A waiting ticket. It is settled by a lease or by an error, whichever comes first."""

    def __init__(
        self, request: SlotRequest, clock: Clock, update_s: float, place: Callable[[Any], QueuePlace]
    ) -> None:
        """`place` returns the current place of a ticket; it is reported every `update_s` seconds."""
        self.id = f"ticket_{secrets.token_hex(6)}"
        self.request = request
        self.entered_at = clock.now()
        self.position: int | None = None
        """The last reported position."""
        self.order = 0
        """The order of the ticket in a queue in memory: lower comes first."""
        self.lease: Lease | None = None
        self.granted_at = 0.0
        self._clock = clock
        self._update_s = update_s
        self._place = place
        self.error: DispatchError | None = None
        """The error that ended the wait."""
        self._news = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether the wait is over."""
        return self.lease is not None or self.error is not None

    def move_to(self, position: int) -> int:
        """Return the position to report; a ticket that was overtaken keeps its old one."""
        self.position = min(position, self.position or position)
        return self.position

    def grant(self, lease: Lease) -> None:
        """End the wait with a lease."""
        self.lease, self.granted_at = lease, self._clock.now()
        self._news.set()

    def fail(self, error: DispatchError) -> None:
        """End the wait with an error."""
        self.error = self.error or error
        self._news.set()

    async def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        due = self._clock.now()
        while not self.is_settled:
            yield self._place(self)
            due += self._update_s
            timer = self._clock.call_at(due, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
            self._news.clear()
        if self.error is not None:
            raise self.error
        assert self.lease is not None
        yield self.lease
