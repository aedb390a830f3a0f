"""Traces of the adapter: short spans tied by links; none open after the end, and nothing said in them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import antiphon
from antiphon_service import semconv
from antiphon_service.telemetry.logs import JsonFormatter, SessionFilter
from antiphon_service.telemetry.providers import start
from tests.support.scripted_engine import (
    EVERYTHING,
    Play,
    ScriptedEngine,
    fails,
    hang,
    listen,
    running_worker,
    speak,
    telemetry,
    turn_end,
    write,
)
from tests.ws_adapter.access.test_keys import refused_upgrade
from tests.ws_adapter.observability.test_metrics import answered
from tests.ws_adapter.support.chat_conversation import append as ask
from tests.ws_adapter.support.conversation import CLOSE, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.spans import Traced, attributes, everything, linked
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, running_adapter, until

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CLIENT_TRACE = 0x0AF7651916CD43DD8448EB211C80319C
CLIENT_SPAN = 0xB7AD6B7169203331
CANARY = "the-canary-sings"


@asynccontextmanager
async def traced_stage(
    engine: ScriptedEngine, traced: Traced, **options: Any
) -> AsyncIterator[tuple[Stage, InMemorySpanExporter]]:
    """An adapter that is traced, and the spans of its worker."""
    exporter = InMemorySpanExporter()
    async with (
        running_worker(engine, slots=engine.slots, observed=telemetry(exporter)) as worker,
        running_adapter(worker.address, telemetry=traced.telemetry, **options) as stage,
    ):
        yield stage, exporter


@asynccontextmanager
async def talking(
    engine: ScriptedEngine, traced: Traced, mode: str = "audio", **options: Any
) -> AsyncIterator[Client]:
    """A client whose session has begun, and is closed with the block."""
    async with traced_stage(engine, traced, **options) as (stage, _):
        async with stage.client(stage.url.replace("audio", mode)) as client:
            await client.begin()
            yield client
            await client.send(CLOSE)
            await client.end()


async def talk(stage: Stage, units: int = 1, **options: Any) -> None:
    """A conversation of so many units, ended by the client."""
    async with stage.client(**options) as client:
        await client.begin()
        for _ in range(units):
            await answered(client)
        await client.send(CLOSE)
        await client.end()


async def test_session_is_a_tree_of_short_spans_tied_by_links() -> None:
    traced = Traced()
    engine = ScriptedEngine(listen(), speak("One."), turn_end("Two."), listen())
    async with talking(engine, traced) as client:
        for kind in ("listen", "text", "listen", "listen"):
            await answered(client, kind)

    names = (semconv.SPAN_UPGRADE, semconv.SPAN_QUEUE, semconv.SPAN_START, semconv.SPAN_TURN, "session.end")
    upgrade, queue, began, turn, end = map(traced.one, names)
    units = traced.named(semconv.SPAN_UNIT)
    assert upgrade.kind is SpanKind.SERVER
    assert upgrade.parent is None
    for child in (queue, began, end):
        assert child.parent is not None
        assert child.parent.span_id == upgrade.context.span_id
        assert child.context.trace_id == upgrade.context.trace_id
    assert [attributes(unit)[semconv.ATTR_UNIT] for unit in units] == [1, 2, 3, 4]
    for later in (*units, turn, end):
        assert began.context.span_id in linked(later)
    # A turn ends its trace: the first three units are one group, and the turn belongs to it.
    first, second, third, fourth = units
    assert first.parent is None
    assert {unit.parent.span_id for unit in (second, third, turn) if unit.parent} == {first.context.span_id}
    assert fourth.parent is None
    assert len({first.context.trace_id, fourth.context.trace_id, upgrade.context.trace_id}) == 3
    assert {second.context.span_id, third.context.span_id} <= linked(turn)
    assert first.context.span_id not in linked(turn)
    assert len({attributes(span)[semconv.ATTR_SESSION_ID] for span in traced.spans}) == 1
    told = attributes(upgrade)
    assert (told[semconv.ATTR_URL_PATH], told[semconv.ATTR_HTTP_STATUS]) == ("/v1/realtime", 101)
    assert (told[semconv.ATTR_MODE], told[semconv.ATTR_DIALECT]) == ("audio_duplex", "realtime")
    told = attributes(began)
    assert told[semconv.ATTR_GEN_AI_MODEL] == "scripted"
    assert {semconv.ATTR_WORKER_ID, semconv.ATTR_SLOT, semconv.ATTR_LEASE_EPOCH} <= told.keys()
    assert attributes(queue)[semconv.ATTR_OUTCOME] == "granted"
    assert attributes(third)[semconv.ATTR_UNIT_END] == "turn"
    assert {event.name for event in second.events} == {semconv.EVENT_FIRST_TEXT, semconv.EVENT_FIRST_AUDIO}
    assert 0 < attributes(turn)[semconv.ATTR_FIRST_AUDIO] < 10
    assert list(attributes(turn)[semconv.ATTR_GEN_AI_FINISH]) == ["turn"]
    told = attributes(end)
    assert (told[semconv.ATTR_CLOSE_REASON], told[semconv.ATTR_CLOSE_CODE]) == ("user_stop", 1000)
    assert told[semconv.ATTR_SESSION_UNITS] == 4
    assert all(span.status.status_code is StatusCode.UNSET for span in traced.spans)
    assert traced.still_open == 0


async def test_units_are_grouped_for_half_a_minute() -> None:
    traced, clock = Traced(), ManualClock()
    options: dict[str, Any] = {"clock": clock, "silence_tail_units": 0}
    async with talking(ScriptedEngine(listen(), repeat=True), traced, **options) as client:
        for seconds in (0.0, 29.0, 2.0):
            await clock.advance(seconds)
            await answered(client)
    first, second, third = traced.named(semconv.SPAN_UNIT)
    assert second.context.trace_id == first.context.trace_id
    assert third.context.trace_id != first.context.trace_id
    assert third.parent is None


async def test_each_turn_of_a_chat_is_a_trace_with_its_own_slot() -> None:
    traced = Traced()
    engine = ScriptedEngine(write("Yes."), repeat=True, info=EVERYTHING)
    async with talking(engine, traced, mode="chat") as client:
        for _ in range(2):
            await client.send(ask())
            await client.expect_until("response.done")

    turns, units = traced.named(semconv.SPAN_TURN), traced.named(semconv.SPAN_UNIT)
    assert len(turns) == len(units) == 2
    assert len({unit.context.trace_id for unit in units}) == 2
    assert [linked(turn) & {unit.context.span_id for unit in units} for turn in turns] == [
        {unit.context.span_id} for unit in units
    ]
    assert traced.still_open == 0


async def test_steps_of_the_worker_hang_under_their_units() -> None:
    traced = Traced()
    async with traced_stage(ScriptedEngine(listen(), repeat=True), traced) as (stage, of_worker):
        await talk(stage, units=2)
        await until(lambda: semconv.SPAN_END in traced.names)
    units = {unit.context.span_id: unit.context.trace_id for unit in traced.named(semconv.SPAN_UNIT)}
    steps = [span for span in of_worker.get_finished_spans() if span.name != semconv.SPAN_TICK]
    assert {span.name for span in steps} == {"prefill", "generate", "finalize"}
    assert len(steps) == 6
    for step in steps:
        assert step.parent is not None
        assert units[step.parent.span_id] == step.context.trace_id


async def test_client_finds_its_trace_in_the_answer_and_in_what_goes_wrong() -> None:
    traced = Traced()
    async with traced_stage(ScriptedEngine(fails(), repeat=True), traced) as (stage, _):
        async with stage.client() as client:
            assert client.socket.response is not None
            trace_id = client.socket.response.headers["antiphon-trace-id"]
            await client.begin()
            await client.send(append())
            error = await client.expect("error")
            await client.send(append(), append())
            closed = (await client.end())[0][-1]
    assert int(trace_id, 16) == traced.one(semconv.SPAN_UPGRADE).context.trace_id
    assert error["error"]["trace_id"] == trace_id
    assert closed["diagnostic"]["trace_id"] == trace_id


async def test_refusals_name_their_trace_too() -> None:
    traced = Traced()
    async with running_adapter("127.0.0.1:1", wait=False, telemetry=traced.telemetry) as stage:
        async with stage.client(stage.url.replace("audio", "half")) as client:
            error = await client.expect("error")
            await client.end()
    upgrade = traced.one(semconv.SPAN_UPGRADE)
    assert int(error["error"]["trace_id"], 16) == upgrade.context.trace_id
    assert attributes(upgrade)["error.type"] == "unsupported_mode"
    assert upgrade.status.status_code is StatusCode.UNSET


async def test_untrusted_context_is_linked_and_forces_nothing() -> None:
    for sampler, spans in (("always_on", True), ("parentbased_always_off", False)):
        traced = Traced(OTEL_TRACES_SAMPLER=sampler)
        async with traced_stage(ScriptedEngine(listen()), traced) as (stage, of_worker):
            await talk(stage, additional_headers={"traceparent": CLIENT})
        assert bool(traced.spans) is spans
        if not spans:
            assert traced.started == 0
            assert of_worker.get_finished_spans() == ()
            continue
        upgrade = traced.one(semconv.SPAN_UPGRADE)
        assert upgrade.parent is None
        assert upgrade.context.trace_id != CLIENT_TRACE
        assert linked(upgrade) == {CLIENT_SPAN}


@pytest.mark.parametrize("flag", ["00", "01"])
async def test_trusted_context_is_continued_with_its_decision(tmp_path: Path, flag: str) -> None:
    keys = KeyFile(tmp_path / "keys", "anybody", "trusted")
    given = CLIENT[:-2] + flag
    traced = Traced(OTEL_TRACES_SAMPLER="parentbased_always_off" if flag == "01" else "parentbased_always_on")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path}
    async with traced_stage(ScriptedEngine(listen()), traced, **options) as (stage, _):
        headers = {**keys.bearer("trusted"), "traceparent": given, "tracestate": "vendor=1"}
        async with stage.client(additional_headers=headers) as client:
            assert client.socket.response is not None
            assert int(client.socket.response.headers["antiphon-trace-id"], 16) == CLIENT_TRACE
            await client.begin()
    assert bool(traced.spans) is (flag == "01")
    for upgrade in traced.named(semconv.SPAN_UPGRADE):
        assert upgrade.parent is not None
        assert upgrade.parent.span_id == CLIENT_SPAN
        assert "key.hash" in str(attributes(upgrade))


@pytest.mark.parametrize("dialect", ["current", "earlier"])
async def test_browser_brings_its_context_by_the_first_event_and_by_appends(dialect: str) -> None:
    traced = Traced()
    context = {"traceparent": CLIENT}
    first: dict[str, Any] = {"type": "session.init", "payload": {}}
    heard: dict[str, Any] = append()
    if dialect == "earlier":
        first = {"type": "session.update", "session": {"instructions": "Answer."}}
        heard = {"type": "input_audio_buffer.append", "audio": append()["input"]["audio"]}
    async with traced_stage(ScriptedEngine(listen(), repeat=True), traced) as (stage, _):
        async with stage.client() as client:
            await client.expect("session.queue_done")
            await client.send({**first, "trace_context": context})
            await client.expect("session.created")
            await client.send(heard)
            await client.next()
            await client.send({**heard, "trace_context": {"traceparent": CLIENT.replace("b7", "b8", 1)}})
            await client.next()
            await client.send(CLOSE)
            await client.end()

    assert CLIENT_SPAN in linked(traced.one(semconv.SPAN_START))
    plain, related = traced.named(semconv.SPAN_UNIT)
    assert len(linked(plain)) == 1
    assert len(linked(related)) == 2
    assert {span.context.trace_id for span in traced.spans}.isdisjoint({CLIENT_TRACE})


async def test_transcription_takes_a_context_too() -> None:
    traced = Traced()
    engine = ScriptedEngine(write("Yes."), repeat=True, info=EVERYTHING)
    async with traced_stage(engine, traced) as (stage, _):
        async with stage.client(stage.url.replace("audio", "transcription")) as client:
            await client.expect("session.created")
            context = {"trace_context": {"traceparent": CLIENT}}
            await client.send({"type": "session.update", "model": "scripted", **context})
            await client.send({"type": "input_audio_buffer.commit"})
            await client.send({"type": "input_audio_buffer.append", "audio": "AAAA" * 8000})
            await client.send({"type": "input_audio_buffer.commit", "final": True})
            await client.expect_until("transcription.done")
    assert any(CLIENT_SPAN in linked(span) for span in traced.spans)
    assert traced.named(semconv.SPAN_TURN)
    assert traced.still_open == 0


@pytest.mark.parametrize("given", ["nonsense", 7, [], {}, {"traceparent": 7}, {"traceparent": "0" * 9999}])
async def test_malformed_context_is_counted_and_costs_nothing(given: Any) -> None:
    traced = Traced()
    async with traced_stage(ScriptedEngine(listen()), traced) as (stage, _):
        async with stage.client(additional_headers={"traceparent": "nonsense"}) as client:
            await client.expect("session.queue_done")
            await client.send({"type": "session.init", "payload": {}, "trace_context": given})
            await client.expect("session.created")
    assert b"antiphon_trace_contexts_invalid_total 2.0" in traced.telemetry.exposition()


async def test_session_failure_is_traced_even_if_sampler_is_off() -> None:
    traced = Traced(OTEL_TRACES_SAMPLER="always_off")
    async with traced_stage(ScriptedEngine(fails(), repeat=True), traced) as (stage, _):
        async with stage.client() as client:
            assert client.socket.response is not None
            trace_id = client.socket.response.headers["antiphon-trace-id"]
            await client.begin()
            await client.send(append(), append(), append())
            await client.end()
        await until(lambda: traced.spans)
    (end,) = traced.spans
    assert end.name == semconv.SPAN_END
    assert end.context.trace_id == int(trace_id, 16)
    assert end.status.status_code is StatusCode.ERROR
    assert attributes(end)["error.type"] == "inference_error"


async def test_budget_of_spans_and_records_for_a_unit() -> None:
    """Four spans and twelve records are for both services: three of each are the worker's."""
    traced = Traced()
    units = 20
    engine = ScriptedEngine(turn_end("Hi."), repeat=True)
    async with talking(engine, traced) as client:
        before = len(traced.spans), recorded(traced)
        for _ in range(units):
            await answered(client)
        await until(lambda: len(traced.named(semconv.SPAN_TURN)) == units)
        spans = [span.name for span in traced.spans[before[0] :]]
        records = recorded(traced) - before[1]
    assert spans.count(semconv.SPAN_UNIT) == units
    # Each of these units is a turn as well, which is more than any conversation has.
    assert len(spans) == 2 * units
    assert records <= 5 * units


def recorded(traced: Traced) -> float:
    """Values that were recorded in histograms so far, but for those that time alone makes."""
    counts = [line for line in traced.telemetry.exposition().decode().splitlines() if "_count" in line]
    return sum(float(line.split()[-1]) for line in counts if "loop_lag" not in line)


async def test_failed_unit_is_our_fault_and_a_refused_one_is_not() -> None:
    traced = Traced()
    async with talking(ScriptedEngine(fails(), fails("AUDIO_INVALID"), listen()), traced) as client:
        for names in (("error", "listen"), ("error", "listen"), ("listen",)):
            await client.send(append())
            await client.expect(*names)
    units = traced.named(semconv.SPAN_UNIT)
    assert [(unit.status.status_code, attributes(unit).get("error.type")) for unit in units] == [
        (StatusCode.ERROR, "INFERENCE_FAILED"),
        (StatusCode.UNSET, "AUDIO_INVALID"),
        (StatusCode.UNSET, None),
    ]
    assert traced.one(semconv.SPAN_END).status.status_code is StatusCode.UNSET


async def test_mistakes_of_a_client_are_events_of_the_span_that_is_open_or_of_the_next() -> None:
    traced = Traced()
    async with traced_stage(ScriptedEngine(hang("generate"), listen()), traced) as (stage, _):
        async with stage.client() as client:
            await client.expect("session.queue_done")
            await client.send({"type": "input.append", "input": {}})  # while the session begins
            await client.expect("error")
            await client.send({"type": "session.init", "payload": {}})
            await client.expect("session.created")
            await client.send({"type": "no.such.event"})  # while nothing is open
            await client.expect("error")
            await client.send(append())
            await until(lambda: traced.still_open)
            await client.send({"type": "no.such.event"})  # while a unit runs
            await client.expect("error")
            await client.send(CLOSE)
            await client.end()

    def mistakes(name: str) -> list[Any]:
        return [dict(event.attributes or {})["error.type"] for event in traced.one(name).events]

    assert mistakes(semconv.SPAN_START) == ["not_ready"]
    assert mistakes(semconv.SPAN_UNIT) == ["unknown_event", "unknown_event"]
    assert all(span.status.status_code is StatusCode.UNSET for span in traced.spans)


async def test_interrupted_unit_ends_its_span() -> None:
    traced = Traced()
    engine = ScriptedEngine(speak("One."), hang("generate"), repeat=True)
    async with talking(engine, traced) as client:
        await client.send(append())
        await client.expect("text", "audio")
        await client.send(append())
        await until(lambda: len(engine.session.heard) == 2)
        await client.send({"type": "input.append", "input": {"force_listen": True}})
        await client.expect("listen")
    ends = [attributes(unit).get(semconv.ATTR_UNIT_END) for unit in traced.named(semconv.SPAN_UNIT)]
    assert ends[:2] == ["chunk", "cancelled"]
    assert traced.still_open == 0


@pytest.mark.parametrize("way", ["close", "vanish", "worker dies", "worker fails", "adapter ends"])
async def test_no_span_is_open_after_the_end(way: str) -> None:
    traced = Traced()
    play: Play = hang("generate")
    if way == "worker fails":
        play = Play(breaks_device=True)
    engine = ScriptedEngine(play, repeat=True)
    exporter = InMemorySpanExporter()
    async with running_worker(engine, slots=engine.slots, observed=telemetry(exporter)) as worker:
        async with running_adapter(worker.address, telemetry=traced.telemetry) as stage:
            async with stage.client() as client:
                await client.begin()
                await client.send(append())
                if way != "worker fails":
                    await until(lambda: engine.session.heard)
                if way == "close":
                    await client.send(CLOSE)
                elif way == "vanish":
                    client.vanish()
                elif way in ("worker dies", "adapter ends"):
                    service = worker.worker if way == "worker dies" else stage.adapter
                    service.interrupt()
                    service.interrupt()
                if way != "vanish":
                    await client.end()
            await until(lambda: semconv.SPAN_END in traced.names)

    assert traced.still_open == 0
    unit, end = traced.one(semconv.SPAN_UNIT), traced.one(semconv.SPAN_END)
    is_fault = way == "worker fails"
    if way != "worker dies":  # which it may manage to say, or not
        assert (unit.status.status_code is StatusCode.ERROR) is is_fault
        assert (end.status.status_code is StatusCode.ERROR) is is_fault


@pytest.mark.parametrize("state", ["queued", "connected", "configuring"])
async def test_no_span_is_open_after_a_session_that_never_began(state: str) -> None:
    traced = Traced()
    engine = ScriptedEngine(listen(), slots=1, slow_start=state == "configuring")
    async with traced_stage(engine, traced) as (stage, _):
        async with stage.client() as first:
            await first.expect("session.queue_done")
            if state == "configuring":
                await first.send({"type": "session.init", "payload": {}})
                await until(lambda: engine.sessions)
            if state == "queued":
                async with stage.client() as second:
                    await second.expect("session.queued")
                    second.vanish()
                await until(lambda: len(traced.named(semconv.SPAN_END)) == 1)
            first.vanish()
        await until(lambda: len(traced.named(semconv.SPAN_END)) == (2 if state == "queued" else 1))

    if state == "queued":
        place = traced.named(semconv.SPAN_QUEUE)[1].events[0]
        assert place.name == semconv.EVENT_POSITION
        assert dict(place.attributes or {})[semconv.ATTR_QUEUE_POSITION] == 1
    outcomes = [attributes(span)[semconv.ATTR_OUTCOME] for span in traced.named(semconv.SPAN_QUEUE)]
    assert outcomes == (["granted", "gave_up"] if state == "queued" else ["granted"])
    assert traced.still_open == 0
    assert all(span.status.status_code is StatusCode.UNSET for span in traced.spans)


async def test_unreachable_worker_is_our_fault() -> None:
    traced = Traced()
    options: dict[str, Any] = {"wait": False, "no_worker_grace_s": 0.01}
    async with running_adapter("127.0.0.1:1", telemetry=traced.telemetry, **options) as stage:
        async with stage.client() as client:
            await client.end()
    waited, end = traced.one(semconv.SPAN_QUEUE), traced.one(semconv.SPAN_END)
    assert attributes(waited)[semconv.ATTR_OUTCOME] == "no_worker"
    for span in (waited, end):
        assert span.status.status_code is StatusCode.ERROR
    assert traced.still_open == 0


async def test_denied_request_ends_its_span(tmp_path: Path) -> None:
    traced = Traced()
    keys = KeyFile(tmp_path / "keys", "alice")
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "wait": False}
    async with running_adapter("127.0.0.1:1", telemetry=traced.telemetry, **options) as stage:
        refused = await refused_upgrade(stage)
    upgrade = traced.one(semconv.SPAN_UPGRADE)
    assert attributes(upgrade)[semconv.ATTR_HTTP_STATUS] == 401
    assert attributes(upgrade)["error.type"] == "auth"
    assert upgrade.status.status_code is StatusCode.UNSET
    assert int(refused.headers["antiphon-trace-id"], 16) == upgrade.context.trace_id


async def test_nothing_said_is_in_spans_figures_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "ws_adapter")
    traced = Traced()
    keys = KeyFile(tmp_path / "keys", "alice")
    secret = keys.bearer("alice")["Authorization"].removeprefix("Bearer ")
    engine = ScriptedEngine(turn_end(CANARY), fails(message=CANARY), repeat=True)
    options: dict[str, Any] = {"auth": "keys", "keys": keys.path, "auth_query": True}
    async with traced_stage(engine, traced, **options) as (stage, _):
        async with stage.client(f"{stage.url}&token={secret}&note={CANARY}") as client:
            await client.expect("session.queue_done")
            await client.send({"type": "session.init", "payload": {"system_prompt": CANARY}})
            await client.expect("session.created")
            for _ in range(2):
                await answered(client, input_id=CANARY)
            await client.send({"type": CANARY}, {"type": "input.append", "input": {"audio": CANARY}})
            await client.expect("error", "error")
            await client.send({"type": "session.close", "reason": CANARY.replace("-", "_")})
            await client.end()
        await until(lambda: semconv.SPAN_END in traced.names)

    told = everything(traced.spans) + traced.telemetry.exposition().decode()
    lines = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "sess" in told
    assert "session ended" in lines
    for text in (CANARY, CANARY.replace("-", "_"), secret):
        assert text not in told
        assert text not in lines


async def test_lines_of_a_session_carry_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ws_adapter")
    traced = Traced()
    with caplog.filtering(SessionFilter()):
        async with traced_stage(ScriptedEngine(listen()), traced) as (stage, _):
            await talk(stage)

    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    opened, ended = (
        next(line for line in lines if line["event"] == event)
        for event in ("session opened", "session ended")
    )
    upgrade = traced.one(semconv.SPAN_UPGRADE)
    for line in (opened, ended):
        assert line["session_id"] == attributes(upgrade)[semconv.ATTR_SESSION_ID]
        assert int(line["trace_id"], 16) == upgrade.context.trace_id
        assert int(line["span_id"], 16) == upgrade.context.span_id
    assert ended["worker_id"]
    assert (ended["reason"], ended["units"], ended["close_code"]) == ("user_stop", 1, 1000)


async def test_clients_of_the_sdk_are_served_without_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with running_worker(ScriptedEngine(turn_end("Hi.")), observed=telemetry()) as worker:
        async with running_adapter(worker.address, telemetry=start(semconv.SERVICE_ADAPTER)) as stage:
            url = stage.address.replace("http", "ws")
            async with antiphon.connect(url) as client, client.duplex() as session:
                await session.send_audio(np.zeros(16_000, np.float32))
                async for event in session:
                    if isinstance(event, antiphon.TurnEnd):
                        break
                assert session.trace_id is not None
                assert len(session.trace_id) == 32
            assert stage.telemetry.exposition() == b""
