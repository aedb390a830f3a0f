"""Every wait has a deadline, and every deadline a name. Limits are short here; the rules are not."""

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.semconv import Reason
from inference_service.session.machine import Limits
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, Ending, until
from tests.support.scripted_engine import ScriptedEngine, hang, speak

SHORT_S = 0.05


def check(ending: Ending, reason: Reason) -> None:
    assert (ending.code, ending.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, reason)


async def test_a_config_that_does_not_come(served: Served) -> None:
    async with served(ScriptedEngine(), limits=Limits(config_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        check(await caller.end(), Reason.ATTACH_TIMEOUT)


async def test_a_config_that_the_model_does_not_read(served: Served) -> None:
    async with served(ScriptedEngine(slow_start=True), limits=Limits(config_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        await caller.send_config()
        check(await caller.end(), Reason.UNIT_TIMEOUT)


@pytest.mark.parametrize("missing", ["generate", "finalize"])
async def test_a_unit_that_is_not_asked_for(served: Served, missing: str) -> None:
    async with served(ScriptedEngine(), limits=Limits(unit_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.prefill(1)
        if missing == "finalize":
            await caller.generate(1)
        ending = await caller.end()
    check(ending, Reason.UNIT_TIMEOUT)
    assert missing.capitalize() in ending.message


@pytest.mark.parametrize("step", ["prefill", "generate", "finalize"])
async def test_an_engine_that_does_not_answer(served: Served, step: str) -> None:
    engine = ScriptedEngine(hang(step), slots=1)
    async with served(engine, limits=Limits(unit_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.send_unit(1)
        check(await caller.end(), Reason.UNIT_TIMEOUT)
        await (await new_caller().open()).configure()


async def test_an_engine_that_never_cleans_up_keeps_its_slot(served: Served) -> None:
    engine = ScriptedEngine(slots=1, slow_cleanup=True)
    async with served(engine, limits=Limits(cleanup_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.half_close(Stream.PREFILL)
        assert (await caller.end()).code is grpc.StatusCode.OK
        late: Caller = new_caller()
        late.start(Stream.PREFILL)
        assert (await late.end()).reason == Reason.NO_FREE_SLOT
        engine.session.finish_cleanup()


async def test_idle_timeout_is_off_unless_asked_for(served: Served) -> None:
    engine = ScriptedEngine()
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await caller.configure(idle_timeout=Duration(nanos=int(SHORT_S * 1e9)))
        await caller.unit(1)
        check(await caller.end(), Reason.IDLE_TIMEOUT)


async def test_max_duration_ends_a_session(served: Served) -> None:
    async with served(ScriptedEngine(hang("generate"))) as new_caller:
        caller = await new_caller().open()
        await caller.configure(max_duration=Duration(nanos=int(SHORT_S * 1e9)))
        await caller.send_unit(1)
        check(await caller.end(), Reason.SESSION_LIMIT)


async def test_answers_that_nobody_reads(served: Served) -> None:
    """Audio fills the stream's window; the slot comes back although the call still hangs there."""
    engine = ScriptedEngine(speak("Hello"), speak("there"), slots=1)
    async with served(engine, limits=Limits(unit_s=SHORT_S)) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.send_unit(1)
        await until(lambda: engine.session.is_closed)
        check(await caller.end(), Reason.UNIT_TIMEOUT)
