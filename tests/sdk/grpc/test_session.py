"""Three streams as one object, on a worker's real server."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import numpy as np
import pytest

from antiphon import AudioError, ConnectError, ProtocolError, SessionClosed
from antiphon.contract import Reason
from antiphon.grpc import (
    Audio,
    Finalized,
    GoAway,
    Output,
    Prefilled,
    Ready,
    Session,
    Text,
    UnitDone,
    UnitEnd,
    get_info,
)
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import SessionFailed
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    TALK,
    Play,
    RunningWorker,
    ScriptedEngine,
    context_full,
    fails,
    hang,
    running_worker,
    speak,
)

CONFIG = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO, system_prompt="Be brief.")
pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

SECOND = np.full(16_000, 0.25, np.float32)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(*TALK)


@pytest.fixture
async def worker(engine: ScriptedEngine) -> AsyncIterator[RunningWorker]:
    async with running_worker(engine) as running:
        yield running


async def feed(session: Session, units: int) -> None:
    for _ in range(units):
        await session.send_unit(SECOND)
    session.half_close()


async def play(worker: RunningWorker, units: int) -> list[Output]:
    """Sends units as fast as the window allows, and returns everything that came back."""
    async with Session.open(worker.address, CONFIG) as session, asyncio.TaskGroup() as tasks:
        tasks.create_task(feed(session, units))
        return await read_all(session)


async def visit(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CONFIG):
        pass


async def read_all(session: Session) -> list[Output]:
    return [output async for output in session]


def ends(outputs: list[Output]) -> list[tuple[int, UnitEnd]]:
    return [(output.unit, output.end) for output in outputs if isinstance(output, UnitDone)]


async def test_whole_turn(worker: RunningWorker, engine: ScriptedEngine) -> None:
    outputs = await play(worker, 5)
    assert isinstance(outputs[0], Ready)
    assert [end for _, end in ends(outputs)] == [UnitEnd.LISTEN] * 2 + [UnitEnd.CHUNK] * 2 + [UnitEnd.TURN]
    for kind in (Prefilled, UnitDone, Finalized):
        assert [o.unit for o in outputs if isinstance(o, kind)] == [1, 2, 3, 4, 5], kind
    said = "".join(output.text for output in outputs if isinstance(output, Text))
    assert said == "Hello there how are you?"
    audio = [output for output in outputs if isinstance(output, Audio)]
    assert {output.rate_hz for output in audio} == {24_000}
    assert {output.samples.dtype for output in audio} == {np.dtype(np.float32)}
    assert sum(len(output.samples) for output in audio) == 2.5 * 24_000
    assert np.array_equal(engine.session.heard[1], SECOND)


async def test_ready_carries_session_parameters(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CONFIG) as session:
        ready = session.ready
    info = await get_info(worker.address)
    assert (info.model, info.slots) == ("scripted", 2)
    assert (ready.model, ready.input_rate_hz, ready.output_rate_hz) == ("scripted", 16_000, 24_000)
    assert (ready.unit_s, ready.unit_samples) == (1.0, 16_000)
    assert ready.max_units_in_flight >= 2
    assert ready.effective.system_prompt == "Be brief."
    assert ready.effective.automatic_units


async def test_units_in_flight_stay_within_the_window() -> None:
    async with running_worker(ScriptedEngine(hang("generate"))) as worker:
        async with Session.open(worker.address, CONFIG) as session:
            for _ in range(session.ready.max_units_in_flight):
                await session.send_unit(SECOND)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await session.send_unit(SECOND)
            session.cancel()
            assert await session.send_unit(SECOND) == session.ready.max_units_in_flight + 1


async def test_late_reader_loses_no_output(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CONFIG) as session:
        feeder = asyncio.create_task(feed(session, 100))
        while not (isinstance(output := await anext(session), Finalized) and output.unit == 100):
            last = output
        await feeder
    assert isinstance(last, UnitDone)
    assert last.unit == 100


async def test_forced_listen_has_no_output(engine: ScriptedEngine) -> None:
    async with running_worker(ScriptedEngine(speak("Yes."))) as worker:
        async with Session.open(worker.address, CONFIG) as session:
            await session.send_unit(SECOND, force_listen=True)
            session.half_close()
            outputs = await read_all(session)
    assert ends(outputs) == [(1, UnitEnd.LISTEN)]


async def test_cancel_overtakes_waiting_units() -> None:
    async with running_worker(ScriptedEngine(hang("generate"), speak("Never said."))) as worker:
        async with Session.open(worker.address, CONFIG) as session:
            await session.send_unit(SECOND)
            await session.send_unit(SECOND)
            session.cancel()
            session.cancel()
            session.half_close()
            outputs = await read_all(session)
    assert ends(outputs) == [(1, UnitEnd.CANCELLED), (2, UnitEnd.CANCELLED)]
    assert not any(isinstance(output, Text) for output in outputs)


async def test_failed_unit_is_an_output_and_the_session_continues() -> None:
    async with running_worker(ScriptedEngine(fails(), speak("Yes."))) as worker:
        outputs = await play(worker, 2)
    done = [output for output in outputs if isinstance(output, UnitDone)]
    assert [one.end for one in done] == [UnitEnd.FAILED, UnitEnd.CHUNK]
    assert done[0].error is not None
    assert (done[0].error.reason, done[0].error.retryable) == (Reason.INFERENCE_FAILED, True)


async def test_full_context_ends_the_session_quietly() -> None:
    async with running_worker(ScriptedEngine(context_full())) as worker:
        async with Session.open(worker.address, CONFIG) as session:
            await session.send_unit(SECOND)
            outputs = await read_all(session)
            with pytest.raises(SessionClosed):
                await session.send_unit(SECOND)
    assert ends(outputs) == [(1, UnitEnd.CONTEXT_FULL)]


async def test_failed_session_raises_after_the_last_output() -> None:
    dies = Play(fails_session=SessionFailed(Reason.KV_EXHAUSTED, "No room."))
    async with running_worker(ScriptedEngine(dies)) as worker:
        async with Session.open(worker.address, CONFIG) as session:
            await session.send_unit(SECOND)
            with pytest.raises(SessionClosed) as caught:
                await read_all(session)
            with pytest.raises(SessionClosed):
                await session.send_unit(SECOND)
    assert caught.value.reason == Reason.KV_EXHAUSTED
    assert caught.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_refused_config_names_the_field(worker: RunningWorker) -> None:
    config = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO, duplex=common.DuplexConfig(top_p=7.0))
    with pytest.raises(ProtocolError) as caught:
        async with Session.open(worker.address, config):
            pass
    assert caught.value.reason == Reason.CONFIG_INVALID
    assert caught.value.param == "duplex.top_p"


async def test_no_worker_at_the_address() -> None:
    with pytest.raises(ConnectError):
        await get_info("unix:/nowhere/worker.sock", timeout_s=0.1)
    with pytest.raises(ConnectError) as caught:
        async with Session.open("unix:/nowhere/worker.sock", CONFIG):
            pass
    assert (caught.value.reason, caught.value.retryable) == (Reason.WORKER_LOST, True)


async def test_leaving_the_block_lets_units_finish(worker: RunningWorker, engine: ScriptedEngine) -> None:
    async with Session.open(worker.address, CONFIG) as session:
        await session.send_unit(SECOND)
        await session.send_unit(SECOND)
    steps = [call[0] for call in engine.session.calls]
    assert steps == ["prefill", "generate", "finalize"] * 2 + ["close"]


async def test_error_inside_the_block_cancels_at_once() -> None:
    async def go_wrong(worker: RunningWorker) -> None:
        async with Session.open(worker.address, CONFIG) as session:
            await session.send_unit(SECOND)
            raise ZeroDivisionError

    engine = ScriptedEngine(hang("generate"), slots=1)
    async with running_worker(engine, slots=1) as worker:
        with pytest.raises(ZeroDivisionError):
            await go_wrong(worker)
        async with asyncio.timeout(PATIENCE_S):
            while (await get_info(worker.address)).free_slots == 0:
                pass
    assert engine.session.is_closed


async def test_go_away_of_a_draining_worker_is_an_output(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CONFIG) as session:
        worker.worker.interrupt()
        async for output in session:
            if isinstance(output, GoAway):
                break
    assert output.reason
    with pytest.raises(ConnectError) as caught:
        await visit(worker)
    assert caught.value.retryable


async def test_sessions_can_share_a_channel(worker: RunningWorker) -> None:
    async with grpc.aio.insecure_channel(worker.address) as channel:
        async with Session.open(channel, CONFIG) as one, Session.open(channel, CONFIG, session_id="b") as two:
            assert await one.send_unit(SECOND) == await two.send_unit(SECOND) == 1
        async with Session.open(channel, CONFIG) as three:
            assert await three.send_unit(SECOND) == 1


async def test_too_long_unit_is_refused_by_the_sdk(worker: RunningWorker) -> None:
    async with Session.open(worker.address, CONFIG) as session:
        with pytest.raises(AudioError, match="at most 16000 samples, not 16001"):
            await session.send_unit(np.zeros(16_001, np.float32))
        assert await session.send_unit(SECOND[:10]) == 1
        session.half_close()
        with pytest.raises(SessionClosed, match="half_close"):
            await session.send_unit(SECOND)
