"""The journal of one session in Redis, as a stream of entries that the adapter keeps up to date."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ws_adapter.protocol.core.blobs import Data, bytes_of
from ws_adapter.shared_journal.record import Blob, Event, State, UnitAnswer, UnitInput, encode
from ws_adapter.worker.journal import KeptUnit, Parts

if TYPE_CHECKING:
    from ws_adapter.shared_journal.journals import SharedJournals

WRITTEN: Final = 1
ANOTHERS: Final = 2
"""Answers of the functions."""


class SessionSnapshot(NamedTuple):
    """The state of a session at a time without incomplete operations."""

    settings: bytes
    """A new object if the settings have changed; then the whole journal is rewritten."""
    state: bytes
    blobs: Mapping[int, Data]
    """Data to which the state refers, by numbers that are never reused."""
    nonces: tuple[bytes, bytes]
    """Nonces of the tokens that resume the session; the second may be empty."""
    units: Iterable[KeptUnit]
    changes: int
    """A number that changes with `units`."""
    sent: int
    """Number of the last event that was sent. Events up to this one no longer change."""
    first: int
    """Number of the first stored event."""
    newest: int
    """Number of the last event, which may wait to be sent."""
    event: Callable[[int], Parts]
    """A function that returns an event by its number."""


class Source(Protocol):
    """The session of a journal."""

    def snapshot(self) -> SessionSnapshot | None:
        """Return the current state for another adapter; None if it cannot continue from it."""

    @property
    def is_settled(self) -> bool:
        """Whether no operation is incomplete. The session calls `commit` when this becomes true."""

    def taken_elsewhere(self) -> None:
        """End the session here, because another adapter owns it."""


@dataclass(slots=True)
class _Unit:
    """The numbers of a unit's entries; 0 for none."""

    input: int
    answer: int = 0
    record: bytes = b""


class JournalStream:
    """The stream of one session. Each `commit` writes a record; if it cannot be sent, the whole journal is
    rewritten later."""

    def __init__(
        self, journals: "SharedJournals", session_id: str, path: str, source: Source, *, is_known: bool
    ) -> None:
        """`path` is the dialect and mode of the session; `is_known` if Redis has it from another adapter."""
        self.session_id: Final = session_id
        self.is_behind = True
        """Whether Redis lacks a record."""
        self._journals = journals
        self._path = path
        self._source = source
        self._has_begun = is_known
        """Whether Redis may have a part of the journal."""
        self._is_closed = False
        self._writing = 0
        """The number of rewrites, to ignore answers to records of earlier ones."""
        self._last = 0
        self._settings = b""
        self._units: dict[int, _Unit] = {}
        self._events: dict[int, tuple[int, Parts]] = {}
        self._blobs: dict[int, int] = {}
        """The entry number of each blob."""
        self._changes = -1
        self._sent = 0
        self._first = 1
        self._newest = 0
        self._state = 0

    def commit(self) -> None:
        """Write the changes since the last commit, unless the stream is queued to be rewritten."""
        if not self._journals.awaits_rewrite(self):
            self.catch_up()

    def catch_up(self) -> None:
        """Write the records that Redis lacks."""
        if self._is_closed or not self._source.is_settled:
            return
        snapshot = self._source.snapshot()
        if snapshot is None:
            if self._has_begun:
                self.close()
        elif self.is_behind:
            self._begin(snapshot)
        elif snapshot.settings is not self._settings:
            self._reset()
            self._begin(snapshot)
        else:
            self._go_on(snapshot)

    def missing(self) -> None:
        """Queue a rewrite of the journal, because Redis has lost it."""
        if not (self.is_behind or self._is_closed):
            self._lose()

    def taken_elsewhere(self) -> None:
        """Stop writing and end the session here, because another adapter owns it."""
        if not self._is_closed:
            self._end()
            self._source.taken_elsewhere()

    def hand_over(self) -> bool:
        """Let any adapter take over the session in its current state, and write nothing afterwards.

        Returns False, without a handover, if the journal in Redis is incomplete.
        """
        self.commit()
        if self._is_closed or self.is_behind or not self._source.is_settled:
            return False
        self._journals.send("release", (self.session_id,), lambda answer: None)
        self._end()
        return True

    def close(self) -> None:
        """End the stream of a finished session. Harmless when repeated."""
        if self._is_closed:
            return
        if self._has_begun:
            self._journals.give_up(self.session_id)
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._journals.remove(self)
        self._reset()

    def _reset(self) -> None:
        self.is_behind = True
        self._writing += 1
        self._settings, self._units, self._events, self._blobs = b"", {}, {}, {}
        self._changes, self._sent, self._first, self._newest, self._state = -1, 0, 1, 0, 0

    def _lose(self) -> None:
        """Count a record that Redis lacks, and queue a rewrite."""
        self._journals.gaps += 1
        self._reset()
        self._journals.queue_rewrite(self)

    # ------------------------------------------------------------------------------------- writing

    def _begin(self, snapshot: SessionSnapshot) -> None:
        entries = list(self._changed(snapshot, []))
        words = (*self._head(snapshot), self._path, snapshot.settings, *entries)
        if self._send("begin", words):
            self._has_begun, self.is_behind, self._settings = True, False, snapshot.settings
            self._journals.caught_up(self)
        else:
            self._reset()
            self._journals.queue_rewrite(self)

    def _go_on(self, snapshot: SessionSnapshot) -> None:
        before = self._last
        gone: list[int] = []
        entries = list(self._changed(snapshot, gone))
        words = (*self._head(snapshot), before, len(gone), *gone, *entries)
        if not self._send("append", words):
            self._lose()

    def _head(self, snapshot: SessionSnapshot) -> tuple[object, ...]:
        nonce, used = snapshot.nonces
        return self._last, nonce.hex(), used.hex(), snapshot.first, snapshot.newest

    def _send(self, function: str, words: tuple[object, ...]) -> bool:
        writing = self._writing

        def answered(answer: Any) -> None:
            if self._is_closed or writing != self._writing:
                return
            if answer == ANOTHERS:
                self.taken_elsewhere()
            elif answer != WRITTEN:
                self._lose()

        return self._journals.write(function, self.session_id, words, answered)

    def _changed(self, snapshot: SessionSnapshot, gone: list[int]) -> Iterator[object]:
        """Yield numbers and data of the entries that Redis lacks; append entries to delete to `gone`."""
        if snapshot.changes != self._changes:
            self._changes = snapshot.changes
            yield from self._changed_units(snapshot.units, gone)
        yield from self._changed_events(snapshot, gone)
        yield from self._changed_blobs(snapshot.blobs, gone)
        if self._state:
            gone.append(self._state)
        self._state = self._next()
        yield from (self._state, encode(State(snapshot.state)))

    def _changed_units(self, units: Iterable[KeptUnit], gone: list[int]) -> Iterator[object]:
        left, self._units = self._units, {}
        for kept in units:
            known = left.pop(kept.number, None)
            if known is None:
                known = _Unit(self._next())
                yield from (known.input, encode(UnitInput(kept.number, b"".join(kept.parts))))
            self._units[kept.number] = known
            if kept.record is not known.record:
                if known.answer:
                    gone.append(known.answer)
                known.answer, known.record = self._next(), kept.record
                yield from (known.answer, encode(UnitAnswer(kept.number, kept.record, kept.samples)))
        for known in left.values():
            gone.append(known.input)
            if known.answer:
                gone.append(known.answer)

    def _changed_events(self, snapshot: SessionSnapshot, gone: list[int]) -> Iterator[object]:
        for number in (*range(self._first, snapshot.first), *range(snapshot.newest + 1, self._newest + 1)):
            if (known := self._events.pop(number, None)) is not None:
                gone.append(known[0])
        for number in range(max(snapshot.first, self._sent + 1), snapshot.newest + 1):
            parts, known = snapshot.event(number), self._events.get(number)
            if known is not None and known[1] == parts:
                continue
            if known is not None:
                gone.append(known[0])
            entry = self._next()
            self._events[number] = entry, parts
            yield from (entry, encode(Event(number, b"".join(parts))))
        self._sent, self._first, self._newest = snapshot.sent, snapshot.first, snapshot.newest

    def _changed_blobs(self, blobs: Mapping[int, Data], gone: list[int]) -> Iterator[object]:
        for number in self._blobs.keys() - blobs.keys():
            gone.append(self._blobs.pop(number))
        for number, data in blobs.items():
            if number not in self._blobs:
                self._blobs[number] = entry = self._next()
                yield from (entry, encode(Blob(number, bytes_of(data))))

    def _next(self) -> int:
        self._last += 1
        return self._last
