"""Units and the turns that they make: what the model says in one go."""

from typing import Final

from msgspec import Struct, field
from opentelemetry.trace import INVALID_SPAN, Span, SpanContext

from antiphon import semconv
from ws_adapter.observability.metrics import Metrics
from ws_adapter.observability.tracing import MOST_LINKS, SessionTrace
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.signals import UnitDone, UnitEnd

UNIT_ENDS: Final = {end: end.name.lower() for end in UnitEnd}
"""How a unit ended, as a label and an attribute."""


class Unit(Struct, eq=False):
    """A unit at the worker. Times in seconds of the session's clock."""

    number: int
    accepted_at: float
    ran_at: float
    audio_s: float
    """Of its input; 0 for a turn of a chat, which may take its time."""
    ends_utterance: bool | None
    """None unless it is a chunk of an utterance."""
    span: Span
    has_text: bool = False
    has_audio: bool = False


class _Turn(Struct, eq=False):
    """What the model says in one go, so far. Times in seconds."""

    began_at: float
    units: list[SpanContext] = field(default_factory=list)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class TurnTelemetry:
    """Of one session: totals of its units, and the turn that is open."""

    def __init__(self, metrics: Metrics, trace: SessionTrace, kind: Kind, dialect: str) -> None:
        self.count = self.units = 0
        """Turns and units that are over."""
        self.input_tokens = self.output_tokens = 0
        self._metrics = metrics
        self._trace = trace
        self._kind = kind
        self._audio_labels = {"mode": kind.value, "dialect": dialect}
        self._text_labels = {"mode": kind.value}
        self._turn: _Turn | None = None

    def first_text(self, unit: Unit, now: float) -> None:
        """The first text of a unit was sent."""
        turn = self._turn_of(unit)
        if turn.first_text_s is None:
            turn.first_text_s = now - unit.accepted_at
            self._metrics.first_text.record(turn.first_text_s, self._text_labels)
            unit.span.add_event(semconv.EVENT_FIRST_TEXT)

    def first_audio(self, unit: Unit, now: float) -> None:
        """The first audio of a unit was sent."""
        turn = self._turn_of(unit)
        if turn.first_audio_s is None:
            turn.first_audio_s = now - unit.accepted_at
            self._metrics.first_audio.record(turn.first_audio_s, self._audio_labels)
            unit.span.add_event(semconv.EVENT_FIRST_AUDIO)

    def unit_done(self, unit: Unit, done: UnitDone, now: float) -> None:
        """A unit is over; so is its turn, if it ends one."""
        tokens = done.tokens
        made = tokens.output_text + tokens.output_audio
        self.units += 1
        self.input_tokens += tokens.given
        self.output_tokens += made
        is_whole = self._kind is Kind.CHAT
        turn = self._turn
        if is_whole or unit.ends_utterance is not None:
            turn = self._turn_of(unit)  # also if nothing was said
        if turn is None:
            return
        turn.input_tokens += tokens.given
        turn.output_tokens += made
        if unit.span is not INVALID_SPAN and len(turn.units) < MOST_LINKS:
            turn.units.append(unit.span.get_span_context())
        goes_on = done.end is UnitEnd.CHUNK if unit.ends_utterance is None else not unit.ends_utterance
        if is_whole or not goes_on:
            self._end_turn(turn, now, UNIT_ENDS[done.end])

    def end(self, now: float) -> None:
        """The session is over; so is a turn that had not come to its end."""
        if self._turn is not None:
            self._end_turn(self._turn, now, UNIT_ENDS[UnitEnd.CANCELLED])

    def _turn_of(self, unit: Unit) -> _Turn:
        if self._turn is None:
            self._turn = _Turn(unit.accepted_at)
        return self._turn

    def _end_turn(self, turn: _Turn, now: float, finish: str) -> None:
        self._turn = None
        self.count += 1
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
                semconv.ATTR_TURN: self.count - 1,
                semconv.ATTR_GEN_AI_INPUT_TOKENS: turn.input_tokens,
                semconv.ATTR_GEN_AI_OUTPUT_TOKENS: turn.output_tokens,
                semconv.ATTR_GEN_AI_FINISH: [finish],
                **{name: seconds for name, seconds in firsts.items() if seconds is not None},
            },
        )
