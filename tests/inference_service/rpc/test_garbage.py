"""A session that is over is gone at once; it is too large to wait for the garbage collector."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from inference_service.session.calls.session_calls import SessionCalls
from inference_service.session.machine import SessionMachine
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, until
from tests.support.passing import Passing
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import PATIENT, ScriptedEngine, ScriptedSession, hang, listen, speak

KINDS = (SessionCalls, SessionMachine, ScriptedSession)

LONG_S = 10 * PATIENT.unit_s
LIMITS = replace(PATIENT, attach_s=LONG_S, config_s=LONG_S, unit_s=LONG_S, cleanup_s=LONG_S)
"""A timer that outlives its session does so for longer than the test waits."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Collect the garbage of other tests, then disable collection."""
    gc.collect()
    gc.freeze()  # scanning the objects of earlier tests takes a second each time
    gc.disable()
    yield
    gc.enable()


def living() -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) in KINDS]


async def _ends(caller: Caller) -> None:
    await caller.configure()
    await caller.unit(1)
    await caller.half_close(Stream.PREFILL)


async def _breaks_a_rule(caller: Caller) -> None:
    await caller.configure()
    await caller.prefill(9)


async def _is_refused(caller: Caller) -> None:
    await caller.send_config(model="another")


async def _gives_up(caller: Caller) -> None:
    await caller.configure()
    await caller.send_unit(1)
    caller.calls[Stream.FINALIZE].cancel()


async def _gives_up_and_reads_late(caller: Caller) -> None:
    """The slot is clean before the last call is over, which has more to write than fits on the way."""
    await caller.configure()
    await caller.send_unit(1)
    await caller.read(Stream.PREFILL)
    caller.calls[Stream.FINALIZE].cancel()
    async with asyncio.timeout(PATIENCE_S):
        while (worker := await caller.settle()).free_slots < worker.slots:
            pass


async def _is_out_of_time(caller: Caller) -> None:
    await caller.configure()
    await caller.prefill(1)
    await caller.read(Stream.PREFILL)


async def _never_attaches(caller: Caller) -> None:
    caller.calls[Stream.PREFILL].cancel()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "act",
    [
        _ends,
        _breaks_a_rule,
        _is_refused,
        _gives_up,
        _gives_up_and_reads_late,
        _is_out_of_time,
        _never_attaches,
    ],
)
async def test_nothing_of_a_session_outlives_it(
    served: Served, passing: Passing, act: Callable[[Caller], Awaitable[None]]
) -> None:
    plays = {_gives_up: hang("generate"), _gives_up_and_reads_late: speak("word" * 2**19)}
    engine = ScriptedEngine(plays.get(act, listen()), forgetful=True)
    async with served(engine, limits=LIMITS) as new_caller:
        for _ in range(3):
            caller = new_caller()
            await (caller.open(Stream.PREFILL) if act is _never_attaches else caller.open())
            await act(caller)
            if act is _is_out_of_time:
                await caller.settle()
                passing(LIMITS.unit_s)
            for stream, call in caller.calls.items():
                if not call.cancelled():
                    await caller.ending(stream)
        del caller
        engine.sessions.clear()
        await until(lambda: not living())
