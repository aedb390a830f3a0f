"""The worker's metrics: instruments of OpenTelemetry, and plain counts for its status page."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from importlib.metadata import version

import grpc
from opentelemetry.metrics import Meter

from antiphon.contract import Reason
from antiphon_service import semconv
from antiphon_service.pools import STABLE
from antiphon_service.semconv import (
    PageState,
    Phase,
    Preparation,
    Work,
)
from antiphon_service.telemetry.instruments import (
    Histogram,
    Samples,
    observed_counter,
    observed_gauge,
)
from inference_service.errors import SessionError, countable, side_of
from inference_service.interface.engine import (
    Done,
    End,
    Engine,
    Ticked,
)
from inference_service.session.slots import SlotState, SlotTable

RECENT_TICKS = 1000
"""Ticks in the figures of the status page."""
RECENT_UNITS = 1000
"""Units of conversations in the figures of the status page."""

STATES = {
    SlotState.FREE: semconv.SlotState.FREE,
    SlotState.HELD: semconv.SlotState.GRANTED,
    SlotState.ATTACHED: semconv.SlotState.ATTACHED,
    SlotState.CLEANING: semconv.SlotState.CLEANING,
}
"""Names of the states of slots in metrics and on the status page."""
_REASONS = frozenset(reason.value for reason in Reason)


class WorkerMetrics:
    """Metrics of a worker.

    They are recorded on the serving event loop; an exporter may collect them in any thread.
    """

    def __init__(self, meter: Meter, worker_id: str, revision: str = STABLE) -> None:
        self.units: Counter[End] = Counter()
        """Finished units by their end."""
        self.misses = 0
        """Deadline misses: units that took longer than the audio they hold."""
        self.recent_slack: deque[float] = deque(maxlen=RECENT_UNITS)
        """Slack of recent units of conversations in seconds, below 0 for deadline misses."""
        self.lag = Histogram(meter, semconv.EVENT_LOOP_LAG)
        self.recent_ticks: deque[Ticked] = deque(maxlen=RECENT_TICKS)
        self.on_named: Callable[[Ticked], None] = lambda tick: None
        self._meter = meter
        self._worker = (worker_id,)
        self._revision = revision
        # Series begin at 0: a rate over a series that begins at 1 misses the first error.
        self._errors: Counter[tuple[str, str]] = Counter(dict.fromkeys(countable(), 0))
        phases = Histogram(meter, semconv.UNIT_PHASE)
        self._queue, self._prefill, self._decode, self._speech, self._vocoder, self._finalize = (
            phases.recorder(phase)
            for phase in (
                *(Phase.INBOX, Phase.PREFILL, Phase.GENERATE),
                *(Phase.SPEECH, Phase.VOCODER, Phase.FINALIZE),
            )
        )
        self._tick = Histogram(meter, semconv.TICK).recorder()
        self._batch = Histogram(meter, semconv.TICK_BATCH).recorder()
        self._tokens = Histogram(meter, semconv.TICK_TOKENS).recorder()
        self._slack = Histogram(meter, semconv.UNIT_SLACK).recorder()
        self._units_s = self._rest_s = 0.0
        """Seconds of ticks for units, and for work without a deadline."""
        self._cleanup = Histogram(meter, semconv.CLEANUP).recorder()
        self._calls = Histogram(meter, semconv.RPC_SERVER_CALL)
        observed_counter(meter, semconv.ERRORS, lambda: list(self._errors.items()))
        observed_counter(meter, semconv.WORKER_DEADLINE_MISSES, lambda: [((), self.misses)])
        observed_counter(
            meter,
            semconv.TICK_WORK,
            lambda: [((Work.UNITS,), self._units_s), ((Work.REST,), self._rest_s)],
        )
        observed_gauge(meter, semconv.BUILD_INFO, lambda: [((version("antiphon"),), 1)])

    def register(self, is_available: Callable[[], bool]) -> None:
        """Export metrics of the shared queue; `is_available` returns whether Redis answered last."""
        observed_gauge(self._meter, semconv.DISPATCHER_UP, lambda: [((), int(is_available()))])

    def export_model(self, engine: Engine, slots: SlotTable, device: str) -> None:
        """Export metrics of the ready model."""
        meter, worker = self._meter, self._worker

        def memory() -> Samples:
            held = engine.occupancy().device_memory_bytes
            return [] if held is None else [(worker, held)]

        def pages() -> Samples:
            now = engine.occupancy()
            return [
                ((PageState.USED,), now.used_pages),
                ((PageState.CACHED,), now.cached_pages),
                ((PageState.FREE,), now.free_pages),
            ]

        def preparations() -> Samples:
            now = engine.occupancy()
            return [
                ((Preparation.CAPTURE,), now.late_captures),
                ((Preparation.COMPILATION,), now.late_compilations),
            ]

        observed_gauge(meter, semconv.MODEL_INFO, lambda: [((engine.info.name, device, self._revision), 1)])
        observed_gauge(meter, semconv.KV_TOKENS, lambda: [(worker, engine.occupancy().kv_tokens)])
        observed_gauge(meter, semconv.KV_CAPACITY, lambda: [(worker, engine.occupancy().kv_capacity_tokens)])
        observed_gauge(meter, semconv.KV_PAGES, pages)
        observed_counter(meter, semconv.KV_PREFIX_TOKENS, lambda: [((), engine.occupancy().prefix_tokens)])
        observed_counter(meter, semconv.LATE_PREPARATIONS, preparations)
        observed_gauge(meter, semconv.DEVICE_MEMORY, memory)
        observed_gauge(
            meter, semconv.SLOTS, lambda: [((STATES[state],), slots.number_of(state)) for state in SlotState]
        )

    def ticked(self, ticks: Sequence[Ticked]) -> None:
        """Record ticks of the engine, and pass those with named members to `on_named`."""
        self.recent_ticks.extend(ticks)
        for tick in ticks:
            spent = tick.ended - tick.started
            self._tick(spent)
            self._rest_s += tick.rest_s
            self._units_s += spent - tick.rest_s
            self._batch(tick.sessions)
            self._tokens(tick.tokens)
            if tick.members:
                self.on_named(tick)

    def finalized(self, seconds: float) -> None:
        """Record a closed unit and its seconds."""
        self._finalize(seconds)

    def done(self, done: Done, unit_seconds: float) -> None:
        """Record a generated unit; it holds `unit_seconds` of audio, 0 for none."""
        self.units[done.end] += 1
        timings = done.timings
        if unit_seconds:
            slack = unit_seconds - timings.total
            self.misses += slack < 0
            self.recent_slack.append(slack)
            self._slack(max(0.0, slack))
        for took, record in (
            (timings.queue, self._queue),
            (timings.prefill, self._prefill),
            (timings.decode, self._decode),
            (timings.speech, self._speech),
            (timings.vocoder, self._vocoder),
        ):
            if took > 0:
                record(took)
        if done.failure is not None:
            reason = done.failure.reason
            self._errors[reason if reason in _REASONS else semconv.OTHER, side_of(reason)] += 1

    def ended(self, error: SessionError | None) -> None:
        """Record the end or the refusal of a session."""
        if error is not None and error.side is not None:
            self._errors[error.reason or semconv.OTHER, error.side] += 1

    def cleaned(self, seconds: float) -> None:
        """Record a freed slot, `seconds` after the end of its session."""
        self._cleanup(seconds)

    def called(self, method: str, code: grpc.StatusCode, seconds: float) -> None:
        """Record the end of a call."""
        self._calls.record(seconds, method, code.name)
