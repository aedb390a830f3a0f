"""Every wait has a deadline, and every deadline a name. They strike when a test lets time pass."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from antiphon.contract import Reason
from inference_service.session.units import Stream
from tests.inference_service.conftest import SessionOf
from tests.inference_service.support.caller import Caller, Ending, until
from tests.support.passing import Passing
from tests.support.scripted_engine import PATIENT, ScriptedEngine, speak


def check(ending: Ending, reason: Reason) -> None:
    assert (ending.code, ending.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, reason)


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


async def test_unread_answers_end_session_with_unit_timeout(session_of: SessionOf, passing: Passing) -> None:
    """The slot comes back although the call still hangs there."""
    async with unread(session_of, passing) as caller:
        check(await caller.end(), Reason.UNIT_TIMEOUT)


async def test_unread_call_keeps_status_after_the_session(session_of: SessionOf, passing: Passing) -> None:
    async with unread(session_of, passing) as caller:
        await caller.settle()
        passing(PATIENT.unit_s)
        ending = await caller.ending(Stream.GENERATE)
        check(ending, Reason.UNIT_TIMEOUT)
