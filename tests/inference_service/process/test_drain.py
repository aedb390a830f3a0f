"""Load, drain and stop a worker."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.contract import MAX_MESSAGE_BYTES, Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import EXIT_DEVICE_LOST, EXIT_DRAINED, Worker
from inference_service.interface.engine import Closed, Deliver, Engine, OnFatal
from inference_service.options import WorkerOptions
from inference_service.rpc.server import SERVICES
from inference_service.session.calls.session_calls import deliver_on
from inference_service.session.machine import Limits
from inference_service.session.units import Stream
from tests.inference_service.support.caller import Caller, channel_to, soon, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    INFO,
    PATIENT,
    Play,
    RunningWorker,
    ScriptedEngine,
    hang,
    listen,
    running_worker,
    telemetry,
)

Code = grpc.StatusCode


async def health(channel: grpc.aio.Channel) -> set[str]:
    stub = health_pb2_grpc.HealthStub(channel)
    answers = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in SERVICES]
    return {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) for answer in answers}


async def test_a_ready_worker_describes_itself() -> None:
    async with running_worker(ScriptedEngine(slots=3), worker_id="w-1") as worker:
        async with channel_to(worker.address) as channel:
            assert await health(channel) == {"SERVING"}
            caller = await Caller(channel).open()
            answer = await Caller(channel).settle()
            caller.calls[Stream.PREFILL].cancel()
    assert (answer.model, answer.state) == ("scripted", pb.WORKER_STATE_READY)
    assert (answer.slots, answer.free_slots, list(answer.modes)) == (3, 2, [pb.SESSION_MODE_AUDIO])
    assert (answer.context_limit, answer.max_message_bytes) == (INFO.context_limit, MAX_MESSAGE_BYTES)
    assert (answer.input_sample_rate_hz, answer.output_sample_rate_hz) == (16_000, 24_000)
    assert answer.duplex_defaults.force_listen_count == 3
    assert answer.sampling_defaults.max_new_tokens == 20
    assert answer.version
    assert worker.worker.admin_port is None, "there is none unless it is asked for"


@asynccontextmanager
async def loading(**options: Any) -> AsyncIterator[tuple[Worker, str, threading.Event]]:
    """A worker that loads until the event is set, and its address; interrupted on leaving the block."""
    may_load, engine = threading.Event(), ScriptedEngine()

    def load(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
        may_load.wait(PATIENCE_S)
        return engine.start(options, deliver, on_fatal)

    with TemporaryDirectory() as folder:
        address = f"unix:{folder}/worker.sock"
        worker = Worker(WorkerOptions(listen=address, **options), load, Limits(), telemetry())
        run = asyncio.create_task(worker.run(lambda _: None))
        try:
            yield worker, address, may_load
        finally:
            worker.interrupt()
            assert await soon(run) == EXIT_DRAINED
            may_load.set()


async def test_a_loading_worker_answers_but_takes_no_session() -> None:
    async with loading() as (_, address, may_load), channel_to(address) as channel:
        await soon(channel.channel_ready())
        assert await health(channel) == {"NOT_SERVING"}
        answer = await Caller(channel).settle()
        assert (answer.state, answer.slots, answer.model) == (pb.WORKER_STATE_LOADING, 0, "")
        early = Caller(channel)
        early.start(Stream.PREFILL)
        ending = await early.end()
        assert (ending.code, ending.reason) == (Code.UNAVAILABLE, Reason.LOADING)
        may_load.set()
        async with asyncio.timeout(PATIENCE_S):
            while await health(channel) != {"SERVING"}:
                pass


async def test_a_worker_interrupted_while_it_loads_stops_at_once() -> None:
    async with loading():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def draining(
    engine: ScriptedEngine, drain_timeout_s: float, **options: Any
) -> AsyncIterator[tuple[RunningWorker, Caller]]:
    """A worker that was told to stop, and a session of it."""
    async with running_worker(engine, drain_timeout_s=drain_timeout_s, **options) as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).ready()
            worker.worker.interrupt()
            yield worker, caller


async def test_a_drain_lets_sessions_finish() -> None:
    limits = replace(PATIENT, go_away_ahead_s=1000.0)
    async with draining(ScriptedEngine(), 1000.0, limits=limits) as (worker, caller):
        notice = await caller.read(Stream.GENERATE)
        assert (notice.unit, notice.go_away.reason) == (0, "draining")
        assert 900 < notice.go_away.time_left.ToTimedelta().total_seconds() <= 1000
        await caller.unit(1)
        assert (await caller.leave()).code is Code.OK
        assert await soon(asyncio.shield(worker.run)) == EXIT_DRAINED


async def test_draining_sessions_get_no_go_away_before_notice_period() -> None:
    async with draining(ScriptedEngine(), 1000.0) as (_, caller):
        await caller.unit(1)
        assert (await caller.settle()).state == pb.WORKER_STATE_DRAINING
        answers = await caller.unit(2)
        assert not any(piece.HasField("go_away") for piece in answers.pieces)


async def test_draining_sessions_get_go_away_within_notice_period() -> None:
    limits = replace(PATIENT, go_away_ahead_s=0.5)
    async with draining(ScriptedEngine(), 0.8, limits=limits) as (_, caller):
        notice = await caller.read(Stream.GENERATE)
        assert notice.HasField("go_away")
        assert notice.go_away.time_left.ToTimedelta().total_seconds() <= 0.5
        assert (await caller.end()).reason == Reason.DRAINING


async def test_units_accepted_before_the_notice_are_still_served() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with running_worker(engine, drain_timeout_s=30.0) as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).ready()
            await caller.send_unit(1)
            await caller.send_unit(2)
            worker.worker.interrupt()
            assert (await caller.read(Stream.GENERATE)).HasField("go_away")
            await until(lambda: ("finalize", 2) in engine.session.calls)
            engine.session.release("generate", 1)
            ends = [(await caller.answers(unit)).done.end for unit in (1, 2)]
    assert ends == [pb.UNIT_END_LISTEN] * 2


async def test_a_session_that_has_begun_to_attach_may_finish_attaching() -> None:
    async with running_worker(ScriptedEngine()) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).open(Stream.PREFILL)
        worker.worker.interrupt()
        await caller.open(Stream.GENERATE, Stream.FINALIZE)
        await caller.configure()
        assert (await caller.leave()).code is Code.OK


async def test_sessions_that_outlast_the_drain_are_ended_and_cleaned() -> None:
    engine = ScriptedEngine(hang("generate"))
    async with running_worker(engine, drain_timeout_s=0.05) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        await caller.send_unit(1)
        worker.worker.interrupt()
        ending = await caller.end()
        assert (ending.code, ending.reason) == (Code.UNAVAILABLE, Reason.DRAINING)
        assert await soon(asyncio.shield(worker.run)) == EXIT_DRAINED
    assert engine.session.is_closed
    assert engine.is_stopped


async def test_a_second_signal_ends_at_once() -> None:
    engine = ScriptedEngine()
    async with draining(engine, 1000.0) as (worker, caller):
        worker.worker.interrupt()
        assert (await caller.end()).reason == Reason.DRAINING
        assert await soon(asyncio.shield(worker.run)) == EXIT_DRAINED
    assert engine.session.is_closed


async def test_a_lost_device_ends_every_session_and_the_worker() -> None:
    engine = ScriptedEngine(listen(), Play(breaks_device=True), slow_cleanup=True)
    async with running_worker(engine) as worker, channel_to(worker.address) as channel:
        active, fresh = await Caller(channel).open(), await Caller(channel).open()
        await active.configure()
        await active.unit(1)
        await active.send_last_unit(2)
        for caller in (active, fresh):
            ending = await caller.end()
            assert (ending.code, ending.reason) == (Code.INTERNAL, Reason.ENGINE_FATAL)
            assert "canary" not in ending.message
        assert await soon(asyncio.shield(worker.run)) == EXIT_DEVICE_LOST


async def test_a_sink_that_fails_costs_other_sessions_nothing() -> None:
    heard: list[object] = []

    def fail(event: object) -> None:
        raise RuntimeError("a defect")

    deliver_on(asyncio.get_running_loop())([(fail, Closed()), (heard.append, Closed())])
    await until(lambda: heard)


async def test_the_server_survives_garbage_collection() -> None:
    async with running_worker(ScriptedEngine()) as worker, channel_to(worker.address) as channel:
        for _ in range(3):
            gc.collect()
        await Caller(channel).ready()
