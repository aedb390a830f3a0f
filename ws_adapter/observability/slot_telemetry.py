"""What is seen of a slot and of the units that run in it."""

from types import TracebackType
from typing import Final

from opentelemetry.trace import INVALID_SPAN, Span

from antiphon import semconv
from antiphon.semconv import DropReason, LeaseOutcome, QueueOutcome, Reason, Rejection, SlotState
from ws_adapter.dispatch.base import Lease
from ws_adapter.observability.leases import Held
from ws_adapter.observability.session_telemetry import SessionTelemetry
from ws_adapter.observability.unit_telemetry import UNIT_ENDS, Unit
from ws_adapter.process.errors import AttachFailed, DispatcherUnavailable, QueueFull, WaitExpired
from ws_adapter.protocol.core.actions import Run, RunChunk, RunUnit
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.signals import Piece, UnitDone, UnitEnd
from ws_adapter.protocol.core.vocabulary import Place
from ws_adapter.protocol.wire.errors import VERDICTS
from ws_adapter.worker.transport.rpc import Metadata

OPERATIONS: Final = {
    Kind.AUDIO_DUPLEX: "duplex",
    Kind.OMNI_DUPLEX: "duplex",
    Kind.CHAT: "chat",
    Kind.TRANSCRIPTION: "transcription",
}
"""What the model does, in the words of the conventions for generative AI."""

_SPOKEN: Final = frozenset({UnitEnd.CHUNK, UnitEnd.TURN, UnitEnd.CONTEXT_FULL})
_BYTES_PER_S: Final = 4 * 16_000

_WAITS: Final[dict[type[BaseException] | None, QueueOutcome]] = {
    QueueFull: QueueOutcome.FULL,
    WaitExpired: QueueOutcome.EXPIRED,
    DispatcherUnavailable: QueueOutcome.NO_WORKER,
}
"""How a wait without a slot ended; by anything else the session gave up."""

_UNSERVED: Final = frozenset({QueueOutcome.FULL, QueueOutcome.EXPIRED, QueueOutcome.NO_WORKER})


def _is_ours(reason: Reason | None) -> bool:
    code = VERDICTS[reason].code if reason is not None else None
    return code is not None and code.is_servers


class SlotTelemetry:
    """Of one slot, from entering the queue until it is somebody else's: a block round all of it."""

    def __init__(self, session: SessionTelemetry) -> None:
        self._session = session
        self._metrics = session.metrics
        self._clock = session.clock
        self._trace = session.trace.slot()
        self._queued_at = 0.0
        self._estimate_s: float | None = None
        self._held: Held | None = None
        self._lost: Reason | None = None
        self._units: dict[int, Unit] = {}
        mode = session.kind.value
        self._labels = {end: {"mode": mode, "end": name} for end, name in UNIT_ENDS.items()}

    def __enter__(self) -> "SlotTelemetry":
        """The session enters the queue."""
        self._queued_at = self._clock.now()
        self._trace.queued()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """The slot is clean again, or there was none."""
        if self._held is None:
            outcome = _WAITS.get(kind, QueueOutcome.GAVE_UP)
            self._metrics.waited(self._clock.now() - self._queued_at, outcome)
            is_unserved = outcome in _UNSERVED
            if outcome is QueueOutcome.FULL:
                self._metrics.rejected[Rejection.FULL] += 1
            self._trace.left(outcome, outcome if is_unserved else "", is_ours=is_unserved)
            return
        reason = error.reason if isinstance(error, AttachFailed) else self._lost
        self._close(reason)
        self._session.leases.returned(self._held)
        if reason is None:
            outcome_of_lease = LeaseOutcome.RELEASED
        elif self._held.state is SlotState.GRANTED:
            outcome_of_lease = LeaseOutcome.REFUSED
        else:
            outcome_of_lease = LeaseOutcome.LOST
        self._metrics.leases[outcome_of_lease] += 1

    # ------------------------------------------------------------------------------- until it begins

    def moved(self, place: Place) -> None:
        """The session has another place in the queue, or still the same."""
        if self._estimate_s is None:
            self._estimate_s = place.estimated_wait_s
        self._trace.moved(place.position, place.queue_length)

    def granted(self, lease: Lease, model: str) -> None:
        """There is a slot, of a worker that runs `model`."""
        session, now = self._session, self._clock.now()
        waited_s = now - self._queued_at
        self._metrics.waited(waited_s, QueueOutcome.GRANTED)
        if self._estimate_s is not None:
            self._metrics.estimate_error.record(abs(waited_s - self._estimate_s))
        self._trace.left(QueueOutcome.GRANTED)
        self._held = session.leases.granted(lease, session.kind, now)
        session.fields.worker_id = lease.worker_id
        host, _, port = lease.target.rpartition(":")
        self._trace.granted(
            {
                semconv.ATTR_WORKER_ID: lease.worker_id,
                semconv.ATTR_SLOT: lease.slot,
                semconv.ATTR_LEASE_EPOCH: lease.epoch,
                semconv.ATTR_GEN_AI_MODEL: model,
                semconv.ATTR_GEN_AI_OPERATION: OPERATIONS[session.kind],
                semconv.ATTR_GEN_AI_PROVIDER: semconv.PROVIDER,
                semconv.ATTR_SERVER_ADDRESS: host.strip("[]") or lease.target,
                **({semconv.ATTR_SERVER_PORT: int(port)} if port.isdecimal() else {}),
            }
        )

    def headers(self) -> Metadata:
        """What the calls of the session tell the worker of its trace."""
        return self._trace.headers()

    def attached(self) -> None:
        """The worker has the session."""
        if self._held is not None:
            self._held.state = SlotState.ATTACHED

    def began(self) -> None:
        """It takes units."""
        self._trace.began()

    # -------------------------------------------------------------------------------------- the units

    def ran(self, run: Run) -> str:
        """A unit is given to the worker, which is told this `traceparent`."""
        session, now = self._session, self._clock.now()
        accepted_at, audio_s, ends = now, 0.0, None
        if isinstance(run, RunUnit):
            accepted_at, audio_s = run.accepted_at or now, len(run.audio) / _BYTES_PER_S
        elif isinstance(run, RunChunk):
            audio_s, ends = len(run.audio) / _BYTES_PER_S, run.ends
        trace = session.trace
        span = trace.unit(now, now - accepted_at, run.unit)
        self._units[run.unit] = Unit(run.unit, accepted_at, now, audio_s, ends, span)
        session.fields.unit = run.unit
        return trace.unit_parent(span)

    def said(self, piece: Piece, was_told: bool) -> None:
        """The worker said a part of a unit, which was passed on or is kept until the unit is over."""
        unit = self._units.get(piece.unit)
        if unit is None:
            return
        if piece.text and not unit.has_text:
            unit.has_text = True
            if was_told:
                self._session.turns.first_text(unit, self._clock.now())
        if piece.audio and not unit.has_audio:
            unit.has_audio = True
            if was_told:
                self._session.turns.first_audio(unit, self._clock.now())

    def take(self, done: UnitDone) -> Unit | None:
        """The unit that is over, to be handed to `done` when that has been passed on."""
        return self._units.pop(done.unit, None)

    def done(self, unit: Unit, done: UnitDone) -> None:
        """Its end was passed on."""
        session, metrics, now = self._session, self._metrics, self._clock.now()
        seconds = now - unit.accepted_at
        metrics.unit.record(seconds, self._labels[done.end])
        metrics.units[session.kind, UNIT_ENDS[done.end]] += 1
        if 0 < unit.audio_s < seconds:
            metrics.misses[session.kind] += 1
        if done.timings.total is not None:
            metrics.overhead.record(max(0.0, now - unit.ran_at - done.timings.total / 1000))
        if done.end in _SPOKEN:
            if unit.has_text:
                session.turns.first_text(unit, now)
            if unit.has_audio:
                session.turns.first_audio(unit, now)
        elif done.end is UnitEnd.CANCELLED:
            metrics.dropped[session.kind, DropReason.CANCELLED] += 1
        session.turns.unit_done(unit, done, now)
        if unit.span is not INVALID_SPAN:
            self._end_span(unit.span, done)

    def _end_span(self, span: Span, done: UnitDone) -> None:
        tokens = done.tokens
        span.set_attributes(
            {
                semconv.ATTR_UNIT_END: UNIT_ENDS[done.end],
                semconv.ATTR_GEN_AI_INPUT_TOKENS: tokens.given,
                semconv.ATTR_GEN_AI_OUTPUT_TOKENS: tokens.output_text + tokens.output_audio,
            }
        )
        self._session.trace.close(span, done.failure, is_ours=_is_ours(done.failure))

    # ---------------------------------------------------------------------------------------- its end

    def lost(self, reason: Reason) -> None:
        """The worker ended the session."""
        self._lost = reason
        self._close(reason)

    def given_up(self) -> None:
        """The session leaves; the worker cleans the slot."""
        self._close(None)

    def _close(self, reason: Reason | None) -> None:
        """Ends whatever is open, once."""
        if self._held is not None and self._held.state is SlotState.ATTACHED:
            self._held.state = SlotState.CLEANING
        is_ours = _is_ours(reason)
        self._trace.over(reason or "", is_ours=is_ours)
        units, self._units = list(self._units.values()), {}
        if not units:
            return
        self._metrics.dropped[self._session.kind, DropReason.SESSION_END] += len(units)
        for unit in units:
            self._session.trace.close(unit.span, reason, is_ours=is_ours)
