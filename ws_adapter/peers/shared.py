"""The adapters of one Redis.

Each adapter reports the counts of its connections to Redis, which adds up the reports of all adapters. One
call carries the heartbeat, the changes and all new connections. At most one call is in flight; connections
that arrive meanwhile go into the next call. So a burst costs Redis few calls, and reports arrive in order.

A new connection waits at most `ask_s` for Redis. Without an answer it is admitted, since the limits of this
adapter allow it. Further connections then do not wait until Redis answers again.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import RedisError, ResponseError

from antiphon_service.redis import disconnect
from ws_adapter.peers.base import UNCOUNTED, AdmissionRequest, Admitted, Peer, Refused
from ws_adapter.process.tasks import end

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

PREFIX: Final = "antiphon:{peers}:"
LIBRARY: Final = "antiphon_peers_v1"
SOURCE: Final = Path(__file__).with_name("functions.lua").read_text()

BEAT_S: Final = 1.0
ASK_S: Final = 0.25
"""The timeout in seconds of a handshake that waits for Redis, and of a call to it."""

LIFE_S: Final = 3.0
"""The seconds without a heartbeat after which an adapter and its connections no longer count."""

RETELL_BEATS: Final = 60
"""The number of heartbeats after which an adapter reports all of its counts again."""

MOST_ASKED: Final = 100
"""The most new connections in one call, which blocks Redis for about 1 ms."""

MOST_WAITING: Final = 1000
"""The most new connections that wait for an answer; further ones are admitted without one."""

_FAILURES: Final = (RedisError, OSError, TimeoutError)
_encode: Final = msgspec.json.Encoder().encode
_read_peer: Final = msgspec.json.Decoder(Peer)


@dataclass(eq=False)
class _PendingAdmission:
    demands: Sequence[AdmissionRequest]
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    refused: Refused | None = None
    is_abandoned: bool = False
    """Whether the connection has stopped waiting for the answer."""

    @property
    def clients(self) -> list[str]:
        """The clients with a limit of connections."""
        return [demand.client for demand in self.demands if demand.most]


class RedisPeers:
    """The adapters of one Redis, which add up their connections there."""

    def __init__(
        self,
        client: "Redis",
        adapter_id: str,
        about: Callable[[], Peer],
        counted_alone: Callable[[], None] = lambda: None,
        *,
        prefix: str = PREFIX,
        beat_s: float = BEAT_S,
        ask_s: float = ASK_S,
        life_s: float = LIFE_S,
    ) -> None:
        """`close` closes `client` too. `about` returns the description of this adapter. `counted_alone` is
        called for each connection that is admitted without an answer of Redis. Times in seconds."""
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self.adapter_id: Final = adapter_id
        self._about = about
        self._counted_alone = counted_alone
        self._prefix = prefix
        self._beat_s = beat_s
        self._ask_s = ask_s
        self._life_ms = round(life_s * 1000)
        self._held: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._asking: deque[_PendingAdmission] = deque()
        self._news = asyncio.Event()
        self._answers = True
        """Whether Redis answers; else new connections do not wait for it."""
        self._is_known = False
        """Whether Redis has all counts of this adapter, apart from pending changes."""
        self._beats = 0
        self._peers: list[Peer] = []

    async def admit(self, demands: Sequence[AdmissionRequest]) -> Admitted | Refused:
        if not demands:
            return UNCOUNTED
        admission = _PendingAdmission(demands)
        try:
            is_told = await self._ask(admission)
        except BaseException:
            self._withdraw(admission)
            raise
        if admission.refused is not None:
            return admission.refused
        if not is_told:
            self._counted_alone()
            self._hold(admission.clients)
        return Admitted(partial(self._leave, admission.clients))

    async def all(self) -> list[Peer]:
        """Return the live adapters; while Redis is unavailable, those of the last answer."""
        if self._answers:
            with suppress(*_FAILURES):
                async with asyncio.timeout(self._ask_s):
                    told = map(_read_peer.decode, await self._call("list"))
                self._peers = sorted(told, key=lambda peer: (peer.since, peer.adapter_id))
        return self._peers

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Remove this adapter from Redis at once, if Redis is available."""
        if self._task is not None:
            await end(self._task)
            self._task = None
            with suppress(*_FAILURES):
                async with asyncio.timeout(self._ask_s):
                    await self._call("leave", self.adapter_id)
        await disconnect(self._client)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._news.wait()
            if loop.time() >= due:
                due = loop.time() + self._beat_s
                self._beats += 1
                # A failover of Redis may lose reports without an error.
                self._is_known = self._is_known and self._beats % RETELL_BEATS != 0
                await self._meet()
            elif self._answers:
                await self._meet()
            else:
                self._news.clear()

    # ---------------------------------------------------------------------------------- admissions

    async def _ask(self, admission: _PendingAdmission) -> bool:
        """Wait for the answer of Redis about a new connection; return False if there is none in time."""
        if not self._answers or len(self._asking) >= MOST_WAITING:
            return False
        self._asking.append(admission)
        self._news.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ask_s):
                await admission.answered.wait()
        if admission.answered.is_set() and not admission.is_abandoned:
            return True
        admission.is_abandoned = True
        self._lost("no answer within %g s", self._ask_s)
        return False

    def _answer(self, admission: _PendingAdmission, refused: Refused | None) -> None:
        # Report the counts again with the next call: Redis may have counted this one twice, or for a
        # connection that no longer waits.
        self._changed.update(admission.clients)
        if admission.is_abandoned:
            return
        admission.refused = refused
        if refused is None:
            self._held.update(admission.clients)
        admission.answered.set()

    def _withdraw(self, admission: _PendingAdmission) -> None:
        """Withdraw a new connection that was lost while it waited."""
        if admission.answered.is_set() and not admission.is_abandoned and admission.refused is None:
            self._leave(admission.clients)
        admission.is_abandoned = True

    def _hold(self, clients: Sequence[str]) -> None:
        self._held.update(clients)
        self._tell(clients)

    def _leave(self, clients: Sequence[str]) -> None:
        for client in clients:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]
        self._tell(clients)

    def _tell(self, clients: Sequence[str]) -> None:
        if clients:
            self._changed.update(clients)
            self._news.set()

    # ---------------------------------------------------------------------------------- the calls

    async def _meet(self) -> None:
        """Send one heartbeat with all changes and every new connection that waits."""
        asked: list[_PendingAdmission] = []
        while self._asking and len(asked) < MOST_ASKED:
            admission = self._asking.popleft()
            if not admission.is_abandoned:
                asked.append(admission)
        if not self._asking:
            self._news.clear()
        try:
            async with asyncio.timeout(self._ask_s):
                answers = await self._exchange(asked)
        except _FAILURES as error:
            self._is_known = False
            for admission in (*asked, *self._asking):
                admission.is_abandoned = True
                admission.answered.set()
            self._asking.clear()
            self._lost("%r", error)
            return
        if not self._answers:
            logger.info("Redis available again, limits count all adapters")
        self._answers = self._is_known = True
        for admission, demand, missing_ms in zip(asked, answers[::2], answers[1::2], strict=True):
            wait_s = missing_ms / 1000 if missing_ms >= 0 else None
            self._answer(admission, Refused(demand - 1, wait_s) if demand else None)

    async def _exchange(self, asked: Sequence[_PendingAdmission]) -> Sequence[int]:
        demands = [admission.demands for admission in asked]
        about = _encode(self._about())
        while True:
            told = self._changed if self._is_known else self._held.keys()
            held = {client: self._held[client] for client in told}
            message = {"is_all": not self._is_known, "held": held, "newcomers": demands}
            self._changed = set()
            known, *answers = await self._call(
                "meet", self.adapter_id, self._life_ms, about, _encode(message)
            )
            if known:
                return [int(answer) for answer in answers]
            self._is_known = False  # the heartbeat was late, or Redis has lost its data

    async def _call(self, function: str, *args: Any) -> Any:
        command = ("FCALL", f"{LIBRARY}_{function}", 1, self._prefix, *args)
        try:
            return await self._client.execute_command(*command)
        except ResponseError as error:
            if "Function not found" not in str(error):
                raise
        await self._client.function_load(SOURCE, replace=True)
        return await self._client.execute_command(*command)

    def _lost(self, why: str, *details: object) -> None:
        if self._answers:
            logger.warning("Redis unavailable, limits count each adapter alone: " + why, *details)
        self._answers = False
        self._news.set()
