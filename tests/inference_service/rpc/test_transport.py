"""Test refusals and bounds of gRPC itself, by the options of server and channel."""

import struct

import grpc
import pytest

from antiphon.contract import MAX_MESSAGE_BYTES, METADATA_WORKER_ID, Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.rpc.server import MAX_METADATA_BYTES
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, channel_to, soon
from tests.inference_service.support.raw_caller import ACK, SETTINGS, greeted
from tests.support.scripted_engine import ScriptedEngine, running_worker

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
