"""Classes of callers in the queue: the higher ones are served sooner, and starve nobody."""

import pytest

from tests.ws_adapter.support.backend import Build, Caller, Callers, stage
from tests.ws_adapter.support.stage import until
from ws_adapter.dispatch.base import HEAD_START, Priority

HIGH, LOW = Priority.HIGH, Priority.LOW

pytestmark = pytest.mark.parametrize("build", ["in_process", "redis"], indirect=True)


async def served(callers: Callers, waiting: list[Caller]) -> list[Caller]:
    """Return the waiting callers in the order in which they get the one slot; each gives it back at once."""
    for _ in waiting:
        count = len(callers.granted)
        await callers.granted[-1].leave()
        await until(lambda count=count: len(callers.granted) > count)
    return callers.granted[-len(waiting) :]


async def test_high_class_passes_those_of_lower_ones_that_wait(build: Build) -> None:
    async with stage(build) as callers:
        await callers.occupy()
        low = await callers.enter(priority=LOW)
        normal = await callers.enter()
        high = await callers.enter(priority=HIGH)
        last = await callers.enter(priority=HIGH)
        assert await served(callers, [low, normal, high, last]) == [high, last, normal, low]


async def test_flood_of_a_high_class_starves_no_ticket_that_waits(build: Build) -> None:
    """Attack: a tenant with priority asks for a slot again and again, so that others never get one."""
    async with stage(build) as callers:
        await callers.occupy()
        normal, low = await callers.enter(), await callers.enter(priority=LOW)
        flood = [await callers.enter(priority=HIGH) for _ in range(2 * HEAD_START + 6)]
        order = await served(callers, [normal, low, *flood])
        assert order.index(normal) <= HEAD_START
        assert order.index(low) <= 2 * HEAD_START + 1
        assert [caller for caller in order if caller in flood] == flood
