"""A burst of calls, spread over passes of the event loop."""

import asyncio
from contextvars import ContextVar
from functools import partial

import pytest

from ws_adapter.process.call_queue import PASSES, CallQueue

WHO: ContextVar[int] = ContextVar("WHO")


class Passes:
    """Counts the passes of the event loop until `stop`."""

    def __init__(self) -> None:
        self.count = 0
        self._goes_on = True
        asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._goes_on = False

    def _tick(self) -> None:
        self.count += 1
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self._tick)


async def until_empty(calls: CallQueue) -> None:
    """In a pass or two behind the last call."""
    for _ in range(100_000):
        await asyncio.sleep(0)
        if not len(calls):
            break
    assert not len(calls)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_call_that_comes_alone_runs_at_once() -> None:
    calls, done = CallQueue(), list[int]()
    calls.run(partial(done.append, 1))
    assert done == [1]
    await until_empty(calls)
    calls.run(partial(done.append, 2))
    assert done == [1, 2]


@pytest.mark.parametrize("count", [2, 50, 5_000])
async def test_burst_runs_in_order_and_no_pass_runs_more_than_its_share(count: int) -> None:
    calls, passes = CallQueue(), Passes()
    ran: list[tuple[int, int]] = []
    for number in range(count):
        calls.run(lambda number=number: ran.append((number, passes.count)))  # type: ignore[misc]
    await until_empty(calls)
    passes.stop()
    assert [number for number, _ in ran] == list(range(count))
    in_pass = [at for _, at in ran]
    assert max(in_pass.count(at) for at in set(in_pass)) <= count // PASSES + 1


async def test_calls_run_in_the_context_in_which_they_came() -> None:
    calls, seen = CallQueue(), list[int]()
    for number in range(3):
        WHO.set(number)
        calls.run(lambda: seen.append(WHO.get()))
    WHO.set(99)
    await until_empty(calls)
    assert seen == [0, 1, 2]


async def test_call_that_raises_stops_no_other() -> None:
    calls, done = CallQueue(), list[int]()
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("this one")

    calls.run(partial(done.append, 0))
    calls.run(fail)
    for number in range(1, 200):
        calls.run(fail if number % 2 else partial(done.append, number))
    await until_empty(calls)
    assert done == list(range(0, 200, 2))
    assert len(told) == 101
