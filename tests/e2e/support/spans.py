"""Spans as they arrive at a collector."""

from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from benchmarks.tracing.collector import Collector

Context = tuple[str, str]
"""Trace id and span id, in hexadecimal digits; both empty for none."""


@dataclass(frozen=True)
class Exported:
    service: str
    name: str
    context: Context
    parent: Context
    links: tuple[Context, ...]
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any] = field(default_factory=dict)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def _exported(service: str, span: trace_pb2.Span) -> Exported:
    trace = span.trace_id.hex()
    return Exported(
        service,
        span.name,
        (trace, span.span_id.hex()),
        (trace, span.parent_span_id.hex()) if span.parent_span_id else ("", ""),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        {item.key: _value(item.value) for item in span.attributes},
    )


class Spans:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    @property
    def all(self) -> list[Exported]:
        found = []
        for resource in self._collector.resources():
            names = {item.key: _value(item.value) for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                found += [_exported(names["service.name"], span) for span in scope.spans]
        return sorted(found, key=lambda span: span.start)

    @property
    def raw(self) -> bytes:
        return self._collector.raw

    def of_session(self, session_id: str) -> list[Exported]:
        return [span for span in self.all if span.attributes.get("session.id") == session_id]
