"""A storm on an adapter in this process: its tasks and timers can be counted."""

import asyncio

from tests.storm.storm import storm
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine, running_worker
from tests.ws_adapter.support.stage import running_adapter, until

SLOTS = 3
VISITS = 120


async def test_clients_that_vanish_leave_no_task_behind() -> None:
    engine = ScriptedEngine(*TALK, slots=SLOTS, repeat=True, info=EVERYTHING)
    proxies = {"trusted_proxies": ("127.0.0.0/8",), "pages_per_min_per_address": 30}
    async with (
        running_worker(engine, slots=SLOTS) as worker,
        running_adapter(worker.address, **proxies) as stage,
    ):
        before = len(asyncio.all_tasks())

        await storm(stage.address, VISITS, seed=2)

        await stage.until(free_slots=SLOTS)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert (await stage.request("/api/queue"))[2]["queue_length"] == 0
