"""Every wait has a deadline, and every deadline a name. They strike when a test lets time pass."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import Reason
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import Caller, Ending, until
from tests.support.passing import Passing
from tests.support.scripted_engine import PATIENT, ScriptedEngine, hang, speak

LONG = Duration(seconds=int(PATIENT.unit_s) // 2)
"""Shorter than an answer may take to be read: whether the last one was, the worker may not know yet."""


def check(ending: Ending, reason: Reason) -> None:
    assert (ending.code, ending.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, reason)


async def test_a_config_that_does_not_come(served: Served, passing: Passing) -> None:
    async with served(ScriptedEngine()) as new_caller:
        caller = await new_caller().open()
        passing(PATIENT.config_s)
        check(await caller.end(), Reason.ATTACH_TIMEOUT)


async def test_a_config_that_the_model_does_not_read(served: Served, passing: Passing) -> None:
    engine = ScriptedEngine(slow_start=True)
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await caller.send_config()
        await until(lambda: engine.sessions)
        passing(PATIENT.config_s)
        check(await caller.end(), Reason.UNIT_TIMEOUT)


@pytest.mark.parametrize("missing", ["generate", "finalize"])
async def test_a_unit_that_is_not_asked_for(session_of: SessionOf, passing: Passing, missing: str) -> None:
    async with session_of(ScriptedEngine()) as caller:
        await caller.prefill(1)
        await caller.read(Stream.PREFILL)
        if missing == "finalize":
            await caller.generate(1)
            await caller.read(Stream.GENERATE)
        await caller.settle()
        passing(PATIENT.unit_s)
        ending = await caller.end()
    check(ending, Reason.UNIT_TIMEOUT)
    assert missing.capitalize() in ending.message


@pytest.mark.parametrize("step", ["prefill", "generate", "finalize"])
async def test_an_engine_that_does_not_answer(served: Served, passing: Passing, step: str) -> None:
    engine = ScriptedEngine(hang(step), slots=1)
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.send_unit(1)
        await until(lambda: ("finalize", 1) in [call[:2] for call in engine.session.calls])
        if step != "prefill":  # what comes is progress, from which on the engine has its time again
            await caller.read(Stream.PREFILL)
        while step == "finalize" and not (await caller.read(Stream.GENERATE)).HasField("done"):
            pass
        await caller.settle()
        passing(PATIENT.unit_s)
        check(await caller.end(), Reason.UNIT_TIMEOUT)
        await (await new_caller().open()).configure()


async def test_an_engine_that_never_cleans_up_keeps_its_slot(served: Served, passing: Passing) -> None:
    engine = ScriptedEngine(slots=1, slow_cleanup=True)
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await caller.configure()
        await caller.half_close(Stream.PREFILL)
        await until(lambda: engine.session.is_closing)
        passing(PATIENT.cleanup_s)
        assert (await caller.end()).code is grpc.StatusCode.OK
        late: Caller = new_caller()
        late.start(Stream.PREFILL)
        assert (await late.end()).reason == Reason.NO_FREE_SLOT
        engine.session.finish_cleanup()


async def test_idle_timeout_is_off_unless_asked_for(served: Served, passing: Passing) -> None:
    async with served(ScriptedEngine()) as new_caller:
        for ends in (True, False):
            caller = await new_caller().open()
            await caller.configure(**({"idle_timeout": LONG} if ends else {}))
            await caller.unit(1)
            await caller.settle()
            passing(LONG.seconds)
            if ends:
                check(await caller.end(), Reason.IDLE_TIMEOUT)
            else:
                await caller.unit(2)


async def test_max_duration_ends_a_session(session_of: SessionOf, passing: Passing) -> None:
    engine = ScriptedEngine(hang("generate"))
    async with session_of(engine, max_duration=Duration(seconds=int(PATIENT.unit_s) // 2)) as caller:
        await caller.send_unit(1)
        await until(lambda: ("finalize", 1) in [call[:2] for call in engine.session.calls])
        await caller.settle()
        passing(PATIENT.unit_s // 2)
        check(await caller.end(), Reason.SESSION_LIMIT)


@asynccontextmanager
async def unread(session_of: SessionOf, passing: Passing) -> AsyncIterator[Caller]:
    """A caller who does not read what was said, audio that fills the stream's window: its session is over."""
    engine = ScriptedEngine(speak("Hello"), speak("there"), slots=1)
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        await caller.read(Stream.PREFILL)
        await caller.read(Stream.FINALIZE)
        await caller.settle()
        passing(PATIENT.unit_s)
        await until(lambda: engine.session.is_closed)
        yield caller


async def test_answers_that_nobody_reads(served: Served, passing: Passing) -> None:
    """The slot comes back although the call still hangs there."""
    async with unread(served, passing) as caller:
        check(await caller.end(), Reason.UNIT_TIMEOUT)


async def test_call_unread_after_the_session_ended_keeps_one_message_and_its_status(
    served: Served, passing: Passing
) -> None:
    async with unread(served, passing) as caller:
        await caller.settle()
        passing(PATIENT.unit_s)
        ending = await caller.ending(Stream.GENERATE)
        check(ending, Reason.UNIT_TIMEOUT)
