"""A short storm; `make storm` is the long one."""

import asyncio
from dataclasses import dataclass

import pytest

from tests.conformance.support.stack import Stack, running_stack, scripted_worker
from tests.storm.processes import Holdings, settled
from tests.storm.storm import ADAPTER, WORKER, storm

SLOTS = 4
VISITS = 300
QUEUE = ("--queue-capacity", "100")


@dataclass(frozen=True)
class Ends:
    stack: Stack

    def now(self) -> tuple[int, int]:
        processes = (self.stack.process, self.stack.worker.process)
        adapter, worker = (Holdings.of(process.pid).descriptors for process in processes)
        return adapter, worker


@pytest.mark.parametrize("seed", [1])
async def test_clients_that_vanish_leave_nothing_behind(seed: int) -> None:
    with (
        scripted_worker(*WORKER, "--slots", str(SLOTS)) as worker,
        running_stack(worker, options=(*ADAPTER, *QUEUE)) as stack,
    ):
        ends = Ends(stack)
        await storm(stack.address, 30, seed=0)  # whatever is opened once is open after this
        await stack.until(free_slots=SLOTS)
        await asyncio.to_thread(settled, lambda: _is_idle(stack))
        before = ends.now()

        seen = await storm(stack.address, VISITS, seed=seed)

        assert sum(seen.values()) == VISITS
        assert sum(count for name, count in seen.items() if name.startswith("cut short")) == 0, seen
        await stack.until(free_slots=SLOTS)
        assert await asyncio.to_thread(settled, lambda: _is_idle(stack))
        assert await asyncio.to_thread(settled, lambda: ends.now() <= before), (before, ends.now())
        assert "Traceback" not in stack.log.text
        assert "Traceback" not in worker.log.text
        async with stack.client() as client:
            await client.expect("session.queue_done")


def _is_idle(stack: Stack) -> bool:
    status, queue = stack.ask_http("/api/queue")
    return status == 200 and queue["queue_length"] == 0 and queue["running_tasks"] == []
