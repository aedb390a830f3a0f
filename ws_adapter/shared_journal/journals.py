"""The journals in Redis: those of an adapter's sessions, and claims on those of dead adapters."""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from ws_adapter.process.tasks import end
from ws_adapter.shared_journal.record import StoredJournal, read
from ws_adapter.shared_journal.stream import ANOTHERS, WRITTEN, JournalStream, Source

if TYPE_CHECKING:
    from ws_adapter.shared_journal.link import JournalLink

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
LIFE_S: Final = 3.0
"""The seconds without a heartbeat after which an adapter counts as dead."""

RETELL_BEATS: Final = 5
"""The number of heartbeats after which an adapter lists its sessions again."""

MOST_CLAIMED: Final = 128 * 2**20
"""The most bytes of a journal that an adapter reads from Redis; a session with more ends with its adapter."""

KEPT_S: Final = 10.0
"""The seconds beyond the resume window for which Redis keeps the journals of a dead adapter."""

_MS: Final = 1000


class Unclaimed(Enum):
    """The reason why a session is not taken over."""

    UNKNOWN = auto()
    """The session is unknown, the token does not open it, or the missed events are not kept."""
    ALIVE = auto()
    """Its adapter is alive, or another adapter has just claimed it."""
    BEHIND = auto()
    """The client has more events than Redis, which may not have processed the last records yet."""
    AWAY = auto()
    """Redis does not answer."""


class SharedJournals:
    """The journals of an adapter's sessions, each with a stream from its first commit to its end."""

    def __init__(
        self, link: "JournalLink", adapter_id: str, window_s: float, most_claimed: int = MOST_CLAIMED
    ) -> None:
        """`window_s` is the resume window in seconds; `most_claimed` is in bytes."""
        self.gaps = 0
        """The number of records that Redis lacked; each caused a rewrite of its journal."""
        self._link = link
        self._adapter_id = adapter_id
        self._most_claimed = most_claimed
        self._ttl_ms = round((window_s + KEPT_S) * _MS)
        self._streams: dict[str, JournalStream] = {}
        self._behind: dict[JournalStream, None] = {}
        """Streams that are queued to be rewritten."""
        self._is_catching_up = False
        self._beats = 0
        self._task: asyncio.Task[None] | None = None
        link.on_open = self._opened

    @property
    def behind(self) -> int:
        """The number of sessions whose journal in Redis is incomplete."""
        return len(self._behind)

    def start(self) -> None:
        """Connect, and start to send heartbeats."""
        self._link.start()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write the remaining records, then stop the tasks and close the connections."""
        if self._task is not None:
            await end(self._task)
            self._task = None
        await self._link.close()

    def open(self, session_id: str, path: str, source: Source, *, is_known: bool = False) -> JournalStream:
        """Return the stream of a session; `is_known` if Redis has its journal from another adapter."""
        stream = JournalStream(self, session_id, path, source, is_known=is_known)
        self._streams[session_id] = stream
        return stream

    async def claim(
        self, session_id: str, nonces: tuple[bytes, bytes], path: str, last_event: int, dead: str
    ) -> StoredJournal | Unclaimed:
        """Claim a session of a dead adapter; only one of several claimants gets it.

        `nonces` are those of the client's token and of its next token. `path` is the dialect and mode of the
        session. `dead` is the id of an adapter whose process is known to have ended, or empty.
        """
        nonce, following = nonces
        words = (session_id, self._adapter_id, dead or "-", self._ttl_ms, nonce.hex(), following.hex())
        answer = await self._link.ask("claim", *words, path, last_event, self._most_claimed)
        if answer is None:
            return Unclaimed.AWAY
        word, *found = answer
        if word == b"alive":
            return Unclaimed.ALIVE
        if word == b"behind":
            return Unclaimed.BEHIND
        if word != b"taken":
            return Unclaimed.UNKNOWN
        was_handed_over, settings, *entries = found
        try:
            return read(bool(was_handed_over), settings, entries)
        except ValueError as error:
            logger.warning("the journal of a session cannot be read: %s", error)
            self.give_up(session_id)
            return Unclaimed.UNKNOWN

    def give_up(self, session_id: str) -> None:
        """Delete the journal of a session that has ended or cannot continue."""
        self.send("forget", (session_id,), lambda answer: None)

    # ------------------------------------------------------------------------------ for the streams

    def write(
        self, function: str, session_id: str, words: tuple[object, ...], answered: Callable[[Any], None]
    ) -> bool:
        """Send a record; return False if it cannot be sent now."""

        def took(answer: Any) -> None:
            answered(answer)
            if answer == WRITTEN:
                self.catch_up()

        return self._link.send(function, (session_id, self._adapter_id, self._ttl_ms, *words), took)

    def send(self, function: str, words: tuple[object, ...], answered: Callable[[Any], None]) -> None:
        """Send a small message about a session, even if much is unanswered."""
        self._link.send(function, (*words, self._adapter_id), answered, is_urgent=True)

    def queue_rewrite(self, stream: JournalStream) -> None:
        """Queue a stream to be rewritten as soon as Redis has written another record, or at the next
        heartbeat."""
        self._behind[stream] = None

    def awaits_rewrite(self, stream: JournalStream) -> bool:
        """Return whether a stream is queued to be rewritten."""
        return stream in self._behind

    def caught_up(self, stream: JournalStream) -> None:
        """Remove a complete stream from the queue of rewrites."""
        self._behind.pop(stream, None)

    def remove(self, stream: JournalStream) -> None:
        """Remove the stream of a finished session."""
        self._behind.pop(stream, None)
        if self._streams.get(stream.session_id) is stream:
            del self._streams[stream.session_id]

    def catch_up(self) -> None:
        """Rewrite queued streams as long as the connection has room."""
        if self._is_catching_up:
            return
        self._is_catching_up = True
        try:
            for stream in list(self._behind):
                stream.catch_up()
                if stream in self._behind:
                    break
        finally:
            self._is_catching_up = False

    # ------------------------------------------------------------------------------------- the beat

    def _opened(self) -> None:
        self._beat()
        self.catch_up()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if self._link.is_open:
                self._beat()
                self.catch_up()

    def _beat(self) -> None:
        is_told = self._beats % RETELL_BEATS == 0
        self._beats += 1
        streams = [stream for stream in self._streams.values() if not stream.is_behind] if is_told else []
        life_ms = round(LIFE_S * _MS)
        sessions = [stream.session_id for stream in streams]

        def answered(answers: Any) -> None:
            for stream, answer in zip(streams, answers or (), strict=False):
                if answer == ANOTHERS:
                    stream.taken_elsewhere()
                elif answer != WRITTEN:
                    stream.missing()

        words = (self._adapter_id, life_ms, self._ttl_ms, *sessions)
        self._link.send("beat", words, answered, is_urgent=True)
