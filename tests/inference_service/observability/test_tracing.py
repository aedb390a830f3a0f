"""The worker's spans: where they hang, what they say, and that each ends however its session does."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from antiphon.contract import METADATA_TRACEPARENT, METADATA_TRACESTATE, METADATA_WORKER_ID, Reason
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service import semconv
from inference_service.interface.engine import NAMED_TICKS, SessionFailed, Ticked
from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, channel_to, duplex, until
from tests.support.passing import Passing
from tests.support.scripted_engine import (
    PATIENT,
    Play,
    RunningWorker,
    ScriptedEngine,
    fails,
    hang,
    listen,
    running_worker,
    telemetry,
    turn_end,
)

STEPS = [semconv.SPAN_PREFILL, semconv.SPAN_GENERATE, semconv.SPAN_FINALIZE]
CANARY = "the heron stands in the reeds"

_numbers = itertools.count(1)


class Traced:
    """A worker, callers of it, and its spans so far."""

    def __init__(self, worker: RunningWorker, channel: Any, exporter: InMemorySpanExporter) -> None:
        self.worker = worker
        self._channel = channel
        self._exporter = exporter

    def caller(self, *metadata: tuple[str, str]) -> Caller:
        return Caller(self._channel, None, *metadata)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def traced(
    engine: ScriptedEngine, environ: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    observed = telemetry(exporter, **(environ or {}))
    async with running_worker(engine, observed=observed, **options) as worker:
        async with channel_to(worker.address) as channel:
            yield Traced(worker, channel, exporter)


def new_context(flags: str = "01") -> str:
    """A trace context that no other test has."""
    number = next(_numbers)
    return f"00-{number:032x}-{number:016x}-{flags}"


def ids(traceparent: str) -> tuple[int, int]:
    _, trace, span, _ = traceparent.split("-")
    return int(trace, 16), int(span, 16)


def parent(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.parent.span_id if span.parent else 0


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


async def spans_of(engine: ScriptedEngine, *contexts: str, of_calls: Any = ()) -> list[ReadableSpan]:
    """The spans of a session that has a unit with each of these contexts."""
    async with traced(engine) as worker:
        caller = await worker.caller(*of_calls).ready()
        for number, context in enumerate(contexts, 1):
            await caller.unit(number, traceparent=context)
        return worker.spans


async def test_the_steps_of_a_unit_are_children_of_the_callers_span() -> None:
    contexts = [new_context(), new_context()]
    spans = await spans_of(ScriptedEngine(turn_end("Yes.")), *contexts)
    assert [span.name for span in spans] == STEPS * 2
    assert [parent(span) for span in spans] == [ids(c) for c in contexts for _ in STEPS]
    assert {span.kind for span in spans} == {SpanKind.SERVER}
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


async def test_steps_of_a_unit_follow_one_another_in_time() -> None:
    spans = await spans_of(ScriptedEngine(listen(delay_s=0.02)), new_context())
    times = [(span.start_time or 0, span.end_time or 0) for span in spans]
    assert all(start <= end for start, end in times)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))
    assert times[1][1] - times[1][0] > 15_000_000


NO_CONTEXT = {"none": "", "nonsense": "nonsense", "long": "x" * 9000, "no trace": f"00-{0:032}-{1:016}-01"}


@pytest.mark.parametrize("given", NO_CONTEXT.values(), ids=NO_CONTEXT)
async def test_a_unit_without_a_valid_context_hangs_at_that_of_the_streams(given: str) -> None:
    context = new_context()
    metadata = ((METADATA_TRACEPARENT, context), (METADATA_TRACESTATE, "vendor=1"))
    spans = await spans_of(ScriptedEngine(), given, of_calls=metadata)
    assert [parent(span) for span in spans] == [ids(context)] * 3
    assert {span.context.trace_state.get("vendor") for span in spans} == {"1"}


async def test_without_any_context_each_unit_is_a_trace_of_its_own() -> None:
    spans = await spans_of(ScriptedEngine(), "", "")
    first, second = spans[:3], spans[3:]
    for unit in (first, second):
        root = unit[0]
        assert root.parent is None
        assert [parent(span) for span in unit[1:]] == [(root.context.trace_id, root.context.span_id)] * 2
    assert first[0].context.trace_id != second[0].context.trace_id


async def test_an_unsampled_context_makes_no_span() -> None:
    metadata = [(METADATA_TRACEPARENT, new_context())]
    assert await spans_of(ScriptedEngine(), new_context("00"), of_calls=metadata) == []


async def test_sampled_parent_context_overrides_worker_sampler() -> None:
    async with traced(ScriptedEngine(), {"OTEL_TRACES_SAMPLER": "always_off"}) as worker:
        caller = await worker.caller().ready()
        await caller.unit(1)
        assert worker.spans == []
        await caller.unit(2, traceparent=new_context())
        assert [span.name for span in worker.spans] == STEPS


async def test_the_workers_own_sampler_decides_once_for_a_session() -> None:
    half = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    found = set()
    async with traced(ScriptedEngine(slots=1), half) as worker:
        for _ in range(40):  # once in 10^12 they are all decided alike
            before = len(worker.spans)
            caller = await worker.caller().ready()
            for number in (1, 2, 3):
                await caller.unit(number)
            await caller.leave()
            found.add(len(worker.spans) - before)
    assert found == {0, 9}


async def test_spans_tell_session_unit_and_call_and_nothing_that_was_said() -> None:
    async with traced(ScriptedEngine(turn_end(CANARY))) as worker:
        caller = await worker.caller().ready(system_prompt=CANARY)
        answers = await caller.unit(1, traceparent=new_context())
        assert answers.text == CANARY
        prefill, generate, finalize = worker.spans
        initial = dict(await caller.calls[Stream.PREFILL].initial_metadata())
    for span, method in ((prefill, "Prefill"), (generate, "Generate"), (finalize, "Finalize")):
        assert attribute(span, semconv.ATTR_RPC_SYSTEM) == "grpc"
        assert attribute(span, semconv.ATTR_RPC_METHOD) == f"antiphon.v1.InferenceService/{method}"
        assert attribute(span, semconv.ATTR_SESSION_ID) == caller.session_id
        assert attribute(span, semconv.ATTR_UNIT) == 1
    assert attribute(prefill, semconv.ATTR_WORKER_ID) == initial[METADATA_WORKER_ID]
    assert attribute(prefill, semconv.ATTR_SLOT) == 0
    assert attribute(prefill, semconv.ATTR_GEN_AI_INPUT_TOKENS) == 12
    told = {
        semconv.ATTR_MODE: "audio_duplex",
        semconv.ATTR_GEN_AI_OPERATION: "duplex",
        semconv.ATTR_GEN_AI_PROVIDER: "antiphon",
        semconv.ATTR_GEN_AI_MODEL: "scripted",
        semconv.ATTR_GEN_AI_OUTPUT_TOKENS: 1,
        semconv.ATTR_UNIT_END: "turn",
        semconv.ATTR_GEN_AI_FINISH: ("eos",),
    }
    assert told.items() <= dict(generate.attributes or {}).items()
    assert attribute(finalize, semconv.ATTR_KV_TOKENS) == answers.finalize.context_tokens
    assert not [span for span in (prefill, generate, finalize) if "heron" in span.to_json()]


@pytest.mark.parametrize(
    ("play", "unit", "errors", "status"),
    [
        (fails(), duplex(), [None, Reason.INFERENCE_FAILED, None], StatusCode.ERROR),
        (
            fails(Reason.INPUT_TOO_LONG, "too long"),
            duplex(),
            [None, Reason.INPUT_TOO_LONG, None],
            StatusCode.UNSET,
        ),
        (listen(), duplex(rate=1), [Reason.AUDIO_INVALID, Reason.AUDIO_INVALID, None], StatusCode.UNSET),
    ],
    ids=["fault", "too long", "input that cannot be used"],
)
async def test_only_a_fault_of_ours_is_an_error(
    play: Play, unit: pb.DuplexInput, errors: list[Reason | None], status: StatusCode
) -> None:
    async with traced(ScriptedEngine(play)) as worker:
        caller = await worker.caller().ready()
        await caller.unit(1, unit, traceparent=new_context())
        spans = worker.spans
    assert [attribute(span, semconv.ATTR_ERROR_TYPE) for span in spans] == errors
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, status, StatusCode.UNSET]
    assert {span.status.description for span in spans} == {None}


async def in_step(worker: Traced, engine: ScriptedEngine, step: str) -> Caller:
    """A session whose unit 1 is in the middle of `step`, sampled."""
    caller = await worker.caller().ready()
    await caller.send_unit(1, traceparent=new_context())
    await until(lambda: engine.session.calls and engine.session.calls[-1][:2] == ("finalize", 1))
    return caller


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("end", "error", "status"),
    [
        ("cancelled", "CANCELLED", StatusCode.UNSET),
        ("stalled", Reason.UNIT_TIMEOUT, StatusCode.ERROR),
        ("drained", Reason.DRAINING, StatusCode.UNSET),
    ],
)
async def test_session_that_ends_in_a_step_ends_its_span(
    step: str, end: str, error: str, status: StatusCode, passing: Passing
) -> None:
    engine = ScriptedEngine(hang(step))
    async with traced(engine, drain_timeout_s=0.05) as worker:
        caller = await in_step(worker, engine, step)
        if end == "cancelled":
            caller.calls[Stream.GENERATE].cancel()
        elif end == "drained":
            worker.worker.worker.interrupt()
        else:
            # Answers of earlier steps are progress, which restarts the engine's time limit.
            if step != semconv.SPAN_PREFILL:
                await caller.read(Stream.PREFILL)
            while step == semconv.SPAN_FINALIZE and not (await caller.read(Stream.GENERATE)).HasField("done"):
                pass
            await caller.settle()
            passing(PATIENT.unit_s)
        await until(lambda: engine.session.is_closed)
        spans = worker.spans
    assert [span.name for span in spans] == STEPS[: STEPS.index(step) + 1]
    assert (attribute(spans[-1], semconv.ATTR_ERROR_TYPE), spans[-1].status.status_code) == (error, status)
    assert end != "cancelled" or attribute(spans[-1], semconv.ATTR_RPC_STATUS) == "CANCELLED"


async def test_a_unit_that_its_caller_never_asked_for_is_no_error_of_ours(passing: Passing) -> None:
    async with traced(ScriptedEngine()) as worker:
        caller = await worker.caller().ready()
        await caller.prefill(1, traceparent=new_context())
        await caller.read(Stream.PREFILL)
        await caller.settle()
        passing(PATIENT.unit_s)
        assert (await caller.end()).reason == Reason.UNIT_TIMEOUT
        spans = worker.spans
    assert [(span.name, span.status.status_code) for span in spans] == [
        (semconv.SPAN_PREFILL, StatusCode.UNSET)
    ]


@pytest.mark.parametrize(
    ("play", "reason"),
    [
        (Play(breaks_device=True), Reason.ENGINE_FATAL),
        (Play(fails_session=SessionFailed(Reason.KV_EXHAUSTED, "No room.")), Reason.KV_EXHAUSTED),
    ],
)
async def test_failed_session_ends_the_span_of_its_step(play: Play, reason: Reason) -> None:
    async with traced(ScriptedEngine(play)) as worker:
        caller = await worker.caller().ready()
        await caller.prefill(1, traceparent=new_context())
        await caller.generate(1)
        assert (await caller.end()).reason == reason
        last = worker.spans[-1]
    assert (last.name, attribute(last, semconv.ATTR_ERROR_TYPE)) == ("generate", reason)
    assert last.status.status_code is StatusCode.ERROR


async def test_spans_of_both_units_under_way_end() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with traced(engine) as worker:
        caller = await in_step(worker, engine, "generate")
        await caller.prefill(2, traceparent=new_context())
        await until(lambda: 2 in engine.session.given)
        caller.calls[Stream.FINALIZE].cancel()
        await until(lambda: engine.session.is_closed)
        cut = [(s.name, attribute(s, semconv.ATTR_UNIT)) for s in worker.spans[1:]]
    assert sorted(cut) == [("generate", 1), ("prefill", 2)]


def tick_of(number: int, *members: tuple[str, int]) -> Ticked:
    now = asyncio.get_running_loop().time()
    return Ticked(number, now - 0.01, now, sessions=len(members) or 1, tokens=40, members=members)


async def test_a_named_tick_is_a_trace_of_its_own_that_links_to_each_sampled_unit() -> None:
    engine = ScriptedEngine(hang("generate"), slots=3)
    async with traced(engine) as worker:
        callers = [await worker.caller().open() for _ in range(3)]
        contexts = [new_context(), new_context(), new_context("00")]
        for caller, context in zip(callers, contexts, strict=True):
            await caller.configure()
            await caller.send_unit(1, traceparent=context)
            await until(lambda: engine.session.calls[-1:] and engine.session.calls[-1][0] == "finalize")
        members = tuple((caller.session_id, 1) for caller in callers)
        engine.on_ticks([tick_of(NAMED_TICKS, *members), tick_of(NAMED_TICKS + 1)])
        await until(lambda: worker.named(semconv.SPAN_TICK))
        [tick] = worker.named(semconv.SPAN_TICK)
        engine.sessions[0].release("generate", 1)
        await callers[0].answers(1)
        [generate] = worker.named(semconv.SPAN_GENERATE)
    assert tick.parent is None
    assert tick.context.trace_id not in {ids(context)[0] for context in contexts}
    assert [(link.context.trace_id, link.context.span_id) for link in tick.links] == [
        ids(context) for context in contexts[:2]
    ]
    assert attribute(tick, semconv.ATTR_TICK_ID) == NAMED_TICKS
    assert attribute(tick, semconv.ATTR_BATCH_SIZE) == 3
    assert attribute(tick, semconv.ATTR_BATCH_TOKENS) == 40
    assert attribute(tick, semconv.ATTR_DEVICE_SECONDS) == pytest.approx(0.01)
    assert attribute(generate, semconv.ATTR_TICK_ID) == NAMED_TICKS


async def test_other_units_carry_the_tick_that_brought_their_answer() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with traced(engine) as worker:
        caller = await in_step(worker, engine, "generate")
        engine.on_ticks([tick_of(7)])
        engine.session.release("generate", 1)
        await caller.answers(1)
        assert attribute(worker.named(semconv.SPAN_GENERATE)[0], semconv.ATTR_TICK_ID) == 7
        assert worker.named(semconv.SPAN_TICK) == []


async def test_a_tick_without_sampled_units_makes_no_span() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with traced(engine) as worker:
        caller = await worker.caller().ready()
        await caller.send_unit(1, traceparent=new_context("00"))
        await until(lambda: ("finalize", 1) in engine.session.calls)
        engine.on_ticks([tick_of(NAMED_TICKS, (caller.session_id, 1), ("gone", 3))])
        engine.session.release("generate", 1)
        await caller.answers(1)
        assert worker.spans == []
