"""What every dispatcher offers, whatever stands behind it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from antiphon.semconv import DEFAULT_POOL
from ws_adapter.protocol.core.kind import Kind

POOL: Final = DEFAULT_POOL


@dataclass(frozen=True)
class QueuePlace:
    """A place in the queue: `position` counts from 1, the wait is in seconds."""

    ticket_id: str
    position: int
    queue_length: int
    estimated_wait_s: float
    estimate_is_guess: bool
    """Whether it rests on a kind of session of which less than three are over."""


@dataclass(frozen=True)
class Lease:
    """The right to one slot of one worker; `token` goes into the calls' metadata."""

    target: str
    token: str
    worker_id: str
    slot: int
    epoch: int


@dataclass(frozen=True)
class PoolStatus:
    """What a pool has at the moment: slots of workers that are ready, and how many of them are free."""

    workers: int
    slots: int
    free_slots: int
    queue_length: int


@dataclass(frozen=True)
class Waiting:
    """A ticket as others see it; `label` is what its caller calls its session. Times in seconds."""

    place: QueuePlace
    kind: Kind
    label: str
    enqueued_at: float
    """Unix time."""
    waited_s: float


@dataclass(frozen=True)
class Running:
    """A session that has a slot. Times in seconds."""

    worker_id: str
    slot: int
    kind: Kind
    started_at: float
    """Unix time."""
    elapsed_s: float
    remaining_s: float
    """Estimated."""
    remaining_is_guess: bool
    """Whether less than three sessions of its kind are over."""


@dataclass(frozen=True)
class QueueView:
    """A queue from outside: who waits, in order, and who has a slot, the longest first."""

    capacity: int
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]


class Ticket(Protocol):
    """One caller's place, from entering the queue to giving the slot back."""

    @property
    def id(self) -> str:
        """`ticket_` and 12 hexadecimal digits."""

    def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        """Places while the caller waits, at once and then regularly; ends after the lease.

        The position never grows. Raises `WaitExpired`, `WaitCancelled` or `DispatcherUnavailable`.
        """


class Dispatcher(Protocol):
    """Hands the oldest ticket of a pool the next free slot."""

    def acquire(
        self, pool: str, kind: Kind, max_wait: float, *, label: str = "", again: bool = False
    ) -> AbstractAsyncContextManager[Ticket]:
        """Enters the queue; leaving the block leaves the queue or gives the slot back, on every path.

        `max_wait` in seconds, 0 for ever. `label` names the session to those who look at the queue. `again`:
        the caller lost its worker and goes to the head of the queue. Leave the block only when the worker has
        ended all three calls. Raises `QueueFull` or `DispatcherUnavailable` on entering; an `AttachFailed`
        that leaves the block tells the dispatcher about the worker.
        """

    async def cancel(self, pool: str, ticket_id: str) -> bool:
        """Ends the wait of a ticket by `WaitCancelled`; False if no such ticket waits."""

    async def view(self, pool: str) -> QueueView:
        """Who waits and who has a slot."""

    async def status(self, pool: str) -> PoolStatus:
        """Counts of workers, slots and waiting tickets."""

    def is_contended(self, pool: str) -> bool:
        """Whether somebody waits."""
