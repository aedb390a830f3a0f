"""The background transcription of a conversation's user, in otherwise idle slots."""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from ws_adapter.dispatch.base import Need
from ws_adapter.observability.session_telemetry import BackgroundTelemetry
from ws_adapter.process.clock import Timer, sleep
from ws_adapter.protocol.core.actions import (
    CancelTranscription,
    CancelUnits,
    LeaveSlot,
    OpenWorkerSession,
    RunSegment,
    TakeSlot,
)
from ws_adapter.protocol.core.config import Mode, TranscriptionSetup
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.machine import Place, Transcribe
from ws_adapter.protocol.core.signals import Ready, Signal, UnitDone
from ws_adapter.protocol.core.transcription import InputTranscript, TranscriptionCode
from ws_adapter.protocol.transcription.background import BackgroundTranscription, ItemUpdate, Step
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.protocol.wire.limits import is_due
from ws_adapter.protocol.wire.redaction import where
from ws_adapter.session.catalogue import SessionCatalogue
from ws_adapter.session.services import Services
from ws_adapter.session.slot import Identity, Slot, SlotSource

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""The interval in seconds of checking for a spare slot, or for sessions that wait for the held slot."""


class Background:
    """The background transcription of one session. `tell` gets its results and its faults.

    It takes a slot only if no session waits for one, and gives it up as soon as a session waits.
    """

    def __init__(
        self,
        identity: Identity,
        services: Services,
        telemetry: BackgroundTelemetry,
        catalogue: SessionCatalogue,
        tell: Callable[[Transcribe, InputTranscript], None],
    ) -> None:
        own = identity._replace(session_id=f"{identity.session_id}-input", kind=Kind.TRANSCRIPTION)
        self._services = services
        self._clock = services.clock
        self._telemetry = telemetry
        self._catalogue = catalogue
        self._tell = tell
        self._source = SlotSource(own, services, telemetry, is_background=True)
        self._machine = BackgroundTranscription(services.options.input_transcript_s, self._others_want)
        self._need = Need(Mode.TRANSCRIPTION)
        self._steps: deque[Step] = deque()
        self._is_performing = False
        self._searching: asyncio.Task[None] | None = None
        """The task that looks for a slot."""
        self._was_answered = asyncio.Event()
        """Set once the request for the found slot is granted or refused."""
        self._slot: Slot | None = None
        self._slots: list[Slot] = []
        """The present slot and those that are being cleaned, in order; the newest is last."""
        self._timer: Timer | None = None
        self._look_at: float | None = None
        """The time of the next check whether others wait for the slot; None without a slot."""
        self._is_closed = False

    @property
    def held_bytes(self) -> int:
        """The bytes of waiting audio."""
        return self._machine.held_bytes

    def do(self, action: Transcribe | CancelTranscription) -> None:
        """Carry out an action of the conversation."""
        now = self._clock.now()
        if isinstance(action, Transcribe):
            self._perform(self._machine.ask(action, now))
        else:
            self._perform(self._machine.cancel(action.item_id, now))

    def close(self) -> None:
        """Cancel all items and give up the slot."""
        self._is_closed = True
        self._steps.clear()
        self._leave_slot()
        self._arm()

    async def over(self) -> None:
        """Wait until every slot is clean again."""
        searching = [self._searching] if self._searching is not None else []
        await asyncio.gather(*searching, *(slot.over() for slot in self._slots), return_exceptions=True)

    # ------------------------------------------------------------------------------- actions

    def _perform(self, steps: list[Step]) -> None:
        """Carry out steps, after those that are pending."""
        if self._is_closed:
            return
        self._steps.extend(steps)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._steps:
                self._do(self._steps.popleft())
        finally:
            self._is_performing = False
        self._arm()

    def _do(self, step: Step) -> None:
        slot = self._slot
        streams = slot.streams if slot is not None else None
        match step:
            case ItemUpdate():
                self._tell(step.item, step.news)
            case TakeSlot():
                self._take_slot(step.model)
            case LeaveSlot():
                self._leave_slot()
            case OpenWorkerSession() if slot is not None:
                slot.open(step.setup)
            case RunSegment() if streams is not None:
                streams.run(step, self._telemetry.units.ran(step))
            case CancelUnits() if streams is not None:
                streams.cancel(step.unit)

    def _arm(self) -> None:
        """Set the timer to the next deadline, or to the next check of a held slot."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        if not self._machine.has_slot:
            self._look_at = None
        elif self._look_at is None:
            self._look_at = self._clock.now() + LOOK_S
        times = [at for at in (self._machine.deadline, self._look_at) if at is not None]
        if times:
            self._timer = self._clock.call_at(min(times), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.now()
        if is_due(self._look_at, now):
            self._look_at = None
            pool = self._slot.pool if self._slot is not None else None
            if pool is not None and self._services.dispatcher.is_contended(pool):
                self._perform(self._machine.give_way(now))
        self._perform(self._machine.tick(now))

    def _others_want(self) -> bool:
        return self._services.spare_slots.are_wanted(self._need)

    # ---------------------------------------------------------------------------------- the slot

    def _take_slot(self, model: str) -> None:
        self._need = need = Need(Mode.TRANSCRIPTION, model, self._catalogue.models)
        code = None
        if not self._catalogue.allows(TranscriptionSetup(model)):
            code = TranscriptionCode.NOT_ALLOWED
        elif not self._services.registry.is_served(*need):
            code = TranscriptionCode.MODEL_NOT_FOUND if model else TranscriptionCode.SERVICE_UNAVAILABLE
        if code is not None:
            self._perform(self._machine.unserved(code, self._clock.now()))
        else:
            self._searching = asyncio.create_task(self._find_slot(need, self._searching))

    async def _find_slot(self, need: Need, before: asyncio.Task[None] | None) -> None:
        """Wait for a spare slot and request it."""
        if before is not None:
            await asyncio.wait({before})
        async with self._services.spare_slots.turn(need):
            while not self._services.dispatcher.has_spare(Kind.TRANSCRIPTION, need):
                await sleep(self._clock, LOOK_S)
            self._was_answered.clear()
            self._slots = [slot for slot in self._slots if not slot.is_over]
            self._slot = Slot(self._source, self, need, self._slots[-1] if self._slots else None)
            self._slots.append(self._slot)
            await self._was_answered.wait()

    def _leave_slot(self) -> None:
        slot, self._slot = self._slot, None
        self._was_answered.set()
        if slot is not None:
            slot.give_up()
        elif self._searching is not None:
            self._searching.cancel()

    def queued(self, place: Place) -> None:
        """Give up the request: another session got the slot, and background work must not queue."""
        slot, self._slot = self._slot, None
        if slot is not None:
            asyncio.get_running_loop().call_soon(slot.give_up)
            self.refused(None)

    def attached(self, worker: str) -> None:
        self._was_answered.set()
        if self._slot is not None:
            self._perform(self._machine.granted())

    def reattached(self, worker: str) -> None:
        """Do nothing: no journal is kept of a transcription, so it never moves."""

    def displaced(self) -> None:
        """Tell the machine that the worker was lost before it was ready; `refused` follows."""
        self._machine.displaced()

    def refused(self, verdict: Verdict | None) -> None:
        self._slot = None
        self._was_answered.set()
        self._perform(self._machine.refused(self._clock.now()))

    def said(self, *signals: Signal) -> None:
        self._source.identity.meter.count_signals(*signals, in_background=True)
        slot = self._slot
        for signal in signals:
            if self._slot is slot:  # else the remaining signals are of a slot that was given up
                self._said(signal, slot)

    def _said(self, signal: Signal, slot: Slot | None) -> None:
        units = self._telemetry.units
        if isinstance(signal, UnitDone):
            units.ends(signal)
        elif slot is not None and isinstance(signal, Ready):
            slot.began()
        self._perform(self._machine.signal(signal, self._clock.now()))
        if isinstance(signal, UnitDone):
            units.ended(signal, 0.0)

    def failed(self) -> None:
        error = sys.exception()
        logger.error("background transcription failed", extra={"exception": where(error) if error else None})
        self._leave_slot()
        self.refused(None)
