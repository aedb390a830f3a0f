"""Journals of full-duplex sessions: their settings, and the inputs and records of their latest units.

With it another worker is brought to where the one was that is lost. A journal refers to the bytes that were
sent and copies none of them.
"""

import secrets
from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from antiphon.unit_log import UnitLog
from antiphon.v1 import inference_service_pb2 as pb

Parts: TypeAlias = tuple[bytes, ...]
"""A serialised `pb.PrefillRequest` in parts."""


class _Unit(Struct, eq=False):
    """A unit of a session."""

    number: int
    parts: Parts
    record: bytes = b""
    """A serialised `pb.UnitRecord`; empty until it is answered."""
    samples: int = 0
    """Of its sound so far."""

    @property
    def size(self) -> int:
        """Bytes of its input and record."""
        return sum(map(len, self.parts)) + len(self.record)


class TakenBack(Struct, frozen=True):
    """An order to take back what was said after `heard_samples` of `unit`, None for all of its samples."""

    unit: int
    heard_samples: int | None


class Journals:
    """All journals of an adapter, and their bounds."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        """`seconds` of units are kept of each session, and `most_bytes` of all; 0 keeps none."""
        self.held_bytes = 0
        """Of all journals."""
        self.seconds: Final = seconds
        self.most_bytes: Final = most_bytes
        self._count = 0

    def open(self) -> "Journal | None":
        """Return a new journal; None where none are kept."""
        if not self.seconds or not self.most_bytes:
            return None
        self._count += 1
        return Journal(self)

    @property
    def share(self) -> int:
        """Bytes that one session may keep."""
        if self.held_bytes <= self.most_bytes:
            return self.most_bytes
        return self.most_bytes // max(1, self._count)

    def forget(self, held: int) -> None:
        """Note that a journal is closed which held so many bytes."""
        self.held_bytes -= held
        self._count -= 1


class Journal:
    """The journal of one session at a worker. Units are numbered as the session numbers them."""

    def __init__(self, journals: Journals) -> None:
        self.config = b""
        """The settings of the session: a serialised `pb.PrefillRequest`."""
        self.model = ""
        """Name of the model that hears the units."""
        self.rewinds: list[TakenBack] = []
        """Orders to take back that have no answer, in order."""
        self._journals = journals
        self._log: UnitLog[_Unit] = UnitLog(journals.seconds, journals.most_bytes)
        self._counted = 0
        """Bytes that are counted among those of all journals."""
        self._unfinalized: set[int] = set()
        """Units that were answered and are not closed."""
        self._last = 0
        """Number of the newest unit."""
        self._has_answers = False
        self._draws = (0, 0)
        """Random numbers used up by text and by speech."""
        self._is_closed = False

    # ------------------------------------------------------------------------------------ settings

    def settle(self, config: pb.SessionConfig) -> bytes:
        """Keep the settings of the session; return the message that opens it, with `records` and a seed."""
        config.records = True
        if not config.HasField("seed"):
            config.seed = secrets.randbits(32)
        self.config = pb.PrefillRequest(unit=0, config=config).SerializeToString()
        self._count()
        return self.config

    def begin(self, ready: pb.SessionReady) -> bool:
        """Note which model hears the units; return whether the worker keeps records of them.

        At another worker the model must be the same.
        """
        effective = ready.effective
        if not (effective.records and effective.automatic_units) or self.model not in ("", ready.model):
            return False
        self.model = ready.model
        unit_s = ready.unit_duration.ToTimedelta().total_seconds()
        self._log.unit_s = unit_s or self._log.unit_s
        return True

    # --------------------------------------------------------------------------------------- units

    def sent(self, unit: int, parts: Parts) -> None:
        """Keep the input of a unit until its answer."""
        self._log.unanswered[unit] = _Unit(unit, parts)
        self._last = unit

    def spoke(self, unit: int, samples: int) -> None:
        """Take note of so much sound of a unit."""
        if (kept := self._log.unanswered.get(unit)) is not None:
            kept.samples += samples

    def done(self, unit: int, done: pb.UnitDone) -> None:
        """Take note of the answer to a unit."""
        kept = self._log.unanswered.pop(unit, None)
        if kept is None:
            return
        self._has_answers = True
        self._unfinalized.add(unit)
        if done.HasField("record"):
            record = done.record
            kept.record = record.SerializeToString()
            self._draws = (record.text_draws, record.speech_draws)
            self._log.keep(kept, record.end, kept.size, self._journals.share)
            self._count()

    def finalized(self, unit: int) -> None:
        """Take note that a unit is closed."""
        self._unfinalized.discard(unit)

    def rewound(self, answer: pb.UnitsRewound) -> int:
        """Take note that an order to take back is answered; return the unit that the order named."""
        order = self.rewinds.pop(0)  # there is an answer to each
        if answer.HasField("error"):
            return order.unit
        text, speech = self._draws
        silent = pb.UnitRecord(end=pb.UNIT_END_LISTEN, text_draws=text, speech_draws=speech)
        record = silent.SerializeToString()
        for kept in self._log:
            is_partly_heard = order.heard_samples is not None and order.heard_samples < kept.samples
            if kept.number > order.unit or (kept.number == order.unit and is_partly_heard):
                kept.record, kept.samples = record, 0
                self._log.silence(kept, kept.size)
        self._count()
        return order.unit

    # -------------------------------------------------------------------------------------- replay

    @property
    def suffices(self) -> bool:
        """Whether another worker can go on from what is kept."""
        return bool(self._log) or not self._has_answers

    def owes_nothing(self, last: int) -> bool:
        """Return whether the worker has closed all units up to `last`, and answered all orders to take
        back."""
        return min(self._log.unanswered, default=last + 1) > last and not (self._unfinalized or self.rewinds)

    @property
    def unanswered(self) -> list[tuple[int, Parts]]:
        """Numbers and inputs of the units without an answer, in order."""
        return [(unit, kept.parts) for unit, kept in sorted(self._log.unanswered.items())]

    @property
    def next_unit(self) -> int:
        """Number of the first unit that a new worker hears after the replay."""
        return min(self._log.unanswered, default=self._last + 1)

    @property
    def numbers(self) -> list[int]:
        """Those of the units to replay, in order."""
        return [kept.number for kept in self._log]

    def replay(self, traceparent: str) -> Iterator[Parts]:
        """Yield the units to hear again with their records, in order, numbered from 1."""
        for number, kept in enumerate(self._log, 1):
            # Messages behind one another are read as one: the last number and trace context count.
            yield (
                *kept.parts,
                pb.PrefillRequest(unit=number, traceparent=traceparent).SerializeToString(),
                _recorded(kept.record),
            )

    def replayed(self) -> list[int]:
        """Note that another worker has heard the units; return those that were answered and not closed."""
        self._log.replayed()
        units, self._unfinalized = sorted(self._unfinalized), set()
        return units

    def close(self) -> None:
        """Forget everything. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._log.clear()
            self._journals.forget(self._counted)
            self._counted = 0

    def _count(self) -> None:
        held = self._log.held + len(self.config)
        self._journals.held_bytes += held - self._counted
        self._counted = held


def _recorded(record: bytes) -> bytes:
    """Return a serialised `pb.PrefillRequest` with this record alone."""
    return pb.PrefillRequest(recorded=pb.UnitRecord.FromString(record)).SerializeToString()
