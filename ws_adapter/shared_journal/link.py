"""The connection on which journals are written to Redis, without delaying conversations.

A record is with the kernel before its event is sent: Redis gets it even if this process is killed at once. No
session waits for Redis, neither for room in its connection nor for its answers. Beyond `MOST_UNANSWERED`
bytes without an answer nothing more is sent.
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
"""Bytes that Redis has not answered. One message may be larger, while there is no other."""

RETRY_S: Final = 0.5
CALL_S: Final = 1.0
"""The longest that a client which comes back waits for Redis."""

FAILURES: Final = (RedisError, OSError, TimeoutError)

Answered = Callable[[Any], None]
"""Callback for the answer to a message; its argument is None where there is no answer."""


class JournalLink:
    """One connection for ordered messages, and others for requests."""

    def __init__(self, client: "Redis", prefix: str = PREFIX, most_unanswered: int = MOST_UNANSWERED) -> None:
        """`client` answers in bytes, and is closed with it."""
        self.unanswered_bytes = 0
        """Bytes of messages that wait for an answer."""
        self.on_open: Callable[[], None] = lambda: None
        """A callback for each new connection."""
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
        """Whether there is a connection."""
        return self._connection is not None

    def start(self) -> None:
        """Connect, and again whenever the connection is lost."""
        self._task = asyncio.create_task(self._run())

    async def close(self, seconds: float = CALL_S) -> None:
        """Wait for the last answers, at most so long, and leave no connection behind."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        if self._task is not None:
            await end(self._task)
            self._task = None
        await disconnect(self._client)

    def send(self, function: str, words: Iterable[Any], answered: Answered, *, matters: bool = False) -> bool:
        """Send a call of a function; return False if it cannot be sent now.

        One that `matters` is also sent beyond the bound: it is small.
        """
        connection = self._connection
        if connection is None:
            return False
        command = connection.pack_command("FCALL", f"{LIBRARY}_{function}", 1, self._prefix, *words)
        size = sum(map(len, command))
        if self._unanswered and self.unanswered_bytes + size > self._most_unanswered and not matters:
            return False
        self._unanswered.append((size, answered))
        self.unanswered_bytes += size
        self._news.set()
        self._idle.clear()
        # The package's own way to send is a coroutine, which may wait for Redis.
        assert connection._writer is not None
        connection._writer.write(b"".join(command))
        return True

    async def ask(self, function: str, *words: Any) -> Any:
        """Call a function and return its answer; None if there is none within `CALL_S`."""
        try:
            async with asyncio.timeout(CALL_S):
                return await self._call("FCALL", f"{LIBRARY}_{function}", 1, self._prefix, *words)
        except FAILURES as error:
            logger.warning("Redis was asked in vain: %r", error)
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
                    logger.warning("Redis is away, sessions have no journal there: %r", error)
                self._is_away = True
            finally:
                self._connection = None
                if connection is not None:
                    await connection.disconnect(nowait=True)
                    await self._client.connection_pool.release(connection)
                self._give_up()
            await asyncio.sleep(RETRY_S)

    async def _read(self, connection: "AbstractConnection") -> None:
        """Take answers until the connection is lost."""
        self._connection = connection
        if self._is_away:
            logger.info("Redis answers: journals are written again")
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
                logger.warning("Redis did not take a record of a journal: %s", error)
                if "Function not found" in str(error):
                    raise  # its data are gone too
                answer = None
            size, answered = self._unanswered.popleft()
            self.unanswered_bytes -= size
            answered(answer)

    def _give_up(self) -> None:
        unanswered, self._unanswered = self._unanswered, deque()
        self.unanswered_bytes = 0
        self._idle.set()
        for _, answered in unanswered:
            answered(None)
