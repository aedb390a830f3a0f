"""Answers units in input order: what the worker says becomes events, and no unit stays without one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from antiphon.semconv import Reason
from ws_adapter.dialects import render
from ws_adapter.dialects.actions import Send
from ws_adapter.dialects.errors import VERDICTS, CloseCode, ErrorCode, Verdict
from ws_adapter.dialects.events import (
    AudioDelta,
    ErrorEvent,
    ListenDelta,
    Metrics,
    OutputDelta,
    TextDelta,
)
from ws_adapter.dialects.silence import SilenceTail
from ws_adapter.dialects.units import Unit
from ws_adapter.dialects.worker import (
    Piece,
    Prefilled,
    Ready,
    Timings,
    Tokens,
    UnitDone,
    UnitEnd,
)

FAILURES_IN_A_ROW: Final = 3
"""So many failed inferences, one after another, end the session."""

CONTEXT_FULL: Final = Verdict(None, "the context of the model is full", "context_full", CloseCode.NORMAL)
GAVE_UP: Final = Verdict(
    None, "the model failed several times in a row", "backend_error", CloseCode.INTERNAL_ERROR
)

_FIRST_ONLY: Final = ("metrics", "chunk_index", "usage", "chunk_usage")
"""What only the first event of a unit carries."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A unit that is not answered yet."""

    unit: Unit
    dropped: bool = False
    muted: bool = False
    text: list[str] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    prefill: Timings | None = None
    done: UnitDone | None = None


class Answers:
    """Holds what is owed to the client and renders it, unit by unit.

    `new_id(prefix)` makes ids of responses. `verdict` is set once the session cannot go on; nothing is
    rendered after that.
    """

    def __init__(self, session_id: str, tail: SilenceTail, new_id: Callable[[str], str]) -> None:
        self.verdict: Verdict | None = None
        self.response_id: str | None = None
        """The response that is open: the model is speaking."""
        self._session_id = session_id
        self._tail = tail
        self._new_id = new_id
        self._pending: deque[_Pending] = deque()
        self._at_worker: dict[int, _Pending] = {}
        self._answered = 0
        self._dropped_total = 0
        self._failures = 0
        self._tokens = Tokens()
        self._context_limit = 0
        self._speaks = True

    def begin(self, ready: Ready) -> None:
        """The session is configured."""
        self._context_limit = ready.context_limit
        self._speaks = ready.generate_audio
        self._tokens = Tokens(input_text=ready.prompt_tokens)

    @property
    def tokens(self) -> Tokens:
        """Of the session so far, its prompt included."""
        return self._tokens

    # ------------------------------------------------------------------------------------ what happens

    def expect(self, units: list[Unit]) -> None:
        """Units were cut; each will be answered in this order."""
        self._pending.extend(_Pending(unit) for unit in units)

    def drop(self, units: list[Unit]) -> None:
        """Waiting units will not run; each still gets its listen, in its place."""
        for pending in self._waiting(units):
            pending.dropped = True

    def forget(self, units: list[Unit]) -> None:
        """Units held before the session began are dropped without an answer, and counted."""
        for pending in self._waiting(units):
            self._pending.remove(pending)
            self._dropped_total += 1

    def started(self, unit: Unit, number: int) -> None:
        """`unit` was given to the worker as `number`."""
        self._at_worker[number] = next(p for p in self._pending if p.unit is unit)

    def prefilled(self, signal: Prefilled) -> None:
        """The worker has the input of a unit."""
        if pending := self._at_worker.get(signal.unit):
            pending.prefill = signal.timings

    def piece(self, signal: Piece) -> None:
        """The worker said a part of a unit."""
        pending = self._at_worker.get(signal.unit)
        if pending is not None and not pending.muted:
            pending.text.append(signal.text)
            pending.audio.append(signal.audio)

    def done(self, signal: UnitDone) -> None:
        """The worker is done with a unit."""
        if pending := self._at_worker.pop(signal.unit, None):
            pending.done = signal

    def mute(self) -> int | None:
        """Nothing more of the open response is sent: units at the worker will be answered by a listen.

        Returns the number of the last of them, None if there is none.
        """
        for pending in self._at_worker.values():
            pending.muted = True
            pending.text.clear()
            pending.audio.clear()
        return max(self._at_worker, default=None)

    def withdrawn(self, sends: list[Send]) -> list[Send]:
        """Output that was taken back before it was sent: each of its units gets one listen instead."""
        lost = []
        for unit, group in groupby(sends, key=lambda send: send.unit):
            first = next(group)
            event = first.event
            assert isinstance(event, OutputDelta)
            lost.append(Send(self._listen_for(event), unit, first.unit_ready_at))
        return lost

    # -------------------------------------------------------------------------------------- rendering

    def collect(self) -> list[Send]:
        """The events of every unit whose turn it is and whose end is known."""
        sends: list[Send] = []
        while self._pending and self.verdict is None:
            head = self._pending[0]
            if head.done is None and not head.dropped:
                break
            self._pending.popleft()
            index = self._answered
            self._answered += 1
            events = self._events(head, index)
            sends.extend(Send(event, index, head.unit.ready_at) for event in events)
        return sends

    def _events(self, pending: _Pending, index: int) -> list[OutputDelta | ErrorEvent]:
        done = pending.done
        if done is None:
            return self._dropped(pending.unit, index)
        self._tokens += done.tokens
        metrics = render.input_metrics(pending.unit, self._dropped_total)
        render.add_worker_metrics(metrics, done, pending.prefill, self._context_limit)
        frames = _Frames(self._session_id, pending.unit.input_id, metrics, index, self._tokens, done.tokens)
        match done.end:
            case UnitEnd.FAILED:
                self._fail(frames, done.failure or Reason.INFERENCE_FAILED)
            case UnitEnd.CHUNK | UnitEnd.TURN if not pending.muted:
                self._speak(frames, pending)
            case UnitEnd.CONTEXT_FULL if any(pending.text) or any(pending.audio):
                self._speak(frames, pending)
            case _:
                self._listen(frames)
        if done.end is not UnitEnd.FAILED:
            self._failures = 0
        full = done.end is UnitEnd.CONTEXT_FULL or 0 < self._context_limit <= done.context_tokens
        if full and self.verdict is None:
            self.verdict = CONTEXT_FULL
        return frames.events

    def _speak(self, frames: "_Frames", pending: _Pending) -> None:
        if self.response_id is None:
            self.response_id = self._new_id("resp")
        self._tail.spoke()
        text, audio = "".join(pending.text), b"".join(pending.audio)
        if text or not self._speaks:
            frames.add(TextDelta, kind="text", response_id=self.response_id, text=text)
        if self._speaks:
            audio = audio or render.BRIEF_SILENCE
            frames.add(AudioDelta, kind="audio", response_id=self.response_id, audio=audio)
        if pending.done and pending.done.end is UnitEnd.TURN:
            frames.add(ListenDelta, kind="listen", response_id=self._close_response(), reason="turn_end")

    def _listen(self, frames: "_Frames") -> None:
        frames.add(ListenDelta, kind="listen", response_id=self._close_response())

    def _fail(self, frames: "_Frames", reason: Reason) -> None:
        verdict = VERDICTS.get(reason, VERDICTS[Reason.INFERENCE_FAILED])
        frames.error(verdict.code or ErrorCode.INFERENCE_ERROR, verdict.message)
        self._listen(frames)
        self._failures = self._failures + 1 if reason is Reason.INFERENCE_FAILED else 0
        if self._failures >= FAILURES_IN_A_ROW:
            self.verdict = GAVE_UP

    def _dropped(self, unit: Unit, index: int) -> list[OutputDelta | ErrorEvent]:
        self._dropped_total += 1
        if self.response_id is not None:
            # Clients flush playback on a listen: the unit that is speaking answers for this one.
            return []
        metrics = render.input_metrics(unit, self._dropped_total)
        metrics.dropped = True
        event = ListenDelta(
            kind="listen",
            session_id=self._session_id,
            input_id=unit.input_id,
            metrics=metrics,
            chunk_index=index,
        )
        return [event]

    def _listen_for(self, event: OutputDelta) -> ListenDelta:
        return ListenDelta(
            kind="listen",
            session_id=event.session_id,
            input_id=event.input_id,
            response_id=self._close_response(),
            **{name: getattr(event, name) for name in _FIRST_ONLY},
        )

    def _close_response(self) -> str | None:
        """The open response, which is open no longer."""
        response_id, self.response_id = self.response_id, None
        if response_id is not None:
            self._tail.turn_ended(heard_everything=all(p.unit.injected_silence for p in self._pending))
        return response_id

    def _waiting(self, units: list[Unit]) -> list[_Pending]:
        gone = {id(unit) for unit in units}
        return [pending for pending in self._pending if id(pending.unit) in gone] if gone else []


class _Frames:
    """The events of one unit; the first one carries the figures."""

    def __init__(
        self, session_id: str, input_id: str, metrics: Metrics, index: int, total: Tokens, own: Tokens
    ) -> None:
        self.events: list[OutputDelta | ErrorEvent] = []
        self._session_id = session_id
        self._input_id = input_id
        self._first: dict[str, Any] = dict(
            zip(_FIRST_ONLY, (metrics, index, render.usage(total), render.usage(own)), strict=True)
        )

    def add(self, shape: type[OutputDelta], **fields: Any) -> None:
        figures = self._first or {"metrics": Metrics()}
        self._first = {}
        self.events.append(shape(session_id=self._session_id, input_id=self._input_id, **figures, **fields))

    def error(self, code: ErrorCode, message: str) -> None:
        self.events.append(render.error(code, message, input_id=self._input_id))
