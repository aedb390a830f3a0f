"""Metrics of an adapter.

Plain numbers count the events of each message or unit; the thread that collects metrics reads them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from typing import Any, Final

from opentelemetry.metrics import Meter

from antiphon_service import semconv
from antiphon_service.leases import DEFAULT_POOL
from antiphon_service.pools import STABLE
from antiphon_service.semconv import (
    Direction,
    DropReason,
    FailoverOutcome,
    Hop,
    LeaseOutcome,
    Metric,
    QueueOutcome,
    Rejection,
    ResumeOutcome,
    Side,
    SlowAction,
)
from antiphon_service.telemetry.instruments import (
    Histogram,
    Samples,
    observed_counter,
    observed_gauge,
)
from ws_adapter.observability.leases import Leases
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.transcription import events
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.usage.log import UsageLog
from ws_adapter.usage.totals import Totals

DISCONNECTED: Final = "disconnected"
"""The end reason of a session whose client disconnected without a Close."""

_REASONS: Final = frozenset(
    {
        errors.USER_STOP,
        errors.DONE,
        errors.TIMEOUT,
        errors.CONTEXT_FULL,
        errors.SHUTDOWN,
        errors.BACKEND_ERROR,
        errors.SLOW_CONSUMER,
        DISCONNECTED,
        *ErrorCode,
    }
)
_CODES: Final = frozenset({*ErrorCode, *events.Code})

RECENT_S: Final = 300.0
"""The period that `Recent` covers, in seconds."""


def known_reason(reason: str) -> str:
    """Return `reason` as a label; a reason that a client made up becomes `other`, to bound the series."""
    return reason if reason in _REASONS else semconv.OTHER


@dataclass
class Recent:
    """Units and deadline misses of the last minutes, from samples."""

    _seen: deque[tuple[float, int, int]] = field(default_factory=deque)

    def record(self, now: float, units: int, misses: int) -> tuple[int, int]:
        """Record the current totals; return the increase of each within `RECENT_S`."""
        self._seen.append((now, units, misses))
        while len(self._seen) > 1 and self._seen[1][0] <= now - RECENT_S:
            self._seen.popleft()
        _, first_units, first_misses = self._seen[0]
        return units - first_units, misses - first_misses


class Metrics:
    """All metrics of an adapter.

    Series of alerts and panels start at 0, because Prometheus computes no rate for a first value of 1.
    """

    def __init__(self, meter: Meter) -> None:
        self.public_bytes = ByteCount()
        self.worker_bytes = ByteCount()
        self.active: Counter[str] = Counter()
        self.detached: Counter[str] = _zero(Kind)
        self.resumes: Counter[ResumeOutcome] = _zero(ResumeOutcome)
        self.failovers: Counter[FailoverOutcome] = _zero(FailoverOutcome)
        self.replayed_units = 0
        self.sessions: Counter[tuple[str, str]] = Counter()
        self.rejected: Counter[Rejection] = _zero(Rejection)
        self.errors: Counter[tuple[str, Side]] = _zero((code, _side(code.is_servers)) for code in ErrorCode)
        self.units: Counter[tuple[str, str]] = Counter()
        self.misses: Counter[str] = _zero(Kind)
        self.dropped: Counter[tuple[str, DropReason]] = _zero(product(Kind, DropReason))
        self.leases = Leases()
        self.lease_outcomes: Counter[tuple[LeaseOutcome, str]] = _zero(product(LeaseOutcome, (STABLE,)))
        self.slow_consumers: Counter[SlowAction] = _zero(SlowAction)
        self.invalid_trace_contexts = 0
        self.limited_alone = 0
        self.tenants = Totals()
        self.usage_log: UsageLog | None = None
        self.first_audio = Histogram(meter, semconv.FIRST_AUDIO)
        self.first_text = Histogram(meter, semconv.FIRST_TEXT)
        self.unit = Histogram(meter, semconv.UNIT)
        self.overhead = Histogram(meter, semconv.ADAPTER_OVERHEAD)
        self.outbox = Histogram(meter, semconv.OUTBOX)
        self.session_length = Histogram(meter, semconv.SESSION_LENGTH)
        self.loop_lag = Histogram(meter, semconv.EVENT_LOOP_LAG)
        self._queue_wait = Histogram(meter, semconv.QUEUE_WAIT)
        self.estimate_error = Histogram(meter, semconv.QUEUE_ESTIMATE_ERROR)
        _count(meter, semconv.UNITS, self.units)
        _count(meter, semconv.UNITS_DROPPED, self.dropped)
        _count(meter, semconv.UNIT_DEADLINE_MISSES, self.misses)
        _count(meter, semconv.SESSIONS, self.sessions)
        _count(meter, semconv.RESUMES, self.resumes)
        _count(meter, semconv.FAILOVERS, self.failovers)
        observed_counter(meter, semconv.REPLAYED_UNITS, lambda: [((), self.replayed_units)])
        _count(meter, semconv.REJECTED, self.rejected)
        _count(meter, semconv.ERRORS, self.errors)
        _count(meter, semconv.LEASES, self.lease_outcomes)
        _count(meter, semconv.SLOW_CONSUMERS, self.slow_consumers)
        observed_gauge(meter, semconv.SESSIONS_ACTIVE, lambda: _samples(self.active))
        observed_gauge(meter, semconv.SESSIONS_DETACHED, lambda: _samples(self.detached))
        observed_counter(meter, semconv.TRACE_CONTEXTS_INVALID, lambda: [((), self.invalid_trace_contexts)])
        observed_counter(meter, semconv.LIMITS_ALONE, lambda: [((), self.limited_alone)])
        observed_counter(meter, semconv.BYTES, self._bytes)
        observed_counter(meter, semconv.TENANT_SESSIONS, self._tenant_sessions)
        observed_counter(meter, semconv.TENANT_SECONDS, self._tenant_seconds)
        observed_counter(meter, semconv.TENANT_TOKENS, self._tenant_tokens)
        observed_counter(meter, semconv.USAGE_LINES, self._usage_lines)
        observed_gauge(meter, semconv.BUILD_INFO, lambda: [((version("antiphon"),), 1)])

    def ended(self, kind: Kind, reason: str, seconds: float) -> None:
        """Record the end of a session."""
        self.active[kind] -= 1
        self.sessions[kind, known_reason(reason)] += 1
        self.session_length.record(seconds, kind.value)

    def counted_alone(self) -> None:
        """Count a connection that was admitted without an answer about the limits of all adapters."""
        self.limited_alone += 1

    def failed(self, code: str, *, is_servers: bool) -> None:
        """Count an error that was sent to a client."""
        self.errors[code if code in _CODES else semconv.OTHER, _side(is_servers)] += 1

    def waited(self, seconds: float, outcome: QueueOutcome) -> None:
        """Record the end of a wait for a slot."""
        self._queue_wait.record(seconds, DEFAULT_POOL, outcome.value)

    def _tenant_sessions(self) -> Samples:
        return [((name,), total.sessions) for name, total in self.tenants.all()]

    def _tenant_seconds(self) -> Samples:
        return [((name,), total.seconds) for name, total in self.tenants.all()]

    def _tenant_tokens(self) -> Samples:
        for name, total in self.tenants.all():
            yield (name, Direction.IN), total.input_tokens
            yield (name, Direction.OUT), total.output_tokens

    def _usage_lines(self) -> Samples:
        log = self.usage_log
        yield ("written",), log.written if log is not None else 0
        yield ("lost",), log.lost if log is not None else 0

    def _bytes(self) -> Samples:
        for hop, count in ((Hop.PUBLIC, self.public_bytes), (Hop.GRPC, self.worker_bytes)):
            yield (Direction.IN, hop), count.received
            yield (Direction.OUT, hop), count.sent


def _zero(labels: Iterable[Any]) -> Counter[Any]:
    return Counter(dict.fromkeys(labels, 0))


def _side(is_servers: bool) -> Side:
    return Side.SERVER if is_servers else Side.CLIENT


def _count(meter: Meter, metric: Metric, counter: Counter[Any]) -> None:
    """Export a counter with one series for each key, which is the value of a label or a tuple of them."""
    observed_counter(meter, metric, lambda: _samples(counter))


def _samples(counter: Counter[Any]) -> Samples:
    # Copy first, since another thread may run this.
    for key, value in list(counter.items()):
        yield key if isinstance(key, tuple) else (key,), value


def observe(meter: Meter, metric: Metric, read: Callable[[], float]) -> None:
    """Export a gauge of one number."""
    observed_gauge(meter, metric, lambda: [((), read())])
