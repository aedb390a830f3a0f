"""Registration of a benchmark worker in the shared queue, with the calls of a real registrar."""

import asyncio
import json
from importlib import resources
from typing import Any, Final

from antiphon_service.pools import pool_name
from antiphon_service.redis import (
    DIRECTORY,
    call,
    connect,
    disconnect,
    prefix,
)
from benchmarks.load.worker import WORKER_ID
from ws_adapter.process.tasks import end

POOL: Final = pool_name("bench", ("audio", "video"))
SLOTS: Final = 4096

_TTL_MS: Final = 6000
_BEAT_S: Final = 0.5
_ATTACHING_MS: Final = 1000


class Registration:
    """The registration of the worker at `target` in the queue of the Redis at `url`.

    Its heartbeats confirm the leases that the adapters use.
    """

    def __init__(self, url: str, target: str) -> None:
        self.client = connect(url)
        self._target = target
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the functions of the queue and start the heartbeats."""
        source = resources.files("ws_adapter.dispatch").joinpath("functions.lua").read_text("utf-8")
        await self.client.execute_command("FUNCTION", "LOAD", "REPLACE", source)
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Stop the heartbeats; the registration expires."""
        if self._beating is not None:
            await end(self._beating)
        await disconnect(self.client)

    async def _beat(self) -> None:
        highest = 0
        while True:
            state: dict[str, Any] = json.loads(await call(self.client, "stats", prefix(POOL)))
            workers = state.get("workers", ())
            # The adapter may not have received a lease that was granted less than a second ago.
            known = [lease for worker in workers for lease in worker.get("leases", ())]
            leases = [lease for lease in known if lease["state"] != "granted" or lease["age"] > _ATTACHING_MS]
            held = [number for lease in leases for number in (lease["slot"], lease["epoch"])]
            highest = max([highest, *(lease["epoch"] for lease in leases)])
            beat = (WORKER_ID, self._target, _TTL_MS, 1, SLOTS, 0.0, highest, *held)
            await call(self.client, "worker_beat", prefix(POOL), *beat)
            await call(self.client, "announce", DIRECTORY, POOL, _TTL_MS)
            await asyncio.sleep(_BEAT_S)
