"""Telemetry of units and of the turns that they form: deadline misses, time to first text and audio.

The caller reports when each unit starts and ends, and passes the result of `ran` to the worker.
"""

import random
from typing import Final

from msgspec import Struct, field
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext

from antiphon.contract import Reason
from antiphon_service import semconv
from antiphon_service.semconv import DropReason
from antiphon_service.telemetry.context import format_traceparent
from antiphon_service.telemetry.logs import SessionFields
from ws_adapter.observability.leases import SlotTotals
from ws_adapter.observability.metrics import Metrics
from ws_adapter.observability.tracing import MOST_LINKS, SessionTrace
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.actions import Run, RunSegment, RunTurn, RunUnit
from ws_adapter.protocol.core.answer import Answer
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.signals import Piece, UnitDone, UnitEnd
from ws_adapter.protocol.wire.errors import VERDICTS

_SPOKEN: Final = frozenset({UnitEnd.CHUNK, UnitEnd.TURN, UnitEnd.CONTEXT_FULL})
_BYTES_PER_S: Final = 4 * 16_000


def is_ours(reason: Reason | None) -> bool:
    """Return whether the server is at fault for this end of a session; False for None."""
    code = VERDICTS[reason].code if reason is not None else None
    return code is not None and code.is_servers


class _Unit(Struct, eq=False):
    """A unit at the worker. Times in seconds of the session's clock."""

    accepted_at: float
    ran_at: float
    audio_s: float
    """Seconds of input; 0 for a turn of a chat, which has no deadline."""
    ends_utterance: bool | None
    """None unless it is a segment of an utterance."""
    is_turn: bool
    """Whether it is a chat turn, which is answered as a whole."""
    span: Span
    has_text: bool = False
    has_audio: bool = False


class _Turn(Struct, eq=False):
    """The open turn of the model. Times in seconds."""

    began_at: float
    units: list[SpanContext] = field(default_factory=list)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class UnitTelemetry:
    """Telemetry of a session's units at the worker and its open turn, with totals of finished units and
    turns."""

    def __init__(
        self,
        metrics: Metrics,
        trace: SessionTrace,
        fields: SessionFields,
        kind: Kind,
        dialect: str,
        clock: Clock,
    ) -> None:
        self.turns = self.units = self.dropped = 0
        self.input_tokens = self.output_tokens = 0
        self._metrics = metrics
        self._trace = trace
        self._fields = fields
        self._kind = kind
        self._clock = clock
        self._ended = {end: metrics.unit.recorder(kind, end.value) for end in UnitEnd}
        self._first_text_after = metrics.first_text.recorder(kind)
        self._first_audio_after = metrics.first_audio.recorder(kind, dialect)
        self._overhead = metrics.overhead.recorder()
        self._outbox = metrics.outbox.recorder()
        self._has_waited = False
        self.slot: SlotTotals | None = None
        """Totals of the current or last slot of the session."""
        self._running: dict[int, _Unit] = {}
        self._ending: _Unit | None = None
        """The unit whose end is being sent to the client."""
        self._turn: _Turn | None = None

    # -------------------------------------------------------------------------------------- the units

    def ran(self, run: Run) -> str:
        """Record a unit that is sent to the worker; return its `traceparent`."""
        now, trace = self._clock.now(), self._trace
        accepted_at, audio_s, ends = now, 0.0, None
        if isinstance(run, RunUnit):
            accepted_at, audio_s = run.accepted_at or now, len(run.audio) / _BYTES_PER_S
        elif isinstance(run, RunSegment):
            audio_s, ends = len(run.audio) / _BYTES_PER_S, run.ends
        span: Span = INVALID_SPAN
        if trace.is_sampled:
            span = trace.unit(now, now - accepted_at, run.unit)
        self._running[run.unit] = _Unit(accepted_at, now, audio_s, ends, isinstance(run, RunTurn), span)
        self._fields.unit = run.unit
        if span is not INVALID_SPAN:
            return format_traceparent(span.get_span_context())
        # The span id is not a secret and every unit needs one, so a fast generator is enough.
        return trace.untraced % (random.getrandbits(64) or 1)

    def said(self, piece: Piece, *, was_sent: bool) -> None:
        """Record a part of an answer; with `was_sent` it was sent to the client, else it waits for the unit's
        end."""
        unit = self._running.get(piece.unit)
        if unit is None:
            return
        if piece.text and not unit.has_text:
            unit.has_text = True
            if was_sent:
                self._first_text(unit, self._clock.now())
        if piece.audio and not unit.has_audio:
            unit.has_audio = True
            if was_sent:
                self._first_audio(unit, self._clock.now())

    def ends(self, done: UnitDone) -> None:
        """Record that the worker finished a unit; `ended` follows when its end was sent to the client."""
        self._ending = self._running.pop(done.unit, None)

    def ended(self, done: UnitDone, waiting_s: float) -> None:
        """Record that the end of a unit was sent to the client, with `waiting_s` seconds of audio in the
        outbox."""
        if waiting_s:
            self._has_waited = True
            self._outbox(waiting_s)
        unit, self._ending = self._ending, None
        if unit is None:
            return
        metrics, now = self._metrics, self._clock.now()
        seconds = now - unit.accepted_at
        self._ended[done.end](seconds)
        metrics.units[self._kind, done.end] += 1
        if 0 < unit.audio_s < seconds:
            metrics.misses[self._kind] += 1
        if done.timings.total is not None:
            if self.slot is not None:
                self.slot.units += 1
                self.slot.busy_ms += done.timings.total
            self._overhead(max(0.0, now - unit.ran_at - done.timings.total / 1000))
        if done.end in _SPOKEN:
            if unit.has_text:
                self._first_text(unit, now)
            if unit.has_audio:
                self._first_audio(unit, now)
        elif done.end is UnitEnd.CANCELLED:
            metrics.dropped[self._kind, DropReason.CANCELLED] += 1
        self._count(unit, done, now)
        if unit.span is not INVALID_SPAN:
            self._end_span(unit.span, done)

    def answered(self, answer: Answer) -> None:
        """Record the number of dropped units that an answer to the client has."""
        if answer.dropped_total != self.dropped:
            self._metrics.dropped[self._kind, DropReason.STALE] += answer.dropped_total - self.dropped
            self.dropped = answer.dropped_total

    def abandoned(self, reason: Reason | None) -> None:
        """Record that no unit at the worker will be answered: the slot is released, or lost for `reason`."""
        units, self._running = self._running, {}
        if units:
            self._metrics.dropped[self._kind, DropReason.SESSION_END] += len(units)
        for unit in units.values():
            self._trace.close(unit.span, reason, is_ours=is_ours(reason))

    def _end_span(self, span: Span, done: UnitDone) -> None:
        tokens = done.tokens
        span.set_attributes(
            {
                semconv.ATTR_UNIT_END: done.end.value,
                semconv.ATTR_GEN_AI_INPUT_TOKENS: tokens.input_tokens,
                semconv.ATTR_GEN_AI_OUTPUT_TOKENS: tokens.output_tokens,
            }
        )
        self._trace.close(span, done.failure, is_ours=is_ours(done.failure))

    # -------------------------------------------------------------------------------------- the turns

    def end(self, now: float) -> None:
        """End the telemetry of the session, and its open turn."""
        if not self._has_waited:
            self._outbox(0.0)
        if self._turn is not None:
            self._end_turn(self._turn, now, UnitEnd.CANCELLED)

    def _first_text(self, unit: _Unit, now: float) -> None:
        turn = self._turn_of(unit)
        if turn.first_text_s is None:
            turn.first_text_s = now - unit.accepted_at
            self._first_text_after(turn.first_text_s)
            unit.span.add_event(semconv.EVENT_FIRST_TEXT)

    def _first_audio(self, unit: _Unit, now: float) -> None:
        turn = self._turn_of(unit)
        if turn.first_audio_s is None:
            turn.first_audio_s = now - unit.accepted_at
            self._first_audio_after(turn.first_audio_s)
            unit.span.add_event(semconv.EVENT_FIRST_AUDIO)

    def _count(self, unit: _Unit, done: UnitDone, now: float) -> None:
        """Add a unit to the totals and to its turn, and end the turn with its last unit."""
        given, made = done.tokens.input_tokens, done.tokens.output_tokens
        self.units += 1
        self.input_tokens += given
        self.output_tokens += made
        turn = self._turn
        if unit.is_turn or unit.ends_utterance is not None:
            turn = self._turn_of(unit)  # also without any text or audio
        if turn is None:
            return
        turn.input_tokens += given
        turn.output_tokens += made
        if unit.span is not INVALID_SPAN and len(turn.units) < MOST_LINKS:
            turn.units.append(unit.span.get_span_context())
        goes_on = done.end is UnitEnd.CHUNK if unit.ends_utterance is None else not unit.ends_utterance
        if unit.is_turn or not goes_on:
            self._end_turn(turn, now, done.end)

    def _turn_of(self, unit: _Unit) -> _Turn:
        if self._turn is None:
            self._turn = _Turn(unit.accepted_at)
        return self._turn

    def _end_turn(self, turn: _Turn, now: float, finish: UnitEnd) -> None:
        self._turn = None
        self.turns += 1
        if not self._trace.is_sampled:
            return
        firsts = {
            semconv.ATTR_FIRST_TEXT: turn.first_text_s,
            semconv.ATTR_FIRST_AUDIO: turn.first_audio_s,
        }
        self._trace.turn(
            now - turn.began_at,
            turn.units,
            {
                semconv.ATTR_TURN: self.turns - 1,
                semconv.ATTR_GEN_AI_INPUT_TOKENS: turn.input_tokens,
                semconv.ATTR_GEN_AI_OUTPUT_TOKENS: turn.output_tokens,
                semconv.ATTR_GEN_AI_FINISH: [finish.value],
                **{name: seconds for name, seconds in firsts.items() if seconds is not None},
            },
        )
