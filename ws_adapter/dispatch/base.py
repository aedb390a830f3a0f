"""What every dispatcher offers, whatever stands behind it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

POOL: Final = "default"
"""The one pool: all workers are interchangeable."""


class Kind(StrEnum):
    """What a session is, for estimating how long it will take."""

    AUDIO_DUPLEX = "audio_duplex"


@dataclass(frozen=True)
class QueuePlace:
    """A place in the queue: `position` counts from 1, the wait is in seconds."""

    ticket_id: str
    position: int
    queue_length: int
    estimated_wait_s: float


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
    """What a pool has at the moment."""

    workers: int
    slots: int
    free_slots: int
    queue_length: int


class Ticket(Protocol):
    """One caller's place, from entering the queue to giving the slot back."""

    @property
    def id(self) -> str:
        """`ticket_` and 12 hexadecimal digits."""

    def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        """Places while the caller waits, at once and then regularly; ends after the lease.

        Raises `WaitExpired` or `DispatcherUnavailable`.
        """


class Dispatcher(Protocol):
    """Hands the oldest ticket of a pool the next free slot."""

    def acquire(
        self, pool: str, kind: Kind, max_wait: float, *, again: bool = False
    ) -> AbstractAsyncContextManager[Ticket]:
        """Enters the queue; leaving the block leaves the queue or gives the slot back, on every path.

        `max_wait` in seconds, 0 for ever. `again`: the caller lost its worker and goes to the head of the
        queue. Leave the block only when the worker has ended all three calls. Raises `QueueFull` or
        `DispatcherUnavailable` on entering; an `AttachFailed` that leaves the block tells the dispatcher
        about the worker.
        """

    async def status(self, pool: str) -> PoolStatus:
        """Counts of workers, slots and waiting tickets."""

    def is_contended(self, pool: str) -> bool:
        """Whether somebody waits."""
