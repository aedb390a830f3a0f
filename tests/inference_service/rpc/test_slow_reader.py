"""A caller that does not read costs a bounded amount of memory, and its neighbours nothing."""

import asyncio

import pytest

from inference_service.rpc.transport.outbox import BACKLOG
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, speak

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
