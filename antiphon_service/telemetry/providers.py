"""OpenTelemetry providers of one process, configured by the environment variables `OTEL_*`."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from time import monotonic
from typing import Final
from uuid import uuid4

from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import NoOpTracerProvider, Tracer
from prometheus_client import CollectorRegistry, generate_latest

from antiphon_service.semconv import TELEMETRY_DROPPED
from antiphon_service.telemetry.errors import TelemetryError
from antiphon_service.telemetry.exporters import Drops, metric_readers, span_processor
from antiphon_service.telemetry.instruments import observed_counter
from antiphon_service.telemetry.limits import check_span_limits

FLUSH_S: Final = 3.0
"""The longest time in seconds that `Telemetry.shutdown` waits for the exporters."""

_SCOPE: Final = "antiphon"


@dataclass(frozen=True)
class Telemetry:
    """Tracers and meter of one process; the global providers are never set.

    `tracer` samples by OTEL_TRACES_SAMPLER. `always` samples every span; it is for failures and for the spans
    of sessions that `tracer` has already sampled. Without a trace exporter both are no-ops.
    """

    tracer: Tracer
    always: Tracer
    meter: Meter
    _registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _processors: tuple[SpanProcessor, ...] = ()
    _meters: MeterProvider | None = None

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format; empty with another metrics exporter."""
        return generate_latest(self._registry)

    def shutdown(self) -> None:
        """Export the queued spans and metrics, for at most `FLUSH_S` seconds. Never raises."""
        ends = [processor.shutdown for processor in self._processors]
        if self._meters is not None:
            ends.append(self._meters.shutdown)
        threads = [threading.Thread(target=end, name="telemetry-shutdown", daemon=True) for end in ends]
        until = monotonic() + FLUSH_S
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))


def start(
    service: str,
    environ: Mapping[str, str] = os.environ,
    *,
    span_exporters: Sequence[SpanExporter] = (),
) -> Telemetry:
    """Create the providers of the process named `service`.

    The SDK itself reads span limits and the exporters' endpoint, headers and timeouts from the environment of
    the process. `span_exporters` receive each span when it ends, in addition to the exporter that `environ`
    names. Raises `TelemetryError` for a variable with an unusable value.
    """
    if _is_true(environ.get("OTEL_SDK_DISABLED", "")):
        nothing = NoOpTracerProvider().get_tracer(_SCOPE)
        return Telemetry(nothing, nothing, NoOpMeterProvider().get_meter(_SCOPE))
    resource = Resource.create(
        {
            SERVICE_NAME: service,
            SERVICE_VERSION: version("antiphon"),
            SERVICE_INSTANCE_ID: str(uuid4()),
        }
    )
    check_span_limits(environ)
    drops = Drops()
    registry = CollectorRegistry()
    processors: list[SpanProcessor] = [SimpleSpanProcessor(exporter) for exporter in span_exporters]
    exported = span_processor(environ, drops)
    if exported is not None:
        processors.append(exported)
    sampler = _sampler(environ)
    readers = metric_readers(environ, registry)
    meters = None
    if readers:
        # No exporter here sends exemplars; with the default filter each record would look for one.
        meters = MeterProvider(
            readers, resource, shutdown_on_exit=False, exemplar_filter=AlwaysOffExemplarFilter()
        )
    meter = (meters or NoOpMeterProvider()).get_meter(_SCOPE)
    observed_counter(meter, TELEMETRY_DROPPED, lambda: [((), drops.count)])
    if not processors:
        nothing = NoOpTracerProvider().get_tracer(_SCOPE)
        return Telemetry(nothing, nothing, meter, registry, (), meters)
    return Telemetry(
        _tracer(resource, sampler, processors),
        _tracer(resource, ALWAYS_ON, processors),
        meter,
        registry,
        tuple(processors),
        meters,
    )


def _tracer(resource: Resource, sampler: Sampler, processors: Sequence[SpanProcessor]) -> Tracer:
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider.get_tracer(_SCOPE)


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _sampler(environ: Mapping[str, str]) -> Sampler:
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    samplers: dict[str, Sampler] = {
        "always_on": ALWAYS_ON,
        "always_off": ALWAYS_OFF,
        "parentbased_always_on": ParentBased(ALWAYS_ON),
        "parentbased_always_off": ParentBased(ALWAYS_OFF),
    }
    if name in samplers:
        return samplers[name]
    if name == "traceidratio":
        return TraceIdRatioBased(_ratio(environ))
    if name == "parentbased_traceidratio":
        return ParentBasedTraceIdRatio(_ratio(environ))
    known = ", ".join((*samplers, "traceidratio", "parentbased_traceidratio"))
    raise TelemetryError(f"OTEL_TRACES_SAMPLER is {name!r}: set it to one of {known}.")


def _ratio(environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise TelemetryError(f"OTEL_TRACES_SAMPLER_ARG is {text!r}: set it to a share from 0 to 1.")
    return ratio
