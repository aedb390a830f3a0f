"""A caller that does not read costs a bounded amount of memory and time, and its neighbours nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from antiphon.contract import Reason
from inference_service.rpc.transport.outbox import BACKLOG
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import Caller, Ending, until
from tests.support.passing import Passing
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import PATIENT, ScriptedEngine, speak

UNITS = 30
WINDOW = 2


async def send_all(caller: Caller, finalized: asyncio.Semaphore) -> None:
    """Sends every unit as soon as the window allows."""
    for unit in range(1, UNITS + 1):
        await finalized.acquire()
        await caller.send_unit(unit)


async def read_finalized(caller: Caller, finalized: asyncio.Semaphore) -> None:
    for _ in range(UNITS):
        await caller.calls[Stream.FINALIZE].read()
        finalized.release()


async def read_prefilled(caller: Caller) -> None:
    for _ in range(UNITS):
        await caller.calls[Stream.PREFILL].read()


@pytest.mark.parametrize("pieces", [1, 20])
async def test_units_stop_being_read_while_their_answers_are_not(served: Served, pieces: int) -> None:
    engine = ScriptedEngine(speak(*["word "] * pieces), repeat=True)
    async with served(engine) as new_caller:
        caller, neighbour = await new_caller().ready(), await new_caller().ready()
        finalized = asyncio.Semaphore(WINDOW)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send_all(caller, finalized))
            tasks.create_task(read_finalized(caller, finalized))
            tasks.create_task(read_prefilled(caller))
            heard = engine.sessions[0].heard
            await until(lambda: len(heard) >= BACKLOG)
            for unit in range(1, 6):
                assert (await neighbour.unit(unit)).samples == 24_000
            # One message is on the wire, one in the transport; the others wait in the outbox.
            assert len(heard) <= BACKLOG + WINDOW + 2
            texts = [""] * (UNITS + 1)
            for unit in range(1, UNITS + 1):
                while True:
                    answer = await caller.read(Stream.GENERATE)
                    texts[unit] += answer.text.text
                    assert answer.unit == unit
                    if answer.HasField("done"):
                        break
    assert texts[1:] == ["word " * pieces] * UNITS


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
