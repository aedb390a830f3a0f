"""The spans of one conversation with the shipped model, as OTLP in JSON.

Trace viewers accept the file: one object with `resourceSpans`, ids in hexadecimal. Adapter and worker run
with default options; the client is `antiphon talk`.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from benchmarks.load.processes import TESTED_CPU, running
from benchmarks.tracing.collector import Collector
from benchmarks.tracing.settings import sampled

_ROOT: Final = Path(__file__).parents[2]
RECORDING: Final = _ROOT / "clients/recordings/joke.wav"
FILE: Final = _ROOT / "docs/conversation.json"
_IDS: Final = ("traceId", "spanId", "parentSpanId")


def record(recording: Path = RECORDING) -> dict[str, Any]:
    """Hold the conversation and return its spans."""
    with Collector() as collector:
        variables = sampled(collector.endpoint, 1)
        quiet = ("--log-level", "warning")
        worker = ("antiphon_command", "worker", "--listen", "127.0.0.1:0", *quiet)
        adapter = ("antiphon_command", "adapter", "--port", "0", *quiet)
        with running(*worker, cpu=TESTED_CPU, variables=variables) as behind:
            with running(*adapter, "--worker", behind.address, variables=variables) as front:
                talk = ("talk", str(recording), "--url", f"http://{front.address}")
                subprocess.run([sys.executable, "-m", "antiphon_command", *talk], check=True)
        return as_json(collector.resources())


def as_json(resources: Iterable[ResourceSpans]) -> dict[str, Any]:
    """Return resource spans in the JSON of OTLP: one entry per process, spans ordered by start time."""
    by_process: dict[str, dict[str, Any]] = {}
    for resource in resources:
        entry = MessageToDict(resource, use_integers_for_enums=True)
        key = json.dumps(entry["resource"], sort_keys=True)
        known = by_process.setdefault(key, {**entry, "scopeSpans": [{**entry["scopeSpans"][0], "spans": []}]})
        for scope in entry["scopeSpans"]:
            known["scopeSpans"][0]["spans"] += map(_hexadecimal, scope["spans"])
    for entry in by_process.values():
        entry["scopeSpans"][0]["spans"].sort(key=lambda span: int(span["startTimeUnixNano"]))
    return {"resourceSpans": list(by_process.values())}


def _hexadecimal(span: dict[str, Any]) -> dict[str, Any]:
    """Convert ids from protobuf's base64 to the hexadecimal of OTLP."""
    for part in (span, *span.get("links", [])):
        part.update({key: base64.b64decode(part[key]).hex() for key in _IDS if part.get(key)})
    return span


def write(spans: dict[str, Any], file: Path = FILE) -> None:
    """Write the file, with each span or link on its own line."""
    lines = json.dumps(spans, separators=(",", ":")).replace('{"traceId"', '\n{"traceId"')
    file.write_text(lines + "\n")
