"""The keys that adapters share: the text of a file of keys, in Redis.

While Redis is unavailable, or has lost the keys, each adapter keeps its last ones: it admits no new key, and
ends no session.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from antiphon_service.redis import disconnect
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.process.tasks import end
from ws_adapter.usage.shared import PREFIX, call

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

POLL_S: Final = 2.0
"""The polling interval in seconds; every adapter with a connection to Redis reads a change within it."""

READ_S: Final = 2.0
"""The timeout of one read in seconds."""

SOURCE: Final = "Redis"

_FAILURES: Final = (RedisError, OSError, TimeoutError)


class SharedKeys:
    """Polls the keys in Redis, and passes each new text to a callback."""

    def __init__(
        self,
        client: "Redis",
        take: Callable[[str], None],
        *,
        prefix: str = PREFIX,
        poll_s: float = POLL_S,
        read_s: float = READ_S,
    ) -> None:
        """`take` gets each new text, and raises `ConfigurationError` for an invalid one. `close` closes
        `client` too."""
        self._client = client
        self._take = take
        self._prefix = prefix
        self._poll_s = poll_s
        self._read_s = read_s
        self._text: str | None = ""
        """The last text; None if Redis had none."""
        self._is_away = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys once, and then periodically."""
        await self._look()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop reading. Harmless when repeated."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        await disconnect(self._client)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self._look()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._read_s):
                text = await call(self._client, "read_keys", prefix=self._prefix)
        except _FAILURES as error:
            if not self._is_away:
                logger.warning("Redis unavailable, the last shared keys stay in use: %r", error)
            self._is_away = True
            return
        if self._is_away:
            logger.info("Redis available again, the shared keys are up to date")
        self._is_away = False
        if text == self._text:
            return
        self._text = text
        if text is None:
            logger.error(
                "no keys in Redis, the last shared keys stay in use; "
                "write some with: antiphon share-keys FILE"
            )
            return
        try:
            self._take(text)
        except ConfigurationError as error:
            logger.error("shared keys invalid, the last ones stay in use: %s", error)
        except Exception:
            logger.exception("shared keys not read: unexpected error")
        else:
            logger.info("shared keys read")
