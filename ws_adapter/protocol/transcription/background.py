"""Transcription of items beside a conversation, one after another, in an otherwise idle slot.

Events in, actions out; nothing here does I/O or reads a clock. All times are seconds of one monotonic clock.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import (
    CancelUnits,
    LeaveSlot,
    OpenWorkerSession,
    RunSegment,
    TakeSlot,
)
from ws_adapter.protocol.core.config import TranscriptionSetup
from ws_adapter.protocol.core.machine import Transcribe
from ws_adapter.protocol.core.signals import (
    Failed,
    Finalized,
    GoingAway,
    Piece,
    Ready,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.state import SlotPhase
from ws_adapter.protocol.core.transcription import (
    InputTranscript,
    InputTranscriptDelta,
    InputTranscriptDone,
    InputTranscriptFailed,
    TranscriptionCode,
)
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.limits import is_due

MOST_ITEMS: Final = 16
"""The most waiting items of a session."""

MOST_S: Final = 240.0
"""The most seconds of audio in all waiting items together."""

RETRY_S: Final = 1.0
"""The seconds between a refusal and the next request for a slot."""

_BYTES_PER_S: Final = 4 * 16_000
_SEGMENT_BYTES: Final = _BYTES_PER_S
"""The bytes of a segment for the worker: it is short, so that the slot can be given up soon."""

_MODEL_REASONS: Final = {
    Reason.MODE_UNSUPPORTED: TranscriptionCode.SERVICE_UNAVAILABLE,
    Reason.MODEL_NOT_FOUND: TranscriptionCode.MODEL_NOT_FOUND,
}
"""Reasons that concern the model, so that no other slot would help."""

_MESSAGES: Final = {
    TranscriptionCode.BUFFER_FULL: f"{MOST_ITEMS} items, or {MOST_S:g} s of audio, wait to be transcribed",
    TranscriptionCode.QUEUE_FULL: "no slot was free in time",
    TranscriptionCode.SERVICE_UNAVAILABLE: "no worker transcribes here",
    TranscriptionCode.MODEL_NOT_FOUND: "no worker transcribes with the model of audio.input.transcription",
    TranscriptionCode.NOT_ALLOWED: "the key does not allow the mode transcription",
    TranscriptionCode.CONTEXT_FULL: "the item is too long for the context of the model",
    TranscriptionCode.INVALID_AUDIO: "the model refused the audio",
    TranscriptionCode.TIMEOUT: "the transcript was not complete in time",
    TranscriptionCode.PROCESSING_ERROR: "the worker failed",
}


class ItemUpdate(Struct, frozen=True):
    """A transcription result of an item, for the session."""

    item: Transcribe
    news: InputTranscript


Step: TypeAlias = TakeSlot | LeaveSlot | OpenWorkerSession | RunSegment | CancelUnits | ItemUpdate


class _Job:
    """An item and its progress. A restarted item has the same segments."""

    def __init__(self, item: Transcribe, due_at: float) -> None:
        self.item = item
        self.due_at = due_at
        self.sent = 0
        """The bytes sent to the worker."""
        self.first_unit = 0
        self.text: list[str] = []
        """The text of each finished segment."""
        self.unit_text = ""
        """The text of the running segment."""
        self.was_ready = False
        """Whether it has ever had a worker."""

    @property
    def seconds(self) -> float:
        return len(self.item.audio) / _BYTES_PER_S

    @property
    def is_sent(self) -> bool:
        return self.sent >= len(self.item.audio)

    def begin_again(self) -> None:
        self.sent, self.first_unit, self.unit_text = 0, 0, ""

    def segment_of(self, unit: int) -> int:
        """Return the index of the segment in a unit, from 0; negative if the unit belongs to another item."""
        return unit - self.first_unit if self.first_unit else -1

    def next_segment(self, unit: int) -> RunSegment:
        audio = self.item.audio[self.sent : self.sent + _SEGMENT_BYTES]
        begins = not self.first_unit
        self.sent += _SEGMENT_BYTES
        self.first_unit = self.first_unit or unit
        self.unit_text = ""
        return RunSegment(unit, audio, begins=begins, ends=self.is_sent)


class BackgroundTranscription:
    """Background transcription. The slot is given up as soon as others want it; then an item is restarted,
    and no text is sent twice.

    `wait_s` is the deadline of an item in seconds after its request, 0 if none is to be transcribed.
    `others_wait` returns whether items of other sessions wait for a slot.
    """

    def __init__(self, wait_s: float, others_wait: Callable[[], bool]) -> None:
        self._wait_s = wait_s
        self._others_wait = others_wait
        self._jobs: deque[_Job] = deque()
        self._hold = SlotPhase.NONE
        self._model = ""
        self._unit = 0
        """The number of the last unit at the worker."""
        self._is_running = False
        """Whether that unit is still open."""
        self._retry_at: float | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of waiting audio."""
        return sum(len(job.item.audio) for job in self._jobs)

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due."""
        times = [job.due_at for job in self._jobs]
        if self._retry_at is not None:
            times.append(self._retry_at)
        return min(times, default=None)

    @property
    def has_slot(self) -> bool:
        """Whether it holds a slot that others may want."""
        return self._hold in (SlotPhase.OPENING, SlotPhase.READY)

    # ------------------------------------------------------------------------------------- the items

    def ask(self, item: Transcribe, now: float) -> list[Step]:
        """Queue an item for transcription."""
        if not self._wait_s:
            return [_failed(item, TranscriptionCode.SERVICE_UNAVAILABLE)]
        is_long = self.held_bytes + len(item.audio) > MOST_S * _BYTES_PER_S
        if len(self._jobs) >= MOST_ITEMS or is_long:
            return [_failed(item, TranscriptionCode.BUFFER_FULL)]
        self._jobs.append(_Job(item, now + self._wait_s))
        return self._advance(now)

    def cancel(self, item_id: str, now: float) -> list[Step]:
        """Cancel the transcription of an item."""
        kept = deque(job for job in self._jobs if job.item.item_id != item_id)
        if len(kept) == len(self._jobs):
            return []
        is_current = self._jobs[0].item.item_id == item_id
        self._jobs = kept
        return [*(self._stop() if is_current else []), *self._advance(now)]

    def tick(self, now: float) -> list[Step]:
        """Handle the due timers: items past their deadline fail, and a slot is requested again."""
        steps: list[Step] = []
        for job in [job for job in self._jobs if now >= job.due_at]:
            is_current = job is self._jobs[0]
            self._jobs.remove(job)
            late = TranscriptionCode.TIMEOUT if job.was_ready else TranscriptionCode.QUEUE_FULL
            steps += [*(self._stop() if is_current else []), _failed(job.item, late)]
        if is_due(self._retry_at, now):
            self._retry_at = None
        return [*steps, *self._advance(now)]

    def _stop(self) -> list[Step]:
        """Stop the running item at the worker."""
        return [CancelUnits(self._unit)] if self._is_running else []

    # -------------------------------------------------------------------------------------- the slot

    def granted(self) -> list[Step]:
        """Handle a worker that waits for the setup."""
        self._hold, self._unit, self._is_running = SlotPhase.OPENING, 0, False
        return [OpenWorkerSession(TranscriptionSetup(self._model, is_background=True))]

    def displaced(self) -> None:
        """Handle a worker lost before it was ready; another slot follows."""
        self._hold = SlotPhase.WANTED

    def refused(self, now: float) -> list[Step]:
        """Handle a refused slot: another one is requested after `RETRY_S`."""
        self._lose()
        self._retry_at = now + RETRY_S
        return []

    def unserved(self, code: TranscriptionCode, now: float) -> list[Step]:
        """Fail the item that waits for a slot, because no slot would serve it."""
        self._lose()
        return [*self._fail(code), *self._advance(now)]

    def give_way(self, now: float) -> list[Step]:
        """Give up the slot because another session needs it."""
        if not self.has_slot:
            return []
        self._lose()
        self._retry_at = now + RETRY_S
        return [LeaveSlot()]

    def _lose(self) -> None:
        self._hold, self._is_running = SlotPhase.NONE, False
        if self._jobs:
            self._jobs[0].begin_again()

    def signal(self, signal: Signal, now: float) -> list[Step]:
        """Handle a signal of the worker."""
        match signal:
            case Ready():
                self._hold = SlotPhase.READY
            case Piece(unit=unit, text=text):
                job = self._jobs[0] if self._jobs else None
                if job is not None and job.segment_of(unit) >= 0:
                    job.unit_text += text
                return []
            case UnitDone():
                return self._unit_done(signal, now)
            case Finalized():
                self._is_running = False
            case GoingAway():
                return self.give_way(now)
            case Failed():
                return self._worker_failed(signal.reason, now)
        return self._advance(now)

    def _unit_done(self, done: UnitDone, now: float) -> list[Step]:
        job = self._jobs[0] if self._jobs else None
        if job is None or job.segment_of(done.unit) < 0:
            return []
        if done.end is UnitEnd.CONTEXT_FULL:
            self._lose()  # the worker ends its session when the context is full
            return [LeaveSlot(), *self._fail(TranscriptionCode.CONTEXT_FULL), *self._advance(now)]
        if done.end in (UnitEnd.FAILED, UnitEnd.CANCELLED):
            verdict = errors.VERDICTS[done.failure or Reason.INFERENCE_FAILED]
            is_refused = verdict.code is ErrorCode.INVALID_PAYLOAD
            code = TranscriptionCode.INVALID_AUDIO if is_refused else TranscriptionCode.PROCESSING_ERROR
            return [*self._fail(code), *self._advance(now)]
        segment, steps = job.segment_of(done.unit), list[Step]()
        if segment >= len(job.text):
            text = job.unit_text if any(job.text) else job.unit_text.lstrip()
            job.text.append(text)
            if text:
                end = min(job.seconds, segment + 1.0)
                steps.append(ItemUpdate(job.item, InputTranscriptDelta(text, float(segment), end)))
        if job.is_sent:
            steps += self._complete(job)
        return [*steps, *self._advance(now)]

    def _worker_failed(self, reason: Reason, now: float) -> list[Step]:
        had_begun = bool(self._jobs) and self._jobs[0].first_unit > 0
        code = _MODEL_REASONS.get(reason)
        self._lose()
        if code is None and not had_begun:
            self._retry_at = now + RETRY_S
            return [LeaveSlot()]
        return [LeaveSlot(), *self._fail(code or TranscriptionCode.PROCESSING_ERROR), *self._advance(now)]

    # -------------------------------------------------------------------------------------- progress

    def _complete(self, job: _Job) -> list[Step]:
        self._jobs.popleft()
        done = InputTranscriptDone("".join(job.text), round(job.seconds, 3))
        steps: list[Step] = [ItemUpdate(job.item, done)]
        if self.has_slot and self._jobs and self._others_wait():
            self._lose()
            steps.append(LeaveSlot())
        return steps

    def _fail(self, code: TranscriptionCode) -> list[Step]:
        return [_failed(self._jobs.popleft().item, code)] if self._jobs else []

    def _advance(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._jobs and not self._jobs[0].item.audio:
            steps += self._complete(self._jobs[0])
        if not self._jobs:
            return [*steps, *self._leave()]
        job = self._jobs[0]
        if self._hold is not SlotPhase.NONE and self._model != job.item.model:
            steps += self._leave()
        if self._hold is SlotPhase.NONE and self._retry_at is None:
            self._hold, self._model = SlotPhase.WANTED, job.item.model
            steps.append(TakeSlot(self._model))
        elif self._hold is SlotPhase.READY and not self._is_running and not job.is_sent:
            self._unit += 1
            self._is_running = job.was_ready = True
            steps.append(job.next_segment(self._unit))
        return steps

    def _leave(self) -> list[Step]:
        if self._hold is SlotPhase.NONE:
            return []
        self._lose()
        return [LeaveSlot()]


def _failed(item: Transcribe, code: TranscriptionCode) -> ItemUpdate:
    return ItemUpdate(item, InputTranscriptFailed(code, _MESSAGES[code]))
