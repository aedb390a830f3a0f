"""The benchmark of tracing collects what is exported, compares like with like, and draws what it recorded."""

import json
import urllib.error
import urllib.request
from xml.etree import ElementTree

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from antiphon_service.semconv import SPAN_FINALIZE, SPAN_GENERATE, SPAN_PREFILL, SPAN_TICK, SPAN_UNIT
from benchmarks.tracing import conversation, cost, timeline
from benchmarks.tracing.collector import Collector
from benchmarks.tracing.settings import METRICS
from tests.e2e.conftest import FOLDER
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_collector_keeps_what_an_exporter_sends(compression: Compression) -> None:
    with Collector() as collector:
        exporter = OTLPSpanExporter(f"{collector.endpoint}/v1/traces", compression=compression)
        provider = TracerProvider(resource=Resource({"service.name": "one"}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with provider.get_tracer("test").start_as_current_span("outer") as outer:
            with provider.get_tracer("test").start_as_current_span("inner"):
                pass
        provider.shutdown()

        assert [span.name for span in collector.spans()] == ["inner", "outer"]
        [process] = conversation.as_json(collector.resources())["resourceSpans"]

    first, second = process["scopeSpans"][0]["spans"]
    assert (first["name"], second["name"]) == ("outer", "inner")
    assert first["spanId"] == second["parentSpanId"] == f"{outer.get_span_context().span_id:016x}"
    assert first["traceId"] == f"{outer.get_span_context().trace_id:032x}"


def test_collector_takes_nothing_but_traces() -> None:
    with Collector() as collector:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{collector.endpoint}/v1/metrics", b"", timeout=PATIENCE_S)
        assert collector.resources() == []


@pytest.mark.long
async def test_cost_is_compared_between_like_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "WARM_UP_S", 0.5)
    off, traced = settings = [cost.Setting(cost.OFF, None, METRICS), cost.Setting(cost.ALL, 1.0, {})]
    await cost.compare(settings, 4, 2, 1.5)

    for setting in settings:
        assert len(setting.windows) == 2
        assert all(window.adapter_us > 0 and window.worker_us > 0 for window in setting.windows)
    assert off.spans == 0
    assert traced.spans >= 4 * traced.units
    [base, other] = cost.rows("no model", settings)
    assert (base[0], base[3]) == ("tracing off, no model", 1.0)
    assert other[0] == "100 %, no model"


def test_recorded_trace_is_consistent_and_contains_no_spoken_text() -> None:
    bars = timeline.read()
    units = {bar.span_id: bar for bar in bars if bar.name == SPAN_UNIT}
    steps = [bar for bar in bars if bar.is_worker and bar.name != SPAN_TICK]

    assert len({bar.unit for bar in units.values()}) == len(units) > 5
    assert {bar.name for bar in steps} == {SPAN_PREFILL, SPAN_GENERATE, SPAN_FINALIZE}
    for step in steps:
        assert step.unit == units[step.parent_id].unit
        assert step.begin >= units[step.parent_id].begin
    text = conversation.FILE.read_text().lower()
    [told] = [
        entry for entry in json.loads((FOLDER / "manifest.json").read_text()) if entry["file"] == "joke.wav"
    ]
    assert told["text"].lower() not in text
    assert told["expected_reply"].lower() not in text


def test_picture_shows_every_span_of_the_recording_and_is_up_to_date() -> None:
    drawn = timeline.draw(timeline.read())
    picture = ElementTree.fromstring(drawn)
    titles = [title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) >= len(timeline.read())
    assert sum(title.startswith(f"{SPAN_UNIT} ") for title in titles) > 5
    assert timeline.PICTURE.read_text() == drawn
