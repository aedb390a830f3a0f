"""Scrape the worker's figures."""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service import semconv
from antiphon_service.semconv import Phase, Side
from inference_service.interface.engine import Done, End, Ticked, UnitTimings
from inference_service.observability.metrics import WorkerMetrics
from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, channel_to, duplex, until
from tests.support.patience import PATIENCE_S
from tests.support.scrape import Scrape, scrape
from tests.support.scripted_engine import (
    INFO,
    PROMPT_TOKENS,
    UNIT_TOKENS,
    Play,
    RunningWorker,
    ScriptedEngine,
    fails,
    listen,
    running_worker,
    speak,
    telemetry,
)

CANARY = "the heron stands in the reeds"
PER_UNIT = len(Phase) + 1
"""Records of one unit at most: its phases and its slack."""
PER_TICK = 3


async def scraped(worker: RunningWorker) -> Scrape:
    assert worker.worker.admin_port is not None
    return await scrape(worker.worker.admin_port)


async def scraped_until(worker: RunningWorker, condition: Callable[[Scrape], object]) -> Scrape:
    """The first scrape for which `condition` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition(found := await scraped(worker)):  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.02)
        return found


def records(found: Scrape, *metrics: semconv.Metric) -> float:
    """How often histograms were given a value."""
    return sum(found.total(f"{metric.name}_count") for metric in metrics)


async def one_session(worker: RunningWorker, *units: pb.DuplexInput) -> None:
    """A session with these units, by default with one of silence."""
    async with channel_to(worker.address) as channel:
        caller = await Caller(channel).ready(system_prompt=CANARY)
        for number, unit in enumerate(units or [duplex()], 1):
            await caller.unit(number, unit)
        await caller.leave()


async def test_slot_and_context_metrics_match_session_states() -> None:
    engine = ScriptedEngine(slots=3)
    async with running_worker(engine, slots=3, admin_port=0, worker_id="w") as worker:
        async with channel_to(worker.address) as channel:
            talking = await Caller(channel).ready()
            await talking.unit(1)
            coming = await Caller(channel).open(Stream.PREFILL)
            engine.slow_cleanup = True
            ending = await Caller(channel).ready()
            await ending.half_close(Stream.PREFILL)
            await until(lambda: engine.session.is_closing)
            found = await scraped(worker)
            coming.calls[Stream.PREFILL].cancel()
            engine.session.finish_cleanup()
    slots = {state: found.value(semconv.SLOTS.name, state=state) for state in semconv.SlotState}
    assert slots == {"free": 0, "granted": 1, "attached": 1, "cleaning": 1}
    [(_, labels)] = [series for series in found.samples if series[0] == semconv.KV_TOKENS.name]
    assert dict(labels)["worker"].startswith("w-")
    assert found.total(semconv.KV_TOKENS.name) == 2 * PROMPT_TOKENS + UNIT_TOKENS
    assert found.total(semconv.KV_CAPACITY.name) == 3 * INFO.context_limit


async def test_idle_worker_scrape_has_pages_late_captures_model_and_zero_errors() -> None:
    engine = ScriptedEngine()
    engine.pages = (3, 2, 507, 48)
    async with running_worker(engine, admin_port=0) as worker:
        before = await scraped_until(worker, lambda s: records(s, semconv.EVENT_LOOP_LAG))
        engine.late = (2, 1)
        after = await scraped(worker)
    pages = {state: after.value(semconv.KV_PAGES.name, state=state) for state in semconv.PageState}
    assert pages == {"used": 3, "cached": 2, "free": 507}
    assert after.total(semconv.KV_PREFIX_TOKENS.name) == 48
    late = [
        {kind: found.value(semconv.LATE_PREPARATIONS.name, preparation=kind) for kind in semconv.Preparation}
        for found in (before, after)
    ]
    assert late == [{"capture": 0, "compilation": 0}, {"capture": 2, "compilation": 1}]
    assert after.value(semconv.MODEL_INFO.name, model="scripted", device="cpu", revision="stable") == 1
    assert after.total(semconv.BUILD_INFO.name) == 1
    for code, side in (
        (Reason.ENGINE_FATAL, Side.SERVER),
        (Reason.UNIT_TIMEOUT, Side.SERVER),
        (Reason.UNIT_TIMEOUT, Side.CLIENT),
        (Reason.INFERENCE_FAILED, Side.SERVER),
        (Reason.AUDIO_INVALID, Side.CLIENT),
    ):
        assert after.value(semconv.ERRORS.name, code=code, side=side) == 0
    for code in (Reason.IDLE_TIMEOUT, Reason.DRAINING, Reason.LOADING, "CANCELLED"):
        assert not [labels for name, labels in after.samples if ("code", code) in labels]


async def test_calls_are_counted_by_method_and_code() -> None:
    name = f"{semconv.RPC_SERVER_CALL.name}_count"
    async with running_worker(ScriptedEngine(slots=1), admin_port=0) as worker:
        await one_session(worker)
        async with channel_to(worker.address) as channel:
            owner = await Caller(channel).ready()
            refused = Caller(channel)
            refused.start(Stream.GENERATE)
            assert (await refused.end()).reason == Reason.NO_FREE_SLOT
            owner.calls[Stream.PREFILL].cancel()
            found = await scraped_until(worker, lambda s: s.value(name, method="Generate", code="CANCELLED"))
    for stream in Stream:
        assert found.value(name, method=stream.value, code="OK") == 1
    assert found.value(name, method="Generate", code="RESOURCE_EXHAUSTED") == 1
    assert found.value(name, method="Generate", code="CANCELLED") == 1
    assert found.value(semconv.ERRORS.name, code=Reason.NO_FREE_SLOT, side=Side.CLIENT) == 1


async def test_a_cleaned_slot_is_counted_once() -> None:
    async with running_worker(ScriptedEngine(), admin_port=0) as worker:
        await one_session(worker)
        await one_session(worker)
        assert records(await scraped(worker), semconv.CLEANUP) == 2


@pytest.mark.parametrize(
    ("play", "unit", "code", "side"),
    [
        (fails(), duplex(), Reason.INFERENCE_FAILED, Side.SERVER),
        (fails(Reason.INPUT_TOO_LONG, "too long"), duplex(), Reason.INPUT_TOO_LONG, Side.CLIENT),
        (fails("of a kind that nobody knows"), duplex(), semconv.OTHER, Side.CLIENT),
        (listen(), duplex(rate=1), Reason.AUDIO_INVALID, Side.CLIENT),
    ],
    ids=["fault", "too long", "unknown", "input that cannot be used"],
)
async def test_a_failed_unit_is_counted_once(play: Play, unit: pb.DuplexInput, code: str, side: Side) -> None:
    async with running_worker(ScriptedEngine(play), admin_port=0) as worker:
        await one_session(worker, unit, duplex())
        found = await scraped(worker)
    assert found.value(semconv.ERRORS.name, code=code, side=side) == 1
    assert found.total(semconv.ERRORS.name) == 1


async def test_a_lost_device_is_an_error_of_ours_and_a_caller_that_goes_is_none() -> None:
    engine, observed = ScriptedEngine(slots=2), telemetry()
    async with running_worker(engine, observed=observed) as worker, channel_to(worker.address) as channel:
        gone, there = await Caller(channel).open(), await Caller(channel).open()
        gone.calls[Stream.PREFILL].cancel()
        await gone.ending(Stream.GENERATE)
        assert Scrape(observed.exposition().decode()).total(semconv.ERRORS.name) == 0
        engine.break_device()
        assert (await there.end()).reason == Reason.ENGINE_FATAL
    found = Scrape(observed.exposition().decode())
    assert found.value(semconv.ERRORS.name, code=Reason.ENGINE_FATAL, side=Side.SERVER) == 1
    assert found.total(semconv.ERRORS.name) == 1


async def test_units_and_ticks_stay_within_their_budget() -> None:
    engine = ScriptedEngine(listen(), repeat=True)
    units = 20
    async with running_worker(engine, admin_port=0) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        before = await scraped(worker)
        for number in range(1, units + 1):
            await caller.unit(number)
        after = await scraped(worker)
        engine.on_ticks([Ticked(1, 0.0, 0.01, 1, 12), Ticked(2, 0.0, 0.03, 1, 0)])
        ticked = await scraped(worker)
    everything = [
        metric for metric in semconv.METRICS if metric.buckets and metric is not semconv.EVENT_LOOP_LAG
    ]
    assert 0 < records(after, *everything) - records(before, *everything) <= PER_UNIT * units
    assert records(ticked, *everything) - records(after, *everything) == 2 * PER_TICK
    assert ticked.total(f"{semconv.TICK_TOKENS.name}_sum") == 12


async def test_slack_and_misses_are_those_of_conversations() -> None:
    observed = telemetry()
    metrics = WorkerMetrics(observed.meter, "w")
    for total, unit_s in ((0.25, 1.0), (0.75, 1.0), (1.5, 1.0), (40.0, 0.0)):
        metrics.done(Done(1, End.TURN, None, 12, timings=UnitTimings(total=total)), unit_s)
    found = Scrape(observed.exposition().decode())
    assert list(metrics.recent_slack) == [0.75, 0.25, -0.5]
    assert found.total(f"{semconv.UNIT_SLACK.name}_count") == 3
    assert found.total(f"{semconv.UNIT_SLACK.name}_sum") == 1.0
    assert found.value(f"{semconv.UNIT_SLACK.name}_bucket", le="0.0") == 1
    assert found.total(semconv.WORKER_DEADLINE_MISSES.name) == metrics.misses == 1


async def test_tick_work_with_and_without_deadline_is_counted_separately() -> None:
    observed = telemetry()
    metrics = WorkerMetrics(observed.meter, "w")
    metrics.ticked([Ticked(1, 1.0, 1.25, 2, 12, rest_s=0.125), Ticked(2, 2.0, 2.5, 2, 12)])
    found = Scrape(observed.exposition().decode())
    assert found.value(semconv.TICK_WORK.name, work="rest") == 0.125
    assert found.value(semconv.TICK_WORK.name, work="units") == 0.625


async def test_series_do_not_grow_with_sessions() -> None:
    engine = ScriptedEngine(fails(), speak(CANARY), forgetful=True)
    async with running_worker(engine, admin_port=0) as worker:
        await one_session(worker, duplex(), duplex())
        for _ in range(10):
            await one_session(worker)
        await scraped_until(worker, lambda s: records(s, semconv.EVENT_LOOP_LAG))
        before = (await scraped(worker)).samples.keys()
        for _ in range(40):
            await one_session(worker)
        after = await scraped(worker)
    assert after.samples.keys() == before
    assert "heron" not in after.exposition, "neither what is said nor the prompt"
