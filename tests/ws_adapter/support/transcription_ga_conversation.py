"""Transcription in OpenAI's events without a network; `Become` tells how a session gets there."""

from typing import Any

from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import ready_signal
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.realtime_ga_conversation import told as types_of
from ws_adapter.protocol.core.actions import LeaveSlot, RunSegment
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Become, Machine
from ws_adapter.protocol.core.signals import Finalized, Piece, Signal, UnitDone, UnitEnd
from ws_adapter.protocol.core.state import SlotPhase
from ws_adapter.protocol.transcription.machine import Transcription
from ws_adapter.protocol.transcription_ga.machine import ProtocolChooser
from ws_adapter.protocol.wire.limits import Limits

CATALOGUE = catalogue_of()
WORDS = "conversation.item.input_audio_transcription"


def update(detection: Event | None = None, **session: Any) -> Event:
    """A `session.update` that has the client commit, or with a turn detection."""
    heard: Event = {"transcription": {"model": "gpt-4o-transcribe"}, "turn_detection": detection}
    return {
        "type": "session.update",
        "session": {"type": "transcription", "audio": {"input": heard}, **session},
    }


class TranscriptionGaConversation(Driven):
    """One session with a clock of its own; `sent` holds the events as a client would parse them."""

    def __init__(self, catalogue: Catalogue | None = CATALOGUE, **limits: Any) -> None:
        super().__init__("/v1/realtime?intent=transcription", catalogue, Limits(**limits))
        self._answered = 0
        self._left_slots = 0
        self.open()

    def new_dialect(self) -> Machine:
        name = f"sess-{0:032x}"
        return ProtocolChooser(name, 1_800_000_000, self._limits, lambda: self._catalogue, self._new_token)

    @property
    def is_ready(self) -> bool:
        assert isinstance(self.dialect, Transcription)
        return self.has_slot and self.dialect._slot.phase is SlotPhase.READY

    def worker(self, *signals: Signal) -> list[Event]:
        before, slots = len(self.sent), self._left_slots
        for signal in signals:
            if slots == self._left_slots:  # else it is another worker's word
                self.do(self.dialect.signal(signal, self.now))
        return self.sent[before:]

    def carry_out(self, action: Action) -> list[Action]:
        match action:
            case Become():
                self.dialect = action.machine
                return []
            case RunSegment():
                assert self.has_slot
            case LeaveSlot():
                self._left_slots += 1
                self.runs.clear()
                self._answered = 0
        return super().carry_out(action)

    def grant(self) -> list[Event]:
        """Grant a slot whose worker is ready."""
        told = self.do(self.dialect.granted(self.now))
        return told + self.worker(ready_signal())

    def write(self, *words: str, end: UnitEnd = UnitEnd.LISTEN, **done: Any) -> list[Event]:
        """The worker writes `words`, one for each segment that it has not answered, the rest for the last."""
        before, left = len(self.sent), list(words)
        while self._answered < len(self.runs):
            self._answered += 1
            is_last = self._answered == len(self.runs)
            said = left if is_last else left[:1]
            left = left[len(said) :]
            self.worker(
                *(Piece(self._answered, word, b"") for word in said),
                UnitDone(self._answered, end, 10, counted.tokens(input_audio=10, output_text=2), **done),
                Finalized(self._answered),
            )
        return self.sent[before:]


def told(events: list[Event]) -> list[str]:
    """`type` of each event, without what they share; `error:CODE` of errors."""
    return [name.removeprefix(f"{WORDS}.") for name in types_of(events)]
