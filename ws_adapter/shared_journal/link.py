"""The connection that writes journals to Redis without delaying sessions.

The kernel has a record before the client has its event, so Redis gets the record even if this process is
killed. No session waits for room in the connection or for answers. With more than `MOST_UNANSWERED` bytes
unanswered, nothing more is sent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError, ResponseError

from antiphon_service.redis import disconnect
from ws_adapter.process.tasks import end

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

logger = logging.getLogger(__name__)

PREFIX: Final = "antiphon:{journal}:"
LIBRARY: Final = "antiphon_journal_v1"
SOURCE: Final = Path(__file__).with_name("functions.lua").read_text()

MOST_UNANSWERED: Final = 8 * 2**20
"""The most unanswered bytes. A single message may be larger if there is no other."""

RETRY_S: Final = 0.5
CALL_S: Final = 1.0
"""The timeout in seconds of a request to Redis, for which a resuming client waits."""

FAILURES: Final = (RedisError, OSError, TimeoutError)

Answered = Callable[[Any], None]
"""A callback for the answer to a message; its argument is None without an answer."""


class JournalLink:
    """A connection for messages in order, and a pool of connections for requests."""

    def __init__(self, client: "Redis", prefix: str = PREFIX, most_unanswered: int = MOST_UNANSWERED) -> None:
        """`client` returns bytes; `close` closes it too."""
        self.unanswered_bytes = 0
        """Bytes of messages that wait for an answer."""
        self.on_open: Callable[[], None] = lambda: None
        """A callback that is called after each connect."""
        self._client = client
        self._prefix = prefix
        self._most_unanswered = most_unanswered
        self._connection: AbstractConnection | None = None
        self._unanswered: deque[tuple[int, Answered]] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    @property
    def is_open(self) -> bool:
        """Whether the connection is established."""
        return self._connection is not None

    def start(self) -> None:
        """Connect, and reconnect whenever the connection is lost."""
        self._task = asyncio.create_task(self._run())

    async def close(self, seconds: float = CALL_S) -> None:
        """Wait up to `seconds` for the last answers, then close the connections."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        if self._task is not None:
            await end(self._task)
            self._task = None
        await disconnect(self._client)

    def send(
        self, function: str, words: Iterable[Any], answered: Answered, *, is_urgent: bool = False
    ) -> bool:
        """Send a call of a function; return False if it cannot be sent now.

        An urgent message is also sent beyond `MOST_UNANSWERED`; it must be small.
        """
        connection = self._connection
        if connection is None:
            return False
        command = connection.pack_command("FCALL", f"{LIBRARY}_{function}", 1, self._prefix, *words)
        size = sum(map(len, command))
        if self._unanswered and self.unanswered_bytes + size > self._most_unanswered and not is_urgent:
            return False
        self._unanswered.append((size, answered))
        self.unanswered_bytes += size
        self._news.set()
        self._idle.clear()
        # The method of redis-py for sending is a coroutine, which may wait for Redis.
        assert connection._writer is not None
        connection._writer.write(b"".join(command))
        return True

    async def ask(self, function: str, *words: Any) -> Any:
        """Call a function and return its answer; None if there is none within `CALL_S`."""
        try:
            async with asyncio.timeout(CALL_S):
                return await self._call("FCALL", f"{LIBRARY}_{function}", 1, self._prefix, *words)
        except FAILURES as error:
            logger.warning("request to Redis failed: %r", error)
            return None

    async def _call(self, *command: Any) -> Any:
        try:
            return await self._client.execute_command(*command)
        except ResponseError as error:
            if "Function not found" not in str(error):
                raise
        await self._client.function_load(SOURCE, replace=True)
        return await self._client.execute_command(*command)

    # ------------------------------------------------------------------------------- the connection

    async def _run(self) -> None:
        while True:
            connection = None
            try:
                await self._client.function_load(SOURCE, replace=True)
                connection = await self._client.connection_pool.get_connection()
                await self._read(connection)
            except FAILURES as error:
                if not self._is_away:
                    logger.warning("Redis unavailable, journals are not written: %r", error)
                self._is_away = True
            finally:
                self._connection = None
                if connection is not None:
                    await connection.disconnect(nowait=True)
                    await self._client.connection_pool.release(connection)
                self._drop_unanswered()
            await asyncio.sleep(RETRY_S)

    async def _read(self, connection: "AbstractConnection") -> None:
        """Read answers until the connection is lost."""
        self._connection = connection
        if self._is_away:
            logger.info("Redis available again, journals are written")
        self._is_away = False
        self.on_open()
        while True:
            while not self._unanswered:
                self._idle.set()
                self._news.clear()
                await self._news.wait()
            answer: Any
            try:
                answer = await connection.read_response()
            except ResponseError as error:
                logger.warning("record of a journal rejected by Redis: %s", error)
                if "Function not found" in str(error):
                    raise  # Redis has lost its data too
                answer = None
            size, answered = self._unanswered.popleft()
            self.unanswered_bytes -= size
            answered(answer)

    def _drop_unanswered(self) -> None:
        unanswered, self._unanswered = self._unanswered, deque()
        self.unanswered_bytes = 0
        self._idle.set()
        for _, answered in unanswered:
            answered(None)
