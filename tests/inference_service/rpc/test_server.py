"""The services and rules of the worker's gRPC server: reflection, health, compression, drain, bounds."""

import asyncio
import gzip
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon.contract import MAX_MESSAGE_BYTES, METADATA_WORKER_ID, Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.semconv import ATTR_PEER_ADDRESS, ATTR_PEER_IDENTITY, SPAN_PREFILL
from inference_service.rpc.server import MAX_METADATA_BYTES, SERVICES
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.process.test_tls import Files
from tests.inference_service.support.caller import Caller, channel_to, soon, until
from tests.inference_service.support.raw_caller import (
    ACK,
    DATA,
    END_STREAM,
    GET_INFO,
    SETTINGS,
    RawCaller,
    answers_in,
    begin_unit,
    frame,
    framed,
    greeted,
    opened,
)
from tests.support.passing import Passing
from tests.support.scripted_engine import (
    PATIENT,
    RunningWorker,
    ScriptedEngine,
    running_worker,
    speak,
    telemetry,
)

UNIMPLEMENTED = str(grpc.StatusCode.UNIMPLEMENTED.value[0])


def reflected(address: str) -> tuple[set[str], set[str], list[dict[str, Any]]]:
    """The services, the worker's methods and two answers, for a client that knows nothing of them."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool, answers = DescriptorPool(database), []
        for service, name in ((SERVICES[1], "GetInfo"), ("grpc.health.v1.Health", "Check")):
            method = pool.FindServiceByName(service).methods_by_name[name]
            request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
            call = channel.unary_unary(f"/{service}/{name}", request.SerializeToString, answer.FromString)
            answers.append(MessageToDict(call(request()), preserving_proto_field_name=True))
        methods = set(pool.FindServiceByName(SERVICES[1]).methods_by_name)
        return set(database.get_services()), methods, answers


async def test_reflection_client_lists_describes_and_calls_get_info() -> None:
    async with running_worker(ScriptedEngine(slots=3)) as worker:
        services, methods, (told, health) = await soon(asyncio.to_thread(reflected, worker.address))
    assert services >= {SERVICES[1], "grpc.health.v1.Health"}
    assert methods >= {"Prefill", "Generate", "Finalize", "GetInfo"}
    assert (told["slots"], told["state"]) == (3, "WORKER_STATE_READY")
    assert health == {"status": "SERVING"}


async def test_health_watch_reports_drain_and_unknown_services() -> None:
    statuses = health_pb2.HealthCheckResponse
    async with running_worker(ScriptedEngine()) as worker, channel_to(worker.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in (*SERVICES, "none")]
        told = [(await soon(watch.read())).status for watch in watches]
        assert told == [statuses.SERVING, statuses.SERVING, statuses.SERVICE_UNKNOWN]
        _owner = await Caller(channel).ready()
        worker.worker.interrupt()
        assert [(await soon(watch.read())).status for watch in watches[:2]] == 2 * [statuses.NOT_SERVING]


async def test_compressed_bomb_is_refused_before_it_expands() -> None:
    """48 KiB that would expand to more than the largest message: gRPC checks only what arrives."""
    bomb = gzip.compress(bytes(MAX_MESSAGE_BYTES + 2**20))
    async with running_worker(ScriptedEngine(slots=2)) as worker, channel_to(worker.address) as channel:
        neighbour = await Caller(channel).ready()
        async with greeted(worker.address) as raw:
            number = raw.call(GET_INFO, ("grpc-encoding", "gzip"))
            raw.say(frame(DATA, END_STREAM, number, framed(bomb, is_compressed=True)))
            assert await raw.status(number) == UNIMPLEMENTED
            await neighbour.unit(1)


async def test_gzip_is_read_and_written_where_it_is_allowed() -> None:
    async with (
        running_worker(ScriptedEngine(speak("word " * 200)), grpc_compression="gzip") as worker,
        grpc.aio.insecure_channel(worker.address, compression=grpc.Compression.Gzip) as channel,
    ):
        caller = await Caller(channel).ready()
        answers = await caller.unit(1)
        assert answers.text == "word " * 200
        async with greeted(worker.address) as raw:
            number = raw.call(GET_INFO, ("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip"))
            raw.say(frame(DATA, END_STREAM, number, framed(gzip.compress(b""), is_compressed=True)))
            assert await raw.status(number) == "0"
            assert raw.told[number][0]["grpc-encoding"] == "gzip"


async def test_peer_identity_is_in_log_and_spans(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path)
    exporter = InMemorySpanExporter()
    observed = telemetry(exporter, OTEL_TRACES_SAMPLER="always_on")
    with caplog.at_level(logging.INFO):
        async with (
            running_worker(
                ScriptedEngine(), observed=observed, **files.options, tls_client_ca=files.ca
            ) as worker,
            grpc.aio.secure_channel(worker.address, files.credentials(shows=True)) as channel,
        ):
            caller = await Caller(channel).ready()
            await caller.unit(1)
            await caller.leave()
    observed.shutdown()
    (opened_line,) = [record for record in caplog.records if record.message == "session opened"]
    assert "caller.test" in vars(opened_line)["peer_identity"]
    assert vars(opened_line)["peer"].startswith("ipv4:127.0.0.1:")
    (prefill,) = [span for span in exporter.get_finished_spans() if span.name == SPAN_PREFILL]
    attributes = dict(prefill.attributes or {})
    assert "caller.test" in str(attributes[ATTR_PEER_IDENTITY])
    assert attributes[ATTR_PEER_ADDRESS] == vars(opened_line)["peer"]


@asynccontextmanager
async def drained_before_it_read() -> AsyncIterator[tuple[RunningWorker, RawCaller, int]]:
    """A draining worker, a caller that has not read its answer whole, and the stream of that answer."""
    engine = ScriptedEngine(speak("word"), slots=1)
    async with running_worker(engine, slots=1) as worker, greeted(worker.address, window=2**15) as raw:
        generate = await begin_unit(raw)
        await until(lambda: len(raw.body[generate]) == 2**15)
        worker.worker.interrupt()
        raw.say(frame(DATA, END_STREAM, generate - 2), frame(DATA, END_STREAM, generate))
        await until(lambda: engine.session.is_closed)
        yield worker, raw, generate


async def test_draining_worker_sends_slow_readers_their_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller opens its window only after the worker has nothing else left to do."""
    monkeypatch.setattr("inference_service.app.STOP_GRACE_S", 0.0)  # what `stop` finds open is cut
    async with drained_before_it_read() as (worker, raw, generate):
        for _ in range(3):  # the port is open: the worker does not stop yet
            async with greeted(worker.address) as other:
                assert await other.status(other.ask(GET_INFO)) == "0"
        raw.say(opened(generate, 2**20), opened(0, 2**20))
        assert await raw.status(generate) == "0"
        answers = answers_in(raw.body[generate])
        assert any(answer.HasField("done") for answer in answers)
        assert sum(len(answer.audio.data) for answer in answers) == 96_000
        assert await soon(worker.run) == 0


async def test_caller_that_never_reads_delays_a_drain_until_the_limit_and_no_longer(passing: Passing) -> None:
    async with drained_before_it_read() as (worker, _, _):
        async with greeted(worker.address) as other:
            assert await other.status(other.ask(GET_INFO)) == "0"
        passing(PATIENT.unit_s)
        assert await soon(worker.run) == 0


async def test_sessions_refused_while_a_slot_is_cleaned_all_learn_the_reason(passing: Passing) -> None:
    """The slot stays taken, even when the time for cleaning it is over and its session has ended."""
    engine = ScriptedEngine(slots=1, slow_cleanup=True)
    async with running_worker(engine, slots=1) as worker, channel_to(worker.address) as channel:
        first = await Caller(channel).ready()
        await first.half_close(Stream.PREFILL)
        await until(lambda: engine.session.is_closing)
        assert (await first.settle()).free_slots == 0
        passing(PATIENT.cleanup_s)
        assert (await first.end()).code is grpc.StatusCode.OK
        reasons = set()
        for _ in range(40):
            crowd = [Caller(channel) for _ in range(5)]
            for caller in crowd:
                for stream in Stream:
                    caller.start(stream)
            for caller in crowd:
                ending = await caller.end()
                reasons.add((ending.code, ending.reason))
        assert reasons == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_FREE_SLOT")}
        engine.session.finish_cleanup()


async def test_call_of_an_unknown_method_is_unimplemented() -> None:
    async with running_worker(ScriptedEngine()) as worker, greeted(worker.address) as raw:
        assert await raw.status(raw.ask("/antiphon.v1.InferenceService/Nothing")) == UNIMPLEMENTED


async def test_connection_beyond_its_streams_waits_and_goes_on() -> None:
    """gRPC clients keep to the bound that the worker announces: further calls wait for their turn."""
    async with running_worker(ScriptedEngine(slots=1), slots=1) as worker:
        async with channel_to(worker.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(4 * 1 + 16)]
            for watch in watches:
                await soon(watch.read())
            async with greeted(worker.address) as other:
                assert await other.status(other.ask(GET_INFO)) == "0"
            waiting = stub.Check(health_pb2.HealthCheckRequest())
            watches[0].cancel()
            assert (await soon(waiting)).status == health_pb2.HealthCheckResponse.SERVING
            for watch in watches:
                watch.cancel()


MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE = 3, 6


@pytest.mark.parametrize("slots", [1, 12])
async def test_a_connection_may_have_the_streams_of_all_slots_and_some(slots: int) -> None:
    async with running_worker(ScriptedEngine(slots=slots), slots=slots) as worker:
        async with greeted(worker.address) as raw:
            (body,) = [body for kind, flags, _, body in raw.frames if kind == SETTINGS and not flags & ACK]
    settings = dict(struct.iter_unpack(">HI", body))
    assert settings[MAX_CONCURRENT_STREAMS] == 4 * slots + 16
    assert settings[MAX_HEADER_LIST_SIZE] == MAX_METADATA_BYTES


async def test_oversized_metadata_is_refused_without_effect_on_other_sessions(served: Served) -> None:
    async with served(ScriptedEngine(slots=2)) as new_caller:
        neighbour = await new_caller().ready()
        caller: Caller = new_caller(None, ("padding", "x" * MAX_METADATA_BYTES))
        caller.start(Stream.PREFILL)
        ending = await caller.end()
        assert (ending.code, ending.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
        fitting = new_caller(None, ("padding", "x" * (MAX_METADATA_BYTES - 1024)))
        assert METADATA_WORKER_ID in dict(await soon(fitting.start(Stream.PREFILL).initial_metadata()))
        await neighbour.unit(1)


async def test_a_message_at_the_limit_is_read() -> None:
    """The audio is refused later, as it holds far more than a second of audio."""
    async with running_worker(ScriptedEngine()) as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        empty = pb.PrefillRequest(
            unit=1, duplex=pb.DuplexInput(audio=common.AudioChunk(data=bytes(MAX_MESSAGE_BYTES - 100)))
        )
        room = MAX_MESSAGE_BYTES - empty.ByteSize()
        audio = common.AudioChunk(data=bytes(MAX_MESSAGE_BYTES - 100 + room))
        full = pb.PrefillRequest(unit=1, duplex=pb.DuplexInput(audio=audio))
        assert full.ByteSize() == MAX_MESSAGE_BYTES
        await caller.write(Stream.PREFILL, full)
        assert (await caller.read(Stream.PREFILL)).error.reason == Reason.AUDIO_INVALID
