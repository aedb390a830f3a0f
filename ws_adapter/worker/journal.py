"""Journals of sessions: their settings, and the data from which another worker continues after a loss.

The journal of a full-duplex session has the inputs and records of its latest units. That of a chat has the
turn that is being answered, with the sampled tokens of the answer, or the sent output of a spoken answer.
That of a transcription has the audio of the open utterance. An input of a second of audio is copied into a
block (see `Blocks`); all other bytes are kept as they were sent.
"""

import secrets
from collections.abc import Iterator, Mapping
from enum import StrEnum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from antiphon.unit_log import UnitLog
from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.process.blocks import UNIT, Blocks, Stored, parts_of, size_of
from ws_adapter.protocol.core.config import ChatSetup, TranscriptionSetup, WorkerSetup
from ws_adapter.protocol.core.signals import Piece
from ws_adapter.worker.sent_output import DivergedError, SentOutput

Parts: TypeAlias = tuple[bytes, ...]
"""A serialised `pb.PrefillRequest` in parts."""


class JournalKind(StrEnum):
    """The kind of a session, which decides the contents of its journal."""

    DUPLEX = auto()
    CHAT = auto()
    """Each unit is a turn, independent of earlier ones."""
    UTTERANCES = auto()
    """Units are segments of utterances, which depend on earlier segments of the same utterance."""

    @classmethod
    def of(cls, setup: WorkerSetup) -> "JournalKind":
        """Return the kind of a session with these settings."""
        match setup:
            case ChatSetup():
                return cls.CHAT
            case TranscriptionSetup():
                return cls.UTTERANCES
        return cls.DUPLEX


class KeptUnit(Struct, eq=False, gc=False):
    """A unit in a journal. It is never in a reference cycle, so garbage collection skips it."""

    number: int
    input: Stored
    """A serialised `pb.PrefillRequest`."""
    record: bytes = b""
    """A serialised `pb.UnitRecord`; empty until the unit is answered."""
    samples: int = 0
    """The samples of its output audio so far."""
    sampled: tuple[int, ...] = ()
    """In a chat: the sampled token ids of the answer so far."""
    is_input_confirmed: bool = False
    """In a chat: whether the worker has confirmed the input."""
    is_continuable: bool = True
    """In a chat: whether another worker can continue the answer, or repeat it from its beginning."""
    sent_output: SentOutput | None = None
    """The output of the answer that the client has; None in full duplex."""

    @property
    def size(self) -> int:
        """The bytes of its input and record."""
        return size_of(self.input) + len(self.record)

    @property
    def parts(self) -> Parts:
        """The parts of its input, as sent."""
        return parts_of(self.input)


class PendingRewind(Struct, frozen=True):
    """An unanswered rewind to `heard_samples` of `unit`, None for all of its samples."""

    unit: int
    heard_samples: int | None


class SavedAnswer(Struct, frozen=True):
    """The state of an unfinished answer, outside full duplex."""

    sampled: tuple[int, ...]
    is_heard: bool
    is_traced: bool
    told: SentOutput


class SavedJournal(Struct, frozen=True):
    """The state of a journal without its units, which it lists by number."""

    kind: JournalKind
    begin: int | None
    model: str
    unit_s: float
    last: int
    has_answers: bool
    draws: tuple[int, int]
    rewinds: tuple[PendingRewind, ...]
    unfinalized: tuple[int, ...]
    answered: tuple[int, ...]
    """Units to replay, in order."""
    unanswered: tuple[int, ...]
    answers: tuple[SavedAnswer, ...]
    """The answer of each unanswered unit; empty in full duplex."""


class Journals:
    """The journals of an adapter, and their bounds."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        """Each session keeps `seconds` of units, and all together `most_bytes`; 0 turns journals off."""
        self.held_bytes = 0
        """The bytes of all journals."""
        self.seconds: Final = seconds
        self.most_bytes: Final = most_bytes
        self._count = 0
        self.blocks: Final = Blocks(most_bytes if seconds else 0, UNIT)
        """Blocks for the audio of units."""

    def open(self, kind: JournalKind = JournalKind.DUPLEX) -> "Journal | None":
        """Return a new journal; None if journals are off."""
        if not self.seconds or not self.most_bytes:
            return None
        self._count += 1
        return Journal(self, kind)

    @property
    def share(self) -> int:
        """The bytes that one session may keep."""
        if self.held_bytes <= self.most_bytes:
            return self.most_bytes
        return self.most_bytes // max(1, self._count)

    def forget(self, held: int) -> None:
        """Uncount a closed journal of `held` bytes."""
        self.held_bytes -= held
        self._count -= 1


class Journal:
    """The journal of one session. Its unit numbers are those of the session, at any worker."""

    def __init__(self, journals: Journals, kind: JournalKind = JournalKind.DUPLEX) -> None:
        self._kind = kind
        self._is_chat = kind is JournalKind.CHAT
        self.repeats_answers: Final = kind is not JournalKind.DUPLEX
        """Whether another worker repeats the part of an answer that the client has."""
        self._begin: int | None = None
        """In a transcription: the first unit of the open utterance."""
        self.config = b""
        """The settings of the session: a serialised `pb.PrefillRequest`."""
        self.model = ""
        """The name of the model; empty before the first `begin`."""
        self.changes = 0
        """The number of changes of its units."""
        self.rewinds: list[PendingRewind] = []
        """Unanswered rewinds, in order."""
        self._journals = journals
        self._log: UnitLog[KeptUnit] = UnitLog(journals.seconds, journals.most_bytes)
        self._counted = 0
        """The bytes that are counted among those of all journals."""
        self._unfinalized: set[int] = set()
        """Units that were answered and are not closed."""
        self._last = 0
        """The number of the newest unit."""
        self._has_answers = False
        self._draws = (0, 0)
        """The counts of random numbers that text and speech have used."""
        self._is_closed = False

    # ------------------------------------------------------------------------------------ settings

    def set_config(self, config: pb.SessionConfig) -> bytes:
        """Keep the settings of the session; return the message that opens it.

        In full duplex and in chats the message requests `records` and has a seed.
        """
        if self._kind is not JournalKind.UTTERANCES:
            config.records = True
            if not config.HasField("seed"):
                config.seed = secrets.randbits(32)
        self.config = pb.PrefillRequest(unit=0, config=config).SerializeToString()
        self._count()
        return self.config

    def begin(self, ready: pb.SessionReady) -> bool:
        """Record the model of the session; return whether the worker can replay the journal.

        False if the worker sends no records, runs no automatic units, or has another model than before.
        """
        effective = ready.effective
        has_records = effective.records or self._kind is JournalKind.UTTERANCES
        if not (has_records and effective.automatic_units) or self.model not in ("", ready.model):
            return False
        self.model = ready.model
        unit_s = ready.unit_duration.ToTimedelta().total_seconds()
        self._log.unit_s = unit_s or self._log.unit_s
        return True

    # --------------------------------------------------------------------------------------- units

    def sent(self, unit: int, parts: Parts, *, begins: bool = False) -> None:
        """Keep the input of a unit until its answer; with `begins` the unit begins an utterance."""
        self.changes += 1
        if begins:
            self._begin = unit
            self._log.clear_answered()
        told = SentOutput(self._is_chat) if self.repeats_answers else None
        self._log.unanswered[unit] = KeptUnit(unit, self._journals.blocks.store(parts), sent_output=told)
        self._last = unit
        if self._is_chat:
            self._count()

    def written(self, unit: int) -> None:
        """Record that the worker has the input of a unit; drop it in a chat beyond `most_bytes`."""
        if self._is_chat and self._journals.held_bytes > self._journals.most_bytes:
            kept = self._log.unanswered[unit]
            kept.input, kept.is_continuable = (), False
            self._count()

    def takes_input(self, unit: int) -> bool:
        """Record that a worker has read the input of a unit; return False if a chat's was read before."""
        kept = self._log.unanswered.get(unit)
        if kept is None or not self._is_chat:
            return True
        was_heard, kept.is_input_confirmed = kept.is_input_confirmed, True
        return not was_heard

    def record_answer(self, unit: int, answer: pb.GenerateResponse) -> None:
        """Record a part of a chat's answer: its sampled tokens, and whether another worker can continue."""
        kept = self._log.unanswered.get(unit) if self._is_chat else None
        if kept is None:
            return
        if answer.sampled_ids:
            kept.sampled = (*kept.sampled, *answer.sampled_ids)
            kept.is_continuable = bool(kept.input)
        elif answer.HasField("tool_call") or (kept.sampled and any(map(answer.HasField, _TOLD))):
            kept.is_continuable = False

    def unsent_part(self, unit: int, piece: Piece) -> Piece | None:
        """Return the part of a piece that the client does not have; None if it has all of it.

        Raises `DivergedError` if the repeated answer differs: then it cannot continue.
        """
        kept = self._log.unanswered.get(unit)
        if kept is None or kept.sent_output is None or kept.sampled:
            return piece
        try:
            return kept.sent_output.unsent_part(piece)
        except DivergedError:
            kept.is_continuable = False
            raise

    def check_end(self, unit: int) -> None:
        """Raise `DivergedError` if an answer ends before all sent output has been repeated."""
        kept = self._log.unanswered.get(unit)
        if kept is None or kept.sent_output is None or kept.sampled or not kept.sent_output.is_strict:
            return
        if kept.sent_output.is_repeating:
            kept.is_continuable = False
            raise DivergedError

    def spoke(self, unit: int, samples: int) -> None:
        """Record `samples` of output audio of a unit."""
        if (kept := self._log.unanswered.get(unit)) is not None:
            kept.samples += samples

    def done(self, unit: int, done: pb.UnitDone, *, is_closed: bool = False) -> None:
        """Record the answer to a unit, and whether the unit is closed."""
        kept = self._log.unanswered.pop(unit, None)
        if kept is None:
            return
        self.changes += 1
        self._has_answers = True
        if not is_closed:
            self._unfinalized.add(unit)
        if self._is_chat:
            self._count()
        if self._kind is JournalKind.UTTERANCES:
            self._keep_segment(kept, done.end)
        elif done.HasField("record"):
            record = done.record
            kept.record = record.SerializeToString()
            self._draws = (record.text_draws, record.speech_draws)
            self._log.keep(kept, record.end, kept.size, self._journals.share)
            self._count()

    def _keep_segment(self, kept: KeptUnit, end: pb.UnitEnd) -> None:
        """Record an answered segment of an utterance."""
        if self._begin is not None and kept.number >= self._begin:
            if end == pb.UNIT_END_CHUNK:
                self._log.keep(kept, end, kept.size, self._journals.share)
            else:
                self._begin = None
                self._log.clear_answered()
        self._count()

    def finalized(self, unit: int) -> None:
        """Record that a unit is closed."""
        self._unfinalized.discard(unit)

    def rewound(self, answer: pb.UnitsRewound) -> int:
        """Record an answered rewind: replace the undone output by silence. Return its unit."""
        order = self.rewinds.pop(0)  # rewinds are answered in order
        if answer.HasField("error"):
            return order.unit
        self.changes += 1
        text, speech = self._draws
        for kept in self._log:
            is_partly_heard = order.heard_samples is not None and order.heard_samples < kept.samples
            if kept.number > order.unit or (kept.number == order.unit and is_partly_heard):
                silent = pb.UnitRecord(end=pb.UNIT_END_LISTEN, text_draws=text, speech_draws=speech)
                silent.word_ids.extend(pb.UnitRecord.FromString(kept.record).word_ids)
                kept.record, kept.samples = silent.SerializeToString(), 0
                self._log.mark_turn_closed(kept, kept.size)
        self._count()
        return order.unit

    # -------------------------------------------------------------------------------------- replay

    @property
    def suffices(self) -> bool:
        """Whether another worker can continue the session from the journal."""
        if self._is_chat:
            return all(kept.is_continuable for kept in self._log.unanswered.values())
        if self._kind is JournalKind.UTTERANCES:
            first = min((*self.numbers[:1], *self._log.unanswered), default=0)
            return self._begin is not None and first == self._begin
        return bool(self._log) or not self._has_answers

    def has_closed(self, last: int) -> bool:
        """Return whether the worker has closed all units up to `last`, and answered all rewinds."""
        return min(self._log.unanswered, default=last + 1) > last and not (self._unfinalized or self.rewinds)

    @property
    def unanswered(self) -> list[tuple[int, Parts]]:
        """Numbers and inputs of the units without an answer, in order."""
        return [
            (unit, (*kept.parts, _begun(kept.sampled)) if kept.sampled else kept.parts)
            for unit, kept in sorted(self._log.unanswered.items())
        ]

    @property
    def next_unit(self) -> int:
        """The number of the first unit for a new worker after the replay."""
        return min(self._log.unanswered, default=self._last + 1)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the units to replay, in order."""
        return [kept.number for kept in self._log]

    def replay(self, traceparent: str) -> Iterator[Parts]:
        """Yield the units to replay with their records, in order, numbered from 1."""
        for number, kept in enumerate(self._log, 1):
            # Concatenated messages are parsed as one, with the last number and trace context.
            told = pb.PrefillRequest(unit=number, traceparent=traceparent).SerializeToString()
            yield (*kept.parts, told, *((_recorded(kept.record),) if kept.record else ()))

    def replayed(self) -> list[int]:
        """Record that another worker has replayed the units; return those that were answered and not
        closed."""
        self._log.replayed()
        for kept in self._log.unanswered.values():
            if kept.sent_output is not None:
                kept.sent_output.restart()
        units, self._unfinalized = sorted(self._unfinalized), set()
        return units

    # --------------------------------------------------------------------------- at another adapter

    @property
    def units(self) -> Iterator[KeptUnit]:
        """All kept units, the unanswered ones last."""
        yield from self._log
        yield from self._log.unanswered.values()

    def save(self) -> SavedJournal:
        """Return the state, with which another adapter continues."""
        unanswered = sorted(self._log.unanswered.items())
        answers = [
            SavedAnswer(kept.sampled, kept.is_input_confirmed, kept.is_continuable, kept.sent_output)
            for _, kept in unanswered
            if kept.sent_output is not None
        ]
        return SavedJournal(
            self._kind,
            self._begin,
            self.model,
            self._log.unit_s,
            self._last,
            self._has_answers,
            self._draws,
            tuple(self.rewinds),
            tuple(sorted(self._unfinalized)),
            tuple(self.numbers),
            tuple(number for number, _ in unanswered),
            tuple(answers),
        )

    def restore(self, saved: SavedJournal, config: bytes, units: Mapping[int, KeptUnit]) -> None:
        """Continue from a saved state of the same kind. Raises `KeyError` if a unit is missing."""
        self.config, self.model, self._begin = config, saved.model, saved.begin
        self._log.unit_s, self._last = saved.unit_s, saved.last
        self._has_answers, self._draws = saved.has_answers, saved.draws
        self.rewinds, self._unfinalized = list(saved.rewinds), set(saved.unfinalized)
        for number in saved.answered:
            kept = units[number]
            is_slice = self._kind is JournalKind.UTTERANCES
            end = pb.UNIT_END_CHUNK if is_slice else pb.UnitRecord.FromString(kept.record).end
            self._log.keep(kept, end, kept.size, self._journals.share)
        for number in saved.unanswered:
            self._log.unanswered[number] = units[number]
        for number, answer in zip(saved.unanswered, saved.answers, strict=False):
            kept = units[number]
            kept.sampled, kept.is_input_confirmed = answer.sampled, answer.is_heard
            kept.is_continuable, kept.sent_output = answer.is_traced, answer.told
        self._count()

    def close(self) -> None:
        """Drop all data. Harmless when repeated."""
        if not self._is_closed:
            self._is_closed = True
            self._log.clear()
            self._journals.forget(self._counted)
            self._counted = 0

    def _count(self) -> None:
        held = self._log.held + len(self.config)
        if self._is_chat:
            held += sum(kept.size for kept in self._log.unanswered.values())
        self._journals.held_bytes += held - self._counted
        self._counted = held


_TOLD: Final = ("text", "audio", "thinking", "tool_call")


def _begun(sampled: tuple[int, ...]) -> bytes:
    """Return a serialised `pb.PrefillRequest` that has only the sampled tokens of an answer."""
    return pb.PrefillRequest(recorded=pb.UnitRecord(sampled_ids=sampled)).SerializeToString()


def _recorded(record: bytes) -> bytes:
    """Return a serialised `pb.PrefillRequest` that has only this record."""
    return pb.PrefillRequest(recorded=pb.UnitRecord.FromString(record)).SerializeToString()
