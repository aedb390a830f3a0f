"""The usage store of all adapters of one Redis, whose clock defines the day.

One call is in flight at a time, with all pending bookings. A call whose answer was lost is repeated with its
number, so that nothing is booked twice.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import RedisError, ResponseError

from antiphon_service.redis import disconnect
from ws_adapter.process.tasks import end
from ws_adapter.usage.store import Take, Taken

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

PREFIX: Final = "antiphon:{tenants}:"
LIBRARY: Final = "antiphon_tenants_v1"
SOURCE: Final = Path(__file__).with_name("functions.lua").read_text()

CALL_S: Final = 1.0
"""The timeout of one call in seconds."""

RETRY_S: Final = 0.5
MOST_AT_ONCE: Final = 200
"""The most bookings in one call, which blocks Redis for about 1 ms."""

MOST_WAITING: Final = 20_000
"""The most bookings that wait for Redis. Further ones evict the oldest, whose usage is then not charged."""

CLOSE_S: Final = 1.0

_FAILURES: Final = (RedisError, OSError, TimeoutError)


async def call(client: "Redis", function: str, *args: Any, prefix: str = PREFIX) -> Any:
    """Call a function of the Lua library, and load the library if Redis does not have it."""
    command = ("FCALL", f"{LIBRARY}_{function}", 1, prefix, *args)
    try:
        return await client.execute_command(*command)
    except ResponseError as error:
        if "Function not found" not in str(error):
            raise
    await client.function_load(SOURCE, replace=True)
    return await client.execute_command(*command)


class RedisUsageStore:
    """The usage store in Redis."""

    def __init__(
        self,
        client: "Redis",
        adapter_id: str,
        *,
        prefix: str = PREFIX,
        call_s: float = CALL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """`close` closes `client` too. Times in seconds."""
        self._client = client
        self._adapter_id = adapter_id
        self._prefix = prefix
        self._call_s = call_s
        self._retry_s = retry_s
        self._waiting: deque[tuple[Take, asyncio.Future[Taken]]] = deque()
        self._asked: list[tuple[Take, asyncio.Future[Taken]]] = []
        """The bookings of the call in flight, or of the call to repeat."""
        self._seq = 0
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.is_away = False
        """Whether Redis is unavailable."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._idle.wait()
            await end(task)
        for _, answer in (*self._asked, *self._waiting):
            answer.cancel()
        self._waiting.clear()
        await disconnect(self._client)

    def take(self, take: Take) -> "asyncio.Future[Taken]":
        answer: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= MOST_WAITING:
            _, oldest = self._waiting.popleft()
            oldest.cancel()
        self._waiting.append((take, answer))
        self._idle.clear()
        self._news.set()
        return answer

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._asked or self._waiting:
                if not self._asked:
                    self._seq += 1
                    count = min(MOST_AT_ONCE, len(self._waiting))
                    self._asked = [self._waiting.popleft() for _ in range(count)]
                try:
                    async with asyncio.timeout(self._call_s):
                        await self._exchange()
                except _FAILURES as error:
                    self._lost(error)
                    await asyncio.sleep(self._retry_s)
            self._idle.set()

    async def _exchange(self) -> None:
        takes = [_written(take) for take, _ in self._asked]
        text = await call(
            self._client,
            "take",
            self._adapter_id,
            self._seq,
            msgspec.json.encode(takes),
            prefix=self._prefix,
        )
        day, *taken = msgspec.json.decode(text)
        asked, self._asked = self._asked, []
        if self.is_away:
            logger.info("Redis available again, quotas are booked")
        self.is_away = False
        for (_, answer), (ms, tokens) in zip(asked, taken, strict=True):
            if not answer.done():
                answer.set_result(Taken(int(day), int(ms), int(tokens)))

    def _lost(self, error: Exception) -> None:
        if not self.is_away:
            logger.warning("Redis unavailable, quotas are booked later: %r", error)
        self.is_away = True


def _written(take: Take) -> list[object]:
    quota = take.quota
    return [
        *(take.account, take.day),
        *(take.spent_ms, take.want_ms, quota.seconds_per_day * 1000),
        *(take.spent_tokens, take.want_tokens, quota.tokens_per_day),
    ]
