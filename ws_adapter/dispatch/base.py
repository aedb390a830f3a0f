"""The interface of every dispatcher."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind

MODE_OF: Final = {
    Kind.AUDIO_DUPLEX: Mode.AUDIO,
    Kind.OMNI_DUPLEX: Mode.VIDEO,
    Kind.CHAT: Mode.CHAT,
    Kind.REALTIME: Mode.CHAT,
    Kind.TRANSCRIPTION: Mode.TRANSCRIPTION,
}
"""The mode that a worker must serve for each kind of session."""


class Need(NamedTuple):
    """Requirements of a session on its worker.

    Without a `mode` the kind of the session decides; an empty `model` accepts any. `models` are those that
    the caller's key allows; None allows all.
    """

    mode: Mode | None = None
    model: str = ""
    models: frozenset[str] | None = None

    def allows(self, model: str) -> bool:
        """Return whether the caller may use this model."""
        return self.models is None or model in self.models


ANYTHING: Final = Need()


class LeaseTerms(NamedTuple):
    """Claims that the dispatcher signs into a lease. Limits are in seconds; 0 means no limit."""

    tenant: str = ""
    """The tenant, such as `key:` and a hash or `address:203.0.113.5`: its sessions share cached prompts.
    The lease holds a keyed hash of it. Empty means a tenant of the session's own."""
    max_duration_s: float = 0.0
    idle_timeout_s: float = 0.0


ANY_TERMS: Final = LeaseTerms()


class Priority(IntEnum):
    """Class of a caller in the queue; see `HEAD_START`."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


HEAD_START: Final = 16
"""The number of arrivals by which a class is ahead of the class below it.

A ticket is queued as if it had arrived so many tickets earlier for each class above the lowest. So at most 16
later tickets of the class above overtake a ticket, and at most 32 of the highest class overtake one of the
lowest. No class starves another."""


class Share(NamedTuple):
    """The bound on slots of a pool that one holder may have or wait for at once."""

    holder: str
    """The holder, `key:` and a hash or `address:` and an address; shared queues see a keyed hash of it."""
    most: int = 0
    """The most slots; 0 means all slots of the pool but one, and at least one."""


@dataclass(frozen=True)
class QueuePlace:
    """A place in the queue: `position` counts from 1, the wait is in seconds."""

    ticket_id: str
    position: int
    queue_length: int
    estimated_wait_s: float
    estimate_is_guess: bool
    """Whether the estimate depends on a kind with fewer than three finished sessions."""


@dataclass(frozen=True)
class Lease:
    """The right to one slot of one worker; `token` goes into the calls' metadata."""

    target: str
    token: str
    worker_id: str
    slot: int
    epoch: int
    pool: str
    """The pool from which this worker was chosen."""


@dataclass(frozen=True)
class PoolStatus:
    """Counts of ready workers, their slots and the waiting tickets, over all pools."""

    workers: int
    slots: int
    free_slots: int
    queue_length: int
    is_degraded: bool = False
    """Whether the counts are stale because the dispatcher cannot be reached."""


@dataclass(frozen=True)
class Waiting:
    """A waiting ticket; `label` is the caller's name for its session. Times are in seconds."""

    place: QueuePlace
    kind: Kind
    label: str
    enqueued_at: float
    """Unix time in seconds."""
    waited_s: float


@dataclass(frozen=True)
class Running:
    """A session that has a slot. Times are in seconds."""

    worker_id: str
    slot: int
    kind: Kind | None
    """The kind; None if the session is older than the data of the queue."""
    started_at: float
    """Unix time in seconds."""
    elapsed_s: float
    remaining_s: float
    """The estimated time until the session ends."""
    remaining_is_guess: bool
    """Whether fewer than three sessions of its kind have finished."""


@dataclass(frozen=True)
class QueueView:
    """A snapshot of all queues: waiting tickets in the order of each pool, and running sessions.

    `capacity` is the most waiting tickets of one pool.
    """

    capacity: int
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]


class Ticket(Protocol):
    """One caller's place, from entering the queue to giving the slot back."""

    @property
    def id(self) -> str:
        """The id, `ticket_` and 12 hexadecimal digits."""

    def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        """Yield places while the caller waits, at once and then regularly, and last the lease.

        The position never grows. Raises `WaitExpired`, `WaitCancelled` or `DispatcherUnavailable`.
        """


class Dispatcher(Protocol):
    """The queue for slots: the first ticket of a pool gets the next free slot.

    A pool is all workers of one model and the same modes (`antiphon_service.pools`). A ticket waits in a pool
    that can serve it: one with a free slot, else the one with the shortest wait.
    """

    rules: QueueRules
    """The rules of the queue, which may be replaced: waiting tickets keep their time limits, and take the new
    weights."""

    def acquire(
        self,
        kind: Kind,
        max_wait: float,
        *,
        need: Need = ANYTHING,
        label: str = "",
        again: str | None = None,
        terms: LeaseTerms = ANY_TERMS,
        share: Share | None = None,
        priority: Priority = Priority.NORMAL,
        revision: str = "",
    ) -> AbstractAsyncContextManager[Ticket]:
        """Enter a queue; leaving the block leaves the queue, or gives the slot back.

        `max_wait` is in seconds; 0 means no limit. `need` is what the worker must serve besides the kind.
        `label` names the session in views of the queue. `again` is the pool in which the caller lost its
        worker: there it goes to the head of the queue, in any other pool to the end. `terms` are signed into
        the lease. A `share` bounds the slots of its holder. `priority` is the class in the queue. `revision`
        is that of the session's last worker: a free slot of that revision is preferred, without any effect on
        the place in the queue.

        Leave the block only after the worker has ended all three calls. Raises `QueueFull`, `SlotLimit` or
        `DispatcherUnavailable` on entering. From an `AttachFailed` that is raised in the block, the
        dispatcher learns the state of the worker.
        """

    async def cancel(self, ticket_id: str) -> bool:
        """End the wait of a ticket by `WaitCancelled`; False if no such ticket waits."""

    async def find(self, ticket_id: str) -> Waiting | None:
        """Return a ticket that waits, None if there is none."""

    async def view(self) -> QueueView:
        """Return running sessions and waiting tickets; of other adapters only the first tickets of a pool."""

    async def status(self) -> PoolStatus:
        """Return the counts of workers, slots and waiting tickets."""

    def is_contended(self, pool: str) -> bool:
        """Return whether a ticket waits for a slot of this pool."""

    def has_spare(self, kind: Kind, need: Need) -> bool:
        """Return whether a suitable slot is known to be free, with no ticket waiting for it."""

    def has_room(self, pool: str, beside: str) -> bool:
        """Return whether a worker of this pool, other than the one at `beside`, has a known spare slot."""

    def start(self) -> None:
        """Begin to give slots; called once, on the running event loop."""

    async def close(self) -> None:
        """Give back all leases and tickets; end all tasks, timers and connections."""
