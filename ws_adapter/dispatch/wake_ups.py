"""Pub/sub notifications of Redis about changed tickets, whose state a heartbeat then reads."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from antiphon_service.redis import prefix
from ws_adapter.process.tasks import end

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

logger = logging.getLogger(__name__)

_LISTEN_S: Final = 0.5
"""The most seconds until a new pool is subscribed to."""

_RETRY_S: Final = 1.0


class WakeUps:
    """The subscription to the channels of one adapter, until it is stopped; without Redis it is idle."""

    def __init__(self, client: "Redis", adapter_id: str, woke: Callable[[str], None]) -> None:
        """`woke` is called with the id of the ticket."""
        self._client = client
        self._adapter_id = adapter_id
        self._woke = woke
        self._channels: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def listen_to(self, pools: Iterable[str]) -> None:
        """Set the pools to listen to."""
        self._channels = {f"{prefix(pool)}a:{self._adapter_id}" for pool in pools}

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End listening."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while True:
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                await self._listen(pubsub)
            except Exception as error:
                logger.debug("no wake-ups: %s", error)
            finally:
                with suppress(Exception):
                    await pubsub.aclose()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self, pubsub: "PubSub") -> None:
        heard: set[str] = set()
        while True:
            if new := self._channels - heard:
                await pubsub.subscribe(*new)
            if old := heard - self._channels:
                await pubsub.unsubscribe(*old)
            heard = set(self._channels)
            if not heard:
                await asyncio.sleep(_LISTEN_S)
                continue
            message = await pubsub.get_message(timeout=_LISTEN_S)
            if message is not None:
                _, _, ticket_id = message["data"].partition(" ")
                self._woke(ticket_id)
