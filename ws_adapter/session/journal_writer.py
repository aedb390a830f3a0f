"""The state of a session that is kept in Redis, for its takeover by another adapter."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from ws_adapter.protocol.core.blobs import Blobs
from ws_adapter.protocol.core.machine import Machine
from ws_adapter.resume.connection import ResumableConnection
from ws_adapter.session.failover import SavedFailover
from ws_adapter.session.outbox import Outbox
from ws_adapter.session.pausable_clock import PausableClock
from ws_adapter.session.slot import Slot
from ws_adapter.shared_journal.journals import SharedJournals
from ws_adapter.shared_journal.record import FORMAT, Settings, StoredJournal, encode
from ws_adapter.shared_journal.stream import SessionSnapshot
from ws_adapter.worker.journal import Journal, KeptUnit, Parts

COMMIT_S: Final = 0.5
"""The shortest interval of writing input that has caused no event, in seconds."""

MOST_BLOB_BYTES: Final = 48 * 2**20
"""The most bytes of data beside the worker's journal; larger sessions cannot be taken over."""


class SavedSession(Struct, array_like=True, frozen=True):
    """The state of a session. `received` is the number of client messages that it includes."""

    received: int
    machine: bytes
    """The result of `Machine.save`."""
    failover: SavedFailover | None
    """The failover state; None if the session has no journal of a worker."""


_read: Final = msgspec.msgpack.Decoder(SavedSession).decode


class TakenSession(Struct, frozen=True):
    """A session that is taken over from another adapter, and the request of its client."""

    session_id: str
    label: str
    config: bytes
    was_handed_over: bool
    saved: SavedSession
    units: dict[int, KeptUnit]
    events: dict[int, Parts]
    blobs: dict[int, bytes]
    last_event: int
    """The number of the client's last event."""
    nonces: tuple[bytes, bytes]
    """The nonces of the client's token, and of the next one."""

    @classmethod
    def of(
        cls, session_id: str, stored: StoredJournal, last_event: int, nonces: tuple[bytes, bytes]
    ) -> "TakenSession":
        """Read a session from Redis. Raises `ValueError` if it cannot continue."""
        settings = stored.settings
        return cls(
            session_id,
            settings.label,
            settings.config,
            stored.was_handed_over,
            _read(stored.state),
            stored.units,
            stored.events,
            stored.blobs,
            last_event,
            nonces,
        )


class SessionParts(Protocol):
    """The session, as far as its journal writer uses it."""

    @property
    def machine(self) -> Machine:
        """The protocol state machine."""

    @property
    def slot(self) -> Slot | None:
        """The slot of the session, or the one that it queues for."""

    @property
    def is_settled(self) -> bool:
        """Whether the journal of the slot has all units that were run."""

    @property
    def unread(self) -> int:
        """The number of received messages that are not handled yet."""

    def taken_elsewhere(self) -> None:
        """Handle that another adapter has taken the session over."""


class SessionJournalWriter:
    """The writer of one session's journal in Redis."""

    def __init__(
        self,
        journals: SharedJournals,
        socket: ResumableConnection,
        outbox: Outbox,
        clock: PausableClock,
        label: str,
        parts: SessionParts,
        *,
        is_taken: bool,
    ) -> None:
        self._socket = socket
        self._outbox = outbox
        self._clock = clock
        self._label = label
        self._parts = parts
        self._settings = b""
        self._journal: Journal | None = None
        """The journal whose settings were written."""
        self._blobs = Blobs()
        self._stream = journals.open(socket.session_id, socket.path, self, is_known=is_taken)
        self._committed_at = float("-inf")
        self.hand_over: Final[Callable[[], bool]] = self._stream.hand_over
        self.close: Final[Callable[[], None]] = self._stream.close

    def commit(self) -> None:
        """Write all changes."""
        self._committed_at = self._clock.now()
        self._stream.commit()

    def commit_soon(self) -> None:
        """Write all changes, unless the last write is less than `COMMIT_S` ago."""
        if self._clock.now() - self._committed_at >= COMMIT_S:
            self.commit()

    def taken_elsewhere(self) -> None:
        """Handle that another adapter has taken the session over."""
        self._parts.taken_elsewhere()

    @property
    def is_settled(self) -> bool:
        """Whether no operation of the session is incomplete."""
        return self._parts.is_settled

    def snapshot(self) -> SessionSnapshot | None:
        """Return the current state for another adapter; None if it cannot continue from it."""
        machine, slot, now = self._parts.machine, self._parts.slot, self._clock.now()
        journal = slot.journal if slot is not None else None
        failover = slot.save() if slot is not None and journal is not None else None
        if failover is None:
            journal = None
        self._blobs.begin()
        saved = machine.save(now, self._blobs, has_journal=journal is not None)
        if saved is None or self._blobs.size > MOST_BLOB_BYTES:
            return None
        if not self._settings or journal is not self._journal:
            self._journal, config = journal, journal.config if journal is not None else b""
            self._settings = encode(Settings(FORMAT, self._label, config))
        received = self._socket.received - self._parts.unread
        buffer, waiting = self._socket.buffer, self._outbox.waiting

        def event(number: int) -> Parts:
            return tuple(waiting[number - buffer.sent - 1]) if number > buffer.sent else buffer.event(number)

        return SessionSnapshot(
            self._settings,
            encode(SavedSession(received, saved, failover)),
            self._blobs.kept,
            self._socket.lasting_nonces,
            journal.units if journal is not None else (),
            journal.changes if journal is not None else 0,
            buffer.sent,
            buffer.first,
            buffer.sent + len(waiting),
            event,
        )
