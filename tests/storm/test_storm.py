"""A short storm; `make storm` is the long one."""

import asyncio

from tests.conformance.support.stack import Stack, running_stack, scripted_worker
from tests.storm.processes import Holdings, settled
from tests.storm.storm import ADAPTER, WORKER, storm

SLOTS = 4
VISITS = 300
QUEUE = ("--queue-capacity", "100")


def descriptors(stack: Stack) -> tuple[int, int]:
    adapter, worker = (Holdings.of(one.process.pid).descriptors for one in (stack, stack.worker))
    return adapter, worker


def is_idle(stack: Stack) -> bool:
    status, queue = stack.ask_http("/api/queue")
    return status == 200 and queue["queue_length"] == 0 and queue["running_tasks"] == []


async def test_clients_that_vanish_leave_nothing_behind() -> None:
    with (
        scripted_worker(*WORKER, "--slots", str(SLOTS)) as worker,
        running_stack(worker, options=(*ADAPTER, *QUEUE)) as stack,
    ):
        await storm(stack.address, 30, seed=0)  # whatever is opened once is open after this
        await stack.until(free_slots=SLOTS)
        await asyncio.to_thread(settled, lambda: is_idle(stack))
        before = descriptors(stack)

        seen = await storm(stack.address, VISITS, seed=1)

        assert sum(seen.values()) == VISITS
        assert sum(count for name, count in seen.items() if name.startswith("cut short")) == 0, seen
        await stack.until(free_slots=SLOTS)
        assert await asyncio.to_thread(settled, lambda: is_idle(stack))
        assert await asyncio.to_thread(settled, lambda: descriptors(stack) <= before), before
        assert "Traceback" not in stack.log.text
        assert "Traceback" not in worker.log.text
        async with stack.client() as client:
            await client.expect("session.queue_done")
