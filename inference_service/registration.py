"""Registration of the worker in the shared queue: heartbeats with its state, and reports of clean slots.

No session waits for Redis. During an outage of Redis sessions go on, and pending reports are sent afterwards.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from antiphon_service.pools import STABLE
from antiphon_service.redis import (
    DIRECTORY,
    call,
    disconnect,
    prefix,
)
from inference_service.session.slots import SlotTable

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
TTL_MS: Final = 6000
"""Milliseconds after the last heartbeat until the worker's entry with its slots expires."""

RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 2.0
"""Upper limit in seconds of the delay between retries, which doubles with each failure."""

LEAVE_TIMEOUT_S: Final = 2.0
"""Limit in seconds of each wait for Redis at the worker's shutdown."""

_LISTEN_S: Final = 30.0


@dataclass(frozen=True)
class WorkerEntry:
    """A worker's entry for adapters: name, address, pool of equal workers, and revision of the model."""

    worker_id: str
    target: str
    pool: str
    revision: str = STABLE


@dataclass(frozen=True)
class WorkerHandle:
    """The registrar's view of its worker, and the calls that it may make.

    `takes_sessions` returns whether one more session may be admitted, and `load` the busy share. `revoke`
    revokes the lease of a slot and epoch, and returns whether the slot is clean.
    """

    slots: SlotTable
    takes_sessions: Callable[[], bool]
    load: Callable[[], float]
    revoke: Callable[[int, int], bool]


class Registrar:
    """The registration of a worker, from `start` to `leave`.

    It runs on the serving event loop, so that the entry of a hanging worker expires.
    """

    def __init__(self, client: "Redis", entry: WorkerEntry, handle: WorkerHandle) -> None:
        self.is_available: bool | None = None
        """Whether Redis answered the last request; None before the first."""
        self._client = client
        self._entry = entry
        self._handle = handle
        self._key = prefix(entry.pool)
        self._freed: dict[int, int] = {}
        """Clean slots, with their epochs, that were not reported to Redis yet."""
        self._is_draining = False
        self.drained = asyncio.Event()
        """Set after `drain`, once no new lease can be given."""
        self._heartbeat_at = 0.0
        """The time of the next heartbeat, by the event loop."""
        self._news = asyncio.Event()
        self._ending = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register the worker, and start its heartbeat."""
        self._reporting = asyncio.create_task(self._run())

    def slot_freed(self, slot: int, epoch: int) -> None:
        """Report a clean slot; `epoch` is that of its ended lease."""
        self._freed[slot] = epoch
        self._news.set()

    def heartbeat_soon(self) -> None:
        """Send a heartbeat within less than a second, because something has changed."""
        self._heartbeat_at = 0.0
        self._news.set()

    def drain(self) -> None:
        """Accept no new lease from now on."""
        self._is_draining = True
        self.heartbeat_soon()

    async def leave(self) -> None:
        """Remove the worker's entry. Takes at most twice `LEAVE_TIMEOUT_S`."""
        self._ending.set()
        self._news.set()
        if self._reporting is not None:
            await asyncio.wait({self._reporting}, timeout=LEAVE_TIMEOUT_S)
            self._reporting.cancel()
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._call("worker_leave")
        await disconnect(self._client)

    async def _run(self) -> None:
        loop, retry_s = asyncio.get_running_loop(), RETRY_S
        listening: asyncio.Task[None] | None = None
        try:
            while not self._ending.is_set():
                try:
                    await self._report(loop.time())
                except Exception as error:  # every error is retried, while sessions go on
                    self._note(error)
                    if listening is not None:
                        listening.cancel()
                    await _pause(self._ending, retry_s * random.uniform(0.8, 1.2))
                    retry_s = min(retry_s * 2, LONGEST_RETRY_S)
                    self._heartbeat_at = 0.0
                    continue
                self._note(None)
                retry_s = RETRY_S
                if listening is None or listening.cancelled() or listening.done():
                    listening = asyncio.create_task(self._listen())
                await _pause(self._news, self._heartbeat_at - loop.time())
        finally:
            if listening is not None:
                listening.cancel()

    # --------------------------------------------------------------------------------------- reports

    async def _report(self, now: float) -> None:
        """Send all pending reports, and the heartbeat if it is due."""
        self._news.clear()
        is_due = now >= self._heartbeat_at
        if is_due:
            self._heartbeat_at = now + HEARTBEAT_S
        for slot, epoch in list(self._freed.items()):
            await self._call("slot_free", slot, epoch)
            if self._freed.get(slot) == epoch:
                del self._freed[slot]
        if is_due:
            await self._heartbeat()
            await call(self._client, "announce", DIRECTORY, self._entry.pool, TTL_MS)

    async def _heartbeat(self) -> None:
        entry, handle = self._entry, self._handle
        is_draining = self._is_draining
        accepts = not is_draining and handle.takes_sessions()
        held = [number for pair in handle.slots.held() for number in pair]
        # The function library of an older release lacks worker_beat_as. A worker with a revision then retries
        # until an adapter loads the newer library.
        named = [] if entry.revision == STABLE else [entry.revision]
        revoked = await call(
            self._client,
            "worker_beat_as" if named else "worker_beat",
            self._key,
            *named,
            entry.worker_id,
            entry.target,
            TTL_MS,
            int(accepts),
            handle.slots.leased,
            round(handle.load(), 3),
            handle.slots.highest_epoch,
            *held,
        )
        if is_draining:
            self.drained.set()
        for slot, epoch in zip(revoked[::2], revoked[1::2], strict=True):
            if handle.revoke(int(slot), int(epoch)):
                self.slot_freed(int(slot), int(epoch))

    async def _call(self, function: str, *arguments: object) -> Any:
        return await call(self._client, function, self._key, self._entry.worker_id, *arguments)

    async def _listen(self) -> None:
        """Wake when a lease is revoked, so that its slot is free before the next heartbeat."""
        with suppress(Exception):  # the answer to the next heartbeat has the same news
            async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                await channel.subscribe(f"{self._key}w:{self._entry.worker_id}")
                while True:
                    if await channel.get_message(timeout=_LISTEN_S) is not None:
                        self.heartbeat_soon()

    def _note(self, error: Exception | None) -> None:
        if error is None and not self.is_available:
            logger.info("registered with the dispatcher", extra={"worker_id": self._entry.worker_id})
        elif error is not None and self.is_available is not False:
            if "Function not found" in str(error):
                logger.info("registration waits for an adapter, which loads the functions into Redis")
            else:
                logger.warning("dispatcher unavailable, sessions go on: %s", error)
        self.is_available = error is None


async def _pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, for at most `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
