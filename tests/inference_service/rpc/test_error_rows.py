"""The table of errors: each reason, the code that carries it, and when, on a real server.

A reason that is missing here fails the test of the table.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import (
    CLIENT_SIDE_REASONS,
    ERROR_DOMAIN,
    ITEM_REASONS,
    MAX_MESSAGE_BYTES,
    METADATA_LEASE,
    Reason,
)
from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import DEFAULT_POOL, lease_mac
from inference_service.errors import SessionError
from inference_service.interface.engine import Failure, SessionFailed
from inference_service.session.units import Stream
from tests.inference_service.process.test_drain import loading
from tests.inference_service.process.test_process import process
from tests.inference_service.support.caller import Caller, Ending, channel_to, duplex, soon, until
from tests.support.passing import Passing
from tests.support.scripted_engine import (
    EVERYTHING,
    PATIENT,
    Play,
    RunningWorker,
    ScriptedEngine,
    fails,
    hang,
    running_worker,
)

Code = grpc.StatusCode
KEY = b"a key of 16 byte"
LONG = Duration(seconds=60)


@dataclass(frozen=True)
class Desk:
    """A worker and whoever calls it."""

    engine: ScriptedEngine
    worker: RunningWorker
    channel: grpc.aio.Channel
    passing: Passing

    def caller(self, *metadata: tuple[str, str], name: str | None = None) -> Caller:
        return Caller(self.channel, name, *metadata)

    async def ready(self, **config: Any) -> Caller:
        caller = await self.caller().ready(**config)
        return caller

    async def refusal(self, *metadata: tuple[str, str], name: str | None = None) -> Ending:
        caller = self.caller(*metadata, name=name)
        caller.start(Stream.PREFILL)
        return await caller.end()

    async def lease(self, slot: int, epoch: int) -> tuple[str, str]:
        """The metadata of a lease as a dispatcher would sign it."""
        worker_id = (await get_info(self.worker.address)).worker_id
        mac = lease_mac(KEY, DEFAULT_POOL, worker_id, slot, epoch)
        return METADATA_LEASE, f"{slot}:{epoch}:{mac}"


Provoke = Callable[[Desk], Awaitable[Ending]]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    reason: Reason
    when: str
    provoke: Provoke
    script: tuple[Play, ...] = ()
    key: bytes | None = None

    @property
    def code(self) -> grpc.StatusCode:
        (found,) = [code for code, reasons in CODES.items() if self.reason in reasons]
        return found


def configured(**config: Any) -> Provoke:

    async def provoke(desk: Desk) -> Ending:
        caller = await desk.caller().open()
        await caller.send_config(**config)
        return await caller.end()

    return provoke


def active(act: Callable[[Caller], Awaitable[Any]], waits_s: float = 0.0, **config: Any) -> Provoke:
    """Return a provocation: an active session acts, then `waits_s` pass."""

    async def provoke(desk: Desk) -> Ending:
        caller = await desk.ready(**config)
        await act(caller)
        if waits_s:
            await caller.settle()
            desk.passing(waits_s)
        return await caller.end()

    return provoke


def attached(act: Callable[[Caller], Awaitable[Any]], waits_s: float = 0.0) -> Provoke:
    """Return a provocation: a session without a config acts, then `waits_s` pass."""

    async def provoke(desk: Desk) -> Ending:
        caller = await desk.caller().open()
        await act(caller)
        desk.passing(waits_s)
        return await caller.end()

    return provoke


async def _nothing(caller: Caller) -> None:
    pass


async def _three_units(caller: Caller) -> None:
    for unit in (1, 2, 3):
        await caller.prefill(unit)


async def _too_large(desk: Desk) -> Ending:
    """gRPC ends the one call; the worker cannot know why, and ends the others as given up."""
    caller = await desk.ready()
    await caller.prefill(1, pb.DuplexInput(audio=common.AudioChunk(data=bytes(MAX_MESSAGE_BYTES + 1))))
    endings = {stream: await caller.ending(stream) for stream in Stream}
    assert {endings[stream].code for stream in (Stream.GENERATE, Stream.FINALIZE)} == {Code.CANCELLED}
    return endings[Stream.PREFILL]


async def _half_attached(desk: Desk) -> Ending:
    caller = await desk.caller().open(Stream.PREFILL)
    desk.passing(PATIENT.attach_s)
    return await caller.end()


async def _prefill_only(caller: Caller) -> None:
    await caller.prefill(1)
    await caller.read(Stream.PREFILL)


async def _hanging(desk: Desk) -> Ending:
    caller = await desk.ready()
    await caller.send_unit(1)
    await until(lambda: ("generate", 1) in [call[:2] for call in desk.engine.session.calls])
    await caller.read(Stream.PREFILL)  # progress, from which on the engine has its time again
    await caller.settle()
    desk.passing(PATIENT.unit_s)
    return await caller.end()


async def _second_stream(desk: Desk) -> Ending:
    owner = await desk.caller(name="mine").open(Stream.PREFILL)
    ending = await desk.refusal(name="mine")
    assert not owner.calls[Stream.PREFILL].done()
    return ending


async def _no_room(desk: Desk) -> Ending:
    owners = [await desk.caller().open() for _ in range(2)]
    ending = await desk.refusal()
    assert not any(owner.calls[Stream.PREFILL].done() for owner in owners)
    return ending


async def _forged_lease(desk: Desk) -> Ending:
    name, token = await desk.lease(0, 1)
    return await desk.refusal((name, token.replace("0:1:", "0:2:")))


async def _stale_lease(desk: Desk) -> Ending:
    new, old = await desk.lease(0, 2), await desk.lease(0, 1)
    owner = await desk.caller(new).open()
    ending = await desk.refusal(old)
    assert not owner.calls[Stream.PREFILL].done()
    return ending


async def _revoked_lease(desk: Desk) -> Ending:
    owner = await desk.caller(await desk.lease(0, 2)).open()
    assert not desk.worker.worker._servicer.revoke(0, 2)
    return await owner.end()


async def _draining(desk: Desk) -> Ending:
    owner = await desk.ready()
    desk.worker.worker.interrupt()
    await owner.read(Stream.GENERATE)
    return await desk.refusal()


async def _loading(_: Desk) -> Ending:
    async with loading() as (_, address, __), channel_to(address) as channel:
        early = Caller(channel)
        await soon(channel.channel_ready())
        early.start(Stream.PREFILL)
        return await early.end()


async def _killed(_: Desk) -> Ending:
    async with process() as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        worker.process.kill()
        return await caller.end()


CODES = {
    Code.INVALID_ARGUMENT: {Reason.CONFIG_INVALID, Reason.METADATA_INVALID, Reason.PAYLOAD_INVALID},
    Code.NOT_FOUND: {Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND},
    Code.UNIMPLEMENTED: {Reason.MODE_UNSUPPORTED},
    Code.UNAUTHENTICATED: {Reason.LEASE_MISSING, Reason.LEASE_INVALID},
    Code.PERMISSION_DENIED: {Reason.STALE_LEASE},
    Code.ABORTED: {Reason.LEASE_REVOKED},
    Code.ALREADY_EXISTS: {Reason.STREAM_EXISTS},
    Code.FAILED_PRECONDITION: {Reason.CONFIG_REQUIRED, Reason.CONFIG_REPEATED, Reason.UNIT_OUT_OF_ORDER},
    Code.RESOURCE_EXHAUSTED: {
        *(Reason.UNIT_WINDOW, Reason.MESSAGE_TOO_LARGE, Reason.NO_FREE_SLOT, Reason.KV_EXHAUSTED)
    },
    Code.DEADLINE_EXCEEDED: {
        *(Reason.ATTACH_TIMEOUT, Reason.UNIT_TIMEOUT, Reason.IDLE_TIMEOUT, Reason.SESSION_LIMIT)
    },
    Code.UNAVAILABLE: {Reason.LOADING, Reason.WORKER_LOST, Reason.DRAINING},
    Code.INTERNAL: {Reason.ENGINE_FATAL, Reason.INFERENCE_FAILED},
}
RETRIED = {Reason.NO_FREE_SLOT, Reason.KV_EXHAUSTED, Reason.LOADING, Reason.DRAINING}
"""RetryInfo says when to try again."""
BAD_CONFIG = configured(duplex=common.DuplexConfig(temperature=9))
LAST_UNIT = active(lambda caller: caller.send_last_unit(1))
IDLE = active(_nothing, idle_timeout=LONG, waits_s=LONG.seconds)
UNASKED = active(_prefill_only, waits_s=PATIENT.unit_s)
OLD = active(_nothing, max_duration=LONG, waits_s=LONG.seconds)
CLOSED_EARLY = attached(lambda caller: caller.half_close(Stream.PREFILL))
NO_ACTION = active(lambda caller: caller.write(Stream.GENERATE, pb.GenerateRequest(unit=1)))
UNKNOWN_VOICE = configured(voice=common.Voice(voice_id="x"))


def holding(**content: Any) -> Provoke:
    """Return a provocation: an active session sends a unit with this content."""
    return active(lambda caller: caller.write(Stream.PREFILL, pb.PrefillRequest(unit=1, **content)))


def failing(reason: Reason) -> tuple[Play]:
    return (Play(fails_session=SessionFailed(reason, "It cannot go on.")),)


ROWS = [
    Row(Reason.CONFIG_INVALID, "a field of the config is out of range", BAD_CONFIG),
    Row(Reason.METADATA_INVALID, "the session id has a space", lambda it: it.refusal(name="two words")),
    Row(Reason.PAYLOAD_INVALID, "a message holds nothing", holding()),
    Row(Reason.PAYLOAD_INVALID, "a chat turn in full duplex", holding(turn=pb.TurnInput())),
    Row(Reason.PAYLOAD_INVALID, "a stream's chunk in full duplex", holding(stream=pb.StreamInput(text="x"))),
    Row(Reason.PAYLOAD_INVALID, "a request to Generate holds nothing", NO_ACTION),
    Row(Reason.MODEL_NOT_FOUND, "another model is asked for", configured(model="x")),
    Row(Reason.VOICE_NOT_FOUND, "a voice is asked for that is not registered", UNKNOWN_VOICE),
    Row(Reason.MODE_UNSUPPORTED, "the model cannot do the mode", configured(mode=pb.SESSION_MODE_CHAT)),
    Row(Reason.LEASE_MISSING, "no lease", lambda desk: desk.refusal(), key=KEY),
    Row(Reason.LEASE_INVALID, "a MAC of another lease", _forged_lease, key=KEY),
    Row(Reason.STALE_LEASE, "the slot saw a higher epoch", _stale_lease, key=KEY),
    Row(Reason.LEASE_REVOKED, "a dispatcher takes the lease back", _revoked_lease, key=KEY),
    Row(Reason.STREAM_EXISTS, "a second stream of one kind", _second_stream),
    Row(Reason.CONFIG_REQUIRED, "a unit comes before the config", attached(lambda it: it.prefill(1))),
    Row(Reason.CONFIG_REQUIRED, "Prefill is half-closed before the config", CLOSED_EARLY),
    Row(Reason.CONFIG_REPEATED, "a second config comes", active(lambda it: it.send_config())),
    Row(Reason.UNIT_OUT_OF_ORDER, "a unit leaves a gap", active(lambda it: it.prefill(2))),
    Row(Reason.UNIT_OUT_OF_ORDER, "Generate leaves a gap", active(lambda it: it.generate(2))),
    Row(Reason.UNIT_OUT_OF_ORDER, "Finalize leaves a gap", active(lambda it: it.finalize(9))),
    Row(Reason.UNIT_WINDOW, "one unit more than may be unfinalised", active(_three_units)),
    Row(Reason.MESSAGE_TOO_LARGE, "a message over 32 MiB", _too_large),
    Row(Reason.NO_FREE_SLOT, "all slots are taken", _no_room),
    Row(Reason.KV_EXHAUSTED, "the context cannot grow", LAST_UNIT, failing(Reason.KV_EXHAUSTED)),
    Row(Reason.ATTACH_TIMEOUT, "two of the three streams do not come", _half_attached),
    Row(Reason.ATTACH_TIMEOUT, "no config comes", attached(_nothing, waits_s=PATIENT.config_s)),
    Row(Reason.UNIT_TIMEOUT, "a unit's Generate does not come", UNASKED),
    Row(Reason.UNIT_TIMEOUT, "the engine hangs", _hanging, (hang("generate"),)),
    Row(Reason.IDLE_TIMEOUT, "no unit comes for idle_timeout", IDLE),
    Row(Reason.SESSION_LIMIT, "the session is max_duration old", OLD),
    Row(Reason.LOADING, "the model is still loading", _loading),
    Row(Reason.WORKER_LOST, "the transport breaks", _killed),
    Row(Reason.DRAINING, "the worker shuts down", _draining),
    Row(Reason.ENGINE_FATAL, "the device is lost", LAST_UNIT, (Play(breaks_device=True),)),
    Row(Reason.INFERENCE_FAILED, "this session cannot go on", LAST_UNIT, failing(Reason.INFERENCE_FAILED)),
]
NOT_THE_WORKERS = {Reason.QUEUE_FULL: "the dispatcher's own, see tests/ws_adapter/dispatch/test_contract.py"}


@asynccontextmanager
async def desk_of(engine: ScriptedEngine, passing: Passing, **options: Any) -> AsyncIterator[Desk]:
    async with running_worker(engine, **options) as worker, channel_to(worker.address) as channel:
        yield Desk(engine, worker, channel, passing)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.reason}: {row.when}")
async def test_a_session_ends_with_its_row(row: Row, passing: Passing) -> None:
    engine = ScriptedEngine(*row.script)
    async with desk_of(engine, passing, worker_key=row.key) as desk:
        ending = await row.provoke(desk)
    assert ending.code is row.code
    assert ending.message
    if row.reason in CLIENT_SIDE_REASONS:
        assert ending.reason == ""
    else:
        assert (ending.reason, ending.domain) == (row.reason, ERROR_DOMAIN)
    assert (ending.retry_after is not None and ending.retry_after.ToNanoseconds() > 0) == (
        row.reason in RETRIED
    )
    assert bool(ending.fields) == (row.code is Code.INVALID_ARGUMENT)


@dataclass(frozen=True)
class ItemRow:
    """One reason of `ItemError`, in answers of a session that goes on."""

    reason: Reason
    when: str
    content: pb.DuplexInput | None = None
    script: Play = field(default_factory=Play)
    run: dict[str, Any] = field(default_factory=dict)
    field: str = ""
    retryable: bool = False


def refused(reason: Reason, when: str, field: str) -> ItemRow:
    """Return the row of a unit that the engine refuses."""
    script = Play(refused=Failure(reason, "It cannot be used.", field))
    return ItemRow(reason, when, script=script, field=field)


FIVE_PICTURES = pb.DuplexInput(audio=duplex().audio, frames=[common.Image(data=b"\xff\xd8")] * 5)
BAD_RUN = {"sampling": common.SamplingParams(top_p=7)}
ITEM_ROWS = [
    ItemRow(Reason.AUDIO_INVALID, "not a number", duplex(np.array([np.nan])), field="duplex.audio.data"),
    ItemRow(Reason.AUDIO_INVALID, "no audio", pb.DuplexInput(), field="duplex.audio"),
    ItemRow(Reason.IMAGE_INVALID, "more pictures than a unit may have", FIVE_PICTURES, field="duplex.frames"),
    refused(Reason.VIDEO_INVALID, "a video cannot be decoded", "turn.messages"),
    ItemRow(Reason.PARAMS_INVALID, "a parameter is out of range", run=BAD_RUN, field="run.sampling.top_p"),
    refused(Reason.CONTENT_UNSUPPORTED, "the model cannot use it", "duplex.frames"),
    refused(Reason.INPUT_TOO_LONG, "it does not fit into the context", "duplex.audio"),
    ItemRow(Reason.INFERENCE_FAILED, "the unit fails in the model", script=fails(), retryable=True),
]


@pytest.mark.parametrize("row", ITEM_ROWS, ids=lambda row: f"{row.reason}: {row.when}")
async def test_a_unit_fails_with_its_row_and_the_session_goes_on(row: ItemRow, passing: Passing) -> None:
    engine = ScriptedEngine(row.script, info=EVERYTHING)
    async with desk_of(engine, passing) as desk:
        caller = await desk.ready(mode=pb.SESSION_MODE_VIDEO)
        failed, after = await caller.unit(1, row.content, **row.run), await caller.unit(2)
    error = failed.done.error
    assert (failed.done.end, error.reason) == (pb.UNIT_END_FAILED, row.reason)
    assert (error.field, error.retryable) == (row.field, row.retryable)
    assert error.message
    is_heard = row.reason in (Reason.PARAMS_INVALID, Reason.INFERENCE_FAILED)
    assert failed.prefill.error.reason == ("" if is_heard else row.reason)
    assert after.done.end == pb.UNIT_END_LISTEN


def _errors(kind: type[SessionError] = SessionError) -> list[type[SessionError]]:
    return [kind, *(more for sub in kind.__subclasses__() for more in _errors(sub))]


def test_the_table_is_complete() -> None:
    assert {row.reason for row in ROWS} - ITEM_REASONS == set(Reason) - ITEM_REASONS - set(NOT_THE_WORKERS)
    assert {row.reason for row in ITEM_ROWS} == ITEM_REASONS


def test_every_error_of_the_worker_has_its_row() -> None:
    rows = {(row.reason, row.code) for row in ROWS}
    raised = {(kind.reason, kind.code) for kind in _errors() if kind.reason is not None}
    assert raised == {row for row in rows if row[0] not in CLIENT_SIDE_REASONS}
