"""The GA dialect of OpenAI's Realtime without a network."""

import base64
from typing import Any

import numpy as np

from tests.support.schemas import Event
from tests.ws_adapter.support import tokens as counted
from tests.ws_adapter.support.conversation import SPEECH, ready_signal
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from ws_adapter.protocol.core.actions import Detect, LeaveSlot, Rewind, RunTurn, RunUnit
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import (
    NO_TIMINGS,
    CallDelta,
    Finalized,
    Piece,
    Prefilled,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.speech import WINDOW
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.live.sound import PCM_24K, Format
from ws_adapter.protocol.realtime_ga.machine import RealtimeGa
from ws_adapter.protocol.realtime_ga.worker_slot import WorkerSlotPhase
from ws_adapter.protocol.wire.limits import Limits

CATALOGUE = catalogue_of(voices={"amber"}, calls_tools=True)
AUDIO = "response.output_audio.delta"
MANUAL: Event = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
SEMANTIC: Event = {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}
WEATHER: Event = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
VAD: Event = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "create_response": True,
    "interrupt_response": True,
    "idle_timeout_ms": None,
}
CREATE: Event = {"type": "response.create"}
CANCEL: Event = {"type": "response.cancel", "event_id": "stop"}
COMMIT: Event = {"type": "input_audio_buffer.commit"}

COMMITTED = ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
OPENING = ["response.output_item.added", "conversation.item.added", "response.content_part.added"]
SPOKEN = ["response.output_audio_transcript.delta", AUDIO]
DONE = ["conversation.item.done", "response.output_item.done", "response.done"]
CLOSING = [
    f"response.{part}.done" for part in ("output_audio", "output_audio_transcript", "content_part")
] + DONE
"""The events at the end of a spoken response."""


def update(**session: Any) -> Event:
    """A `session.update`."""
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def sound(seconds: float = 1.0, level: float = 0.1, format: Format = PCM_24K) -> str:
    """Base64 of equal samples."""
    samples = np.full(round(seconds * format.rate_hz), level, np.float32)
    return base64.b64encode(format.encode(samples)).decode()


def append(seconds: float = 1.0, level: float = 0.1, format: Format = PCM_24K) -> Event:
    return {"type": "input_audio_buffer.append", "audio": sound(seconds, level, format)}


def message(text: str = "Hello", role: str = "user", **fields: Any) -> Event:
    """A `conversation.item.create`."""
    kind = "output_text" if role == "assistant" else "input_text"
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}
    return {"type": "conversation.item.create", "item": item}


def truncate(item_id: str, ms: int, index: int = 0) -> Event:
    """A `conversation.item.truncate`."""
    place = {"item_id": item_id, "content_index": index, "audio_end_ms": ms}
    return {"type": "conversation.item.truncate", "event_id": "cut", **place}


def output(call_id: str, text: str = "sun") -> Event:
    """The `conversation.item.create` of a tool's result."""
    item = {"type": "function_call_output", "call_id": call_id, "output": text}
    return {"type": "conversation.item.create", "item": item}


class RealtimeGaConversation(Driven):
    """One session with a clock of its own; `sent` holds the events as a client would parse them."""

    def __init__(
        self,
        model: str = "antiphon-mini",
        catalogue: Catalogue | None = CATALOGUE,
        is_observed: bool = True,
        **limits: Any,
    ) -> None:
        limited = Limits(**{"session_limit_s": 3600.0, **limits})
        super().__init__("/v1/realtime?model=antiphon-mini", catalogue, limited, is_observed=is_observed)
        self.units: list[RunUnit] = []
        self.rewinds: list[Rewind] = []
        self.detecting = 0
        """Samples that were given to the detector and not told of."""
        self._model = model
        self.open()

    def new_dialect(self) -> RealtimeGa:
        return RealtimeGa(
            "sess_0123456789ab",
            self._model,
            self._limits,
            lambda: self._catalogue,
            self._new_token,
            lambda at: at + 10_000,
        )

    def move(self, *, has_journal: bool = True) -> list[Event]:
        self.detecting = 0
        return super().move(has_journal=has_journal)

    @property
    def is_unread(self) -> bool:
        return self.dialect.is_waiting

    @property
    def is_ready(self) -> bool:
        return self.dialect._answers.slot.phase in (WorkerSlotPhase.READY, WorkerSlotPhase.RUNNING)

    def lose_worker(self) -> None:
        super().lose_worker()
        self._answered, self._ready = len(self.units), len(self.configured)
        self._done = self.runs[-1].unit if self.runs else 0

    def worker(self, *signals: Signal) -> list[Event]:
        before = len(self.sent)
        for signal in signals:
            if isinstance(signal, UnitDone):
                self._done = signal.unit
            self.do(self.dialect.signal(signal, self.now))
        return self.sent[before:]

    def carry_out(self, action: Action) -> list[Action]:
        match action:
            case RunTurn():
                assert self.has_slot
                self._done = 0
            case RunUnit():
                assert self.has_slot
                self.units.append(action)
                return []
            case Rewind():
                assert self.has_slot
                self.rewinds.append(action)
                return []
            case Detect(samples=samples):
                self.detecting += samples.size
                return []
            case LeaveSlot():
                self._answered = len(self.units)
                self._ready = len(self.configured)
        return super().carry_out(action)

    def begin(self, **session: Any) -> Event:
        """Bring the session to its first settings; return it as it is then."""
        self.grant()
        self.client({"type": "session.update", "session": {**MANUAL, **session}})
        session_told: Event = self.sent[-1]["session"]
        return session_told

    @property
    def turn(self) -> Turn:
        """The last turn that was given to the worker."""
        turn: Turn = self.runs[-1].turn
        return turn

    def respond(self, **response: Any) -> list[Event]:
        """Send a `response.create` and bring its turn to the worker."""
        before = len(self.sent)
        self.client({"type": "response.create", "response": response})
        self.ready()
        return self.sent[before:]

    def ready(self, **fields: Any) -> None:
        """Let the worker accept the latest settings, if there are new ones."""
        if len(self.configured) > self._ready:
            self._ready = len(self.configured)
            self.worker(ready_signal(**fields))

    _ready = 0
    _done = 0
    _answered = 0
    """Units that need no answer any more."""

    @property
    def is_asked(self) -> bool:
        """Whether a turn is at the worker."""
        return bool(self.runs) and self._done != self.runs[-1].unit

    def say(self, text: str = "Seven", seconds: float = 1.0) -> list[Event]:
        """Deliver more of the running turn."""
        audio = SPEECH * int(seconds) + SPEECH[: round(len(SPEECH) * (seconds % 1)) // 4 * 4]
        return self.worker(Piece(self.runs[-1].unit, text, audio))

    def call(self, name: str = "weather", arguments: str = "{}", id: str = "call_1") -> list[Event]:
        """Deliver a tool call of the worker."""
        unit = self.runs[-1].unit
        begin, rest = arguments[:1], arguments[1:]
        return self.worker(
            Piece(unit, "", b"", call=CallDelta(0, id, name, begin)),
            Piece(unit, "", b"", call=CallDelta(0, arguments=rest, complete=True)),
        )

    def finish(self, end: UnitEnd = UnitEnd.TURN, **done: Any) -> list[Event]:
        """End the running turn."""
        unit = self.runs[-1].unit
        done = {"context_tokens": 119, "tokens": counted.tokens(input_audio=10, output_text=3), **done}
        return self.worker(UnitDone(unit, end, **done), Finalized(unit))

    def answer(self, text: str = "Seven", **response: Any) -> list[Event]:
        """Run a response from beginning to end."""
        before = len(self.sent)
        self.respond(**response)
        self.say(text)
        self.finish()
        return self.sent[before:]

    def prefill(self, input_tokens: int = 40) -> None:
        self.worker(Prefilled(self.runs[-1].unit, NO_TIMINGS, tokens=counted.tokens(input_tokens)))

    def detect(self, score: float, seconds: float) -> list[Event]:
        """Append this much audio and deliver this probability of speech for each of its windows."""
        before = len(self.sent)
        self.client(append(seconds))
        windows, self.detecting = divmod(self.detecting, WINDOW)
        self.do(self.dialect.detected([score] * windows, self.now))
        return self.sent[before:]

    def commit(self, seconds: float = 1.0) -> list[Event]:
        """Append and commit this much audio."""
        self.client(append(seconds))
        return self.client(COMMIT)


def begun(**session: Any) -> RealtimeGaConversation:
    """Return a session with these settings, whose client commits its audio."""
    talk = RealtimeGaConversation()
    talk.begin(**session)
    return talk


def granted(**options: Any) -> RealtimeGaConversation:
    """Return a session with a slot and the server's settings."""
    talk = RealtimeGaConversation(**options)
    talk.grant()
    return talk


class NativeConversation(RealtimeGaConversation):
    """One session whose model decides its turns; with `is_ready` workers take it at once."""

    def __init__(self, is_ready: bool = True, **session: Any) -> None:
        super().__init__()
        self._is_ready = is_ready
        self.grant()
        self.client(update(**{**SEMANTIC, **session}))

    def hear(self, score: float = 0.0, seconds: float = 1.0) -> list[Event]:
        """Append this much speech or silence."""
        before = len(self.sent)
        self.detect(score, seconds)
        if self._is_ready:
            self.settle()
        return self.sent[before:]

    def settle(self) -> None:
        """Grant a slot whose worker is ready, if the session asked for one."""
        self._is_ready = True
        if self.dialect._answers.slot.phase is WorkerSlotPhase.WANTED:
            self.grant()
        self.ready()

    @property
    def unanswered(self) -> list[RunUnit]:
        """The units at the worker."""
        return self.units[self._answered :]

    def answer_unit(self, end: UnitEnd = UnitEnd.LISTEN, text: str = "", **done: Any) -> list[Event]:
        """The worker's answer to the oldest unit that it has."""
        unit = self.unanswered[0].unit
        self._answered += 1
        pieces = [Piece(unit, text, SPEECH)] if text else []
        done = {"context_tokens": 119, "tokens": counted.tokens(input_audio=10, output_text=3), **done}
        return self.worker(*pieces, UnitDone(unit, end, **done), Finalized(unit))

    def second(
        self, end: UnitEnd = UnitEnd.LISTEN, text: str = "", score: float = 0.0, **done: Any
    ) -> list[Event]:
        """Append a second of audio and deliver the model's answer to it."""
        before = len(self.sent)
        for _ in range(8):
            if self.unanswered:
                break
            self.hear(score, 0.25)
        self.answer_unit(end, text, **done)
        self.now += 1.0
        return self.sent[before:]


def told(events: list[Event]) -> list[str]:
    """`type` of each event, `error:CODE` of errors."""
    return [
        f"error:{event['error']['code']}" if event["type"] == "error" else event["type"] for event in events
    ]


def heard(events: list[Event]) -> bytes:
    """Return the audio in `events`."""
    return b"".join(base64.b64decode(event["delta"]) for event in events if event["type"] == AUDIO)
