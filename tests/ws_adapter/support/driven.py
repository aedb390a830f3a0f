"""Base class of conversations that drive a protocol's machine without a network."""

import json
from collections import deque
from typing import Any

from msgspec import structs

from antiphon.contract import Reason
from tests.support.schemas import Event, Observer
from tests.ws_adapter.support.hearing import Hearing
from tests.ws_adapter.support.saving import save
from ws_adapter.protocol.core.actions import (
    CancelTranscription,
    CancelUnits,
    CloseSocket,
    Detect,
    HoldInput,
    LeaveSlot,
    LinkTrace,
    Note,
    OpenWorkerSession,
    RunSegment,
    RunTurn,
    RunUnit,
    Send,
    TakeSlot,
)
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Machine, Offload, Transcribe
from ws_adapter.protocol.core.signals import Failed, Moved, Signal
from ws_adapter.protocol.core.transcription import InputTranscript, InputTranscriptDelta
from ws_adapter.protocol.wire.codec import encode, stamp
from ws_adapter.protocol.wire.events import ServerEvent
from ws_adapter.protocol.wire.limits import Limits


class Driven:
    """A session with a clock of its own; `sent` holds the events as a client would parse them.

    Subclasses make the `dialect`, and carry out what is particular to it in `carry_out`.
    """

    dialect: Any

    def __init__(
        self, path: str, catalogue: Catalogue | None, limits: Limits, *, is_observed: bool = True
    ) -> None:
        self.now = 1000.0
        self.sent: list[Event] = []
        self.runs: list[Any] = []
        self.cancelled: list[int] = []
        self.configured: list[OpenWorkerSession] = []
        self.notes: list[str] = []
        self.closed: CloseSocket | None = None
        self.has_slot = False
        self.is_held = False
        """Whether no more is to be read of the client."""
        self.transcribing: list[Transcribe] = []
        """Speech whose words are awaited, the oldest first."""
        self._tokens = 0
        self._hearing = Hearing()
        self._observer = Observer(path)
        self._is_observed = is_observed
        """Whether events are held against their schemas: most of the time of a long conversation."""
        self._catalogue, self._limits = catalogue, limits

    @property
    def close_code(self) -> int | None:
        """The code of the close frame, or None while the socket is open."""
        return self.closed and self.closed.code

    def _new_token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:012x}"

    def do(self, actions: list[Action]) -> list[Event]:
        """Carry out actions, and behind them those that they cause; return the events that are sent."""
        start, waiting = len(self.sent), deque(actions)
        while waiting:
            action = waiting.popleft()
            assert self.closed is None, f"{action} after the end"
            waiting.extend(self.carry_out(action))
        return self.sent[start:]

    def carry_out(self, action: Action) -> list[Action]:
        """Carry out one action; return the actions that it causes."""
        match action:
            case Send(event=event):
                self.sent.append(json.loads(encode(event)))
                if self._is_observed:
                    self._observer.server_said(self._stamped(event))
            case RunUnit() | RunTurn() | RunSegment():
                self.runs.append(action)
            case CancelUnits(unit=unit):
                self.cancelled.append(unit)
            case OpenWorkerSession():
                self.configured.append(action)
            case TakeSlot():
                assert not self.has_slot
                self.has_slot = True
            case LeaveSlot():
                assert self.has_slot
                self.has_slot = False
            case Note(text=text):
                self.notes.append(text)
            case HoldInput(is_held=is_held):
                self.is_held = is_held
            case Offload(work=work):
                return work()(self.now)
            case Detect(samples=samples):
                caused: list[Action] = self.dialect.detected(self._hearing.scores(samples), self.now)
                return caused
            case Transcribe():
                self.transcribing.append(action)
            case CancelTranscription(item_id=item_id):
                self.transcribing = [item for item in self.transcribing if item.item_id != item_id]
            case CloseSocket():
                self.closed = action
            case LinkTrace():
                pass
            case _:
                raise TypeError(action)
        return []

    def _stamped(self, event: ServerEvent) -> Event:
        """Return `event` as the adapter would send it."""
        leaving = structs.replace(event)
        stamp(leaving, self.now, None)
        told: Event = json.loads(encode(leaving))
        return told

    def new_dialect(self) -> Machine:
        """Return another machine for the same session."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin the session."""
        self.dialect = self.new_dialect()
        self.do(self.dialect.opened(self.now))

    def move(self, *, has_journal: bool = True) -> list[Event]:
        """The adapter dies, and another one goes on; what was to be transcribed is asked for again.

        Without a journal, or before the worker is ready, the worker is lost with the adapter.
        """
        before = len(self.sent)
        has_journal = has_journal and self.is_ready
        state, blobs = save(self.dialect, self.now, has_journal=has_journal)
        self.dialect, self.transcribing = self.new_dialect(), []
        self._hearing.restart()
        if not has_journal:
            self.lose_worker()
        self.do(self.dialect.restore(state, blobs, self.now))
        if has_journal and self.closed is None:
            self.worker(Moved(0.0))
        return self.sent[before:]

    @property
    def is_ready(self) -> bool:
        """Whether a worker has the session and its settings."""
        return True

    def lose_worker(self) -> None:
        """End the worker and with it the slot."""
        self.has_slot = False

    @property
    def hears(self) -> bool:
        """Whether a frame that arrives now is processed."""
        return not self.dialect.is_over

    @property
    def is_unread(self) -> bool:
        """Whether the last frame is left to be processed later."""
        return False

    def client(self, event: Any, *, drops_input: bool = False, is_proper: bool = True) -> list[Event]:
        """Sends one event; returns the server's events that it caused at once.

        An event that is accepted has to be one that a client may send; without `is_proper` it is none.
        """
        frame = event if isinstance(event, bytes) else json.dumps(event).encode()
        is_heard = self.hears
        told = self.do(self.dialect.text_frame(frame, self.now, drops_input=drops_input))
        is_taken = not self.is_unread and not any(answer["type"] == "error" for answer in told)
        if self._is_observed and is_proper and isinstance(event, dict) and is_heard and is_taken:
            self._observer.client_was_heard(event)
        return told

    def worker(self, *signals: Signal) -> list[Event]:
        start = len(self.sent)
        for signal in signals:
            self.do(self.dialect.signal(signal, self.now))
        return self.sent[start:]

    def grant(self) -> list[Event]:
        """Grant a slot, whose worker waits for the settings."""
        return self.do(self.dialect.granted(self.now))

    def wait(self, seconds: float = 0.0, others_wait: bool = False) -> list[Event]:
        """Advance the clock, with a tick exactly at each deadline."""
        start, until = len(self.sent), self.now + seconds
        while (due := self.dialect.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.dialect.tick(self.now, others_wait))
        self.now = until
        return self.sent[start:]

    def fail(self, reason: Reason) -> list[Event]:
        return self.worker(Failed(reason))

    def transcribe(self, news: InputTranscript) -> list[Event]:
        """Deliver the transcript of the oldest pending speech; its end takes it from the list."""
        item = self.transcribing[0]
        if not isinstance(news, InputTranscriptDelta):
            del self.transcribing[0]
        return self.do(item.tell(news, self.now))
