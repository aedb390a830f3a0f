"""The socket of a session that survives its connection: another connection can replace it.

The number of an event is the count of text messages that the session has sent so far, this one included.
`ReplayBuffer` keeps the last of them, so that a client that reconnects gets the events that it missed.
"""

import asyncio
import hmac
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, Protocol

from ws_adapter.access.rate_limit import Bucket
from ws_adapter.process.clock import Clock, Timer
from ws_adapter.protocol.core.actions import Respond
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.wire.codec import encode
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.protocol.wire.events import ResumeOffer, SessionResumed
from ws_adapter.resume.buffer import Parts, ReplayBuffer, ReplayBuffers
from ws_adapter.resume.tokens import holder_of
from ws_adapter.web.message import Disconnected, Message
from ws_adapter.web.routes import Selection
from ws_adapter.web.websocket import PublicConnection, ignore_flood, ignore_text

SLOT_KEPT_S: Final = 5.0
"""The seconds for which a detached session keeps its slot while others wait for one."""

LOOK_S: Final = 1.0
"""The interval of checking for waiting sessions after `SLOT_KEPT_S`, in seconds."""

SUPERSEDED_S: Final = 1.0
"""The seconds that a superseded connection may take to close."""

RESUMES_BURST: Final = 10
RESUMES_PER_S: Final = 0.5
"""The rate limit of resuming one session."""


class ConnectionOwner(Protocol):
    """The session that uses the connection."""

    def detached(self) -> None:
        """Handle the lost connection of a client that may reconnect."""

    def resumed(self) -> None:
        """Handle the client's return."""

    def offered(self) -> None:
        """Handle a new token for the session, which the client does not have yet."""

    def others_wait(self) -> bool:
        """Return whether another session waits for a slot such as this session holds."""


class ResumableRegistry(Protocol):
    """A registry that finds a connection by its token."""

    @property
    def buffers(self) -> ReplayBuffers:
        """The replay buffers of all sessions."""

    def offer(self, connection: "ResumableConnection", nonce: bytes | None = None) -> ResumeOffer:
        """Make a token for a session, which replaces the last one."""

    def detached(self, connection: "ResumableConnection") -> None:
        """Add a detached session; beyond the bound, the session that was detached first ends."""

    def attached(self, connection: "ResumableConnection") -> None:
        """Note that the session has a connection again."""

    def forget(self, connection: "ResumableConnection") -> None:
        """Forget a finished session, so that no token opens it. Harmless when repeated."""


class ResumableConnection:
    """A session's socket, with the methods of `PublicConnection`.

    It can be resumed from its first `offer` on. While it is detached, `receive` and `send_text` wait for the
    next connection, or raise `Disconnected` once no connection can come.
    """

    def __init__(
        self,
        connection: PublicConnection,
        session_id: str,
        selection: Selection,
        registry: ResumableRegistry,
        clock: Clock,
        window_s: float,
    ) -> None:
        self.session_id: Final = session_id
        self.holder: Final = holder_of(connection.key.hash if connection.key is not None else None)
        """The key holder; a connection that resumes the session needs the same key."""
        self._selection = selection
        self.received = 0
        """The number of messages that the session took."""
        self.is_detached = False
        self.ends_with_an_answer = False
        """Whether the session closes after a complete answer, which a client may still fetch by resuming."""
        self._nonce = b""
        """The nonce of the last token; empty before the first."""
        self._used_nonce = b""
        """The nonce of the token that opened the present connection; empty for the first one."""
        self._received_before = 0
        """The number of messages before the present connection."""
        self._connection = connection
        self._registry = registry
        self._clock = clock
        self._window_s = window_s
        self._resumes = Bucket(RESUMES_BURST, RESUMES_PER_S, clock.now)
        self._buffer = ReplayBuffer(registry.buffers)
        self._owner: ConnectionOwner | None = None
        self._context = copy_context()
        """The context of the session, for its log lines."""
        self._is_over = False
        self._is_closing = False
        self._is_held = False
        self._changed = asyncio.Event()
        """Set once the session has another connection, or is over."""
        self._timer: Timer | None = None
        self._ends_at = 0.0
        self._leave: Callable[[], None] = _nothing
        self._on_flood: Callable[[Verdict], None] = ignore_flood
        self._on_text: Callable[[bytes], bool] = ignore_text
        self._superseded: set[asyncio.Task[None]] = set()

    @property
    def connection(self) -> PublicConnection:
        """The present connection of the session, or its last one."""
        return self._connection

    @property
    def path(self) -> str:
        """The dialect and mode of the session."""
        return path_of(self._selection)

    @property
    def kind(self) -> Kind:
        """The kind of the session in the queue."""
        return self._selection.kind

    def is_for(self, connection: PublicConnection) -> bool:
        """Return whether a connection has the key of the session, and speaks its protocol."""
        holder = holder_of(connection.key.hash if connection.key is not None else None)
        selection = connection.selection
        return (
            hmac.compare_digest(holder, self.holder)
            and isinstance(selection, Selection)
            and (selection.dialect, selection.kind) == (self._selection.dialect, self._selection.kind)
        )

    def own(self, owner: ConnectionOwner) -> None:
        """Call `owner` about the connection from now on; to be called once, before anything else."""
        self._owner = owner
        self._context = copy_context()
        self._connection.when_lost(partial(self._lost, self._connection))

    @property
    def lasting_nonces(self) -> tuple[bytes, bytes]:
        """The nonces that resume the session if its adapter dies; the second may be empty."""
        return self._nonce, self._used_nonce if self.received == self._received_before else b""

    @property
    def is_confirmed(self) -> bool:
        """Whether the newest message is the first one over this connection."""
        return bool(self._used_nonce) and self.received == self._received_before + 1

    @property
    def buffer(self) -> ReplayBuffer:
        """The sent events, which may be requested again."""
        return self._buffer

    def offer(self) -> ResumeOffer:
        """Make a token. From now on the session counts among the connections of its client, even while
        detached."""
        if not self._nonce:
            self._leave = self._connection.take_leave()
        return self._registry.offer(self)

    @property
    def nonces(self) -> tuple[bytes, bytes]:
        """The nonces of the tokens that open the session.

        A used token is valid once more if the connection that it opened is lost and brought no message: the
        client may never have got the next token.
        """
        is_unconfirmed = self.is_detached and self.received == self._received_before and self._used_nonce
        return self._nonce, self._used_nonce if is_unconfirmed else self._nonce

    def rotate(self, nonce: bytes) -> None:
        """Take the nonce of a new token."""
        self._nonce = nonce
        if not self._is_over:
            self._buffer.open()

    # ------------------------------------------------------------------- the socket of the session

    def when_flooding(self, callback: Callable[[Verdict], None]) -> None:
        self._on_flood = callback
        self._connection.when_flooding(callback)

    def when_text(self, callback: Callable[[bytes], bool]) -> None:
        self._on_text = callback
        self._connection.when_text(callback)

    def hold(self, is_held: bool) -> None:
        self._is_held = is_held
        self._connection.hold(is_held)

    def begin_answer(self, begun: Respond) -> None:
        self._connection.begin_answer(begun)

    def buffered(self) -> int:
        return self._connection.buffered()

    async def receive(self) -> Message:
        while True:
            connection = self._connection
            try:
                message = await connection.receive()
            except Disconnected:
                await self._next(connection)
                continue
            if connection is self._connection:
                self.received += 1
                return message

    async def send_text(self, *parts: bytes) -> None:
        if self.is_detached or self._is_over:
            await self.until_attached()
        self._buffer.add(parts)
        try:
            await self._connection.send_text(*parts)
        except Disconnected:
            if self._is_over:
                raise

    def write_text(self, *parts: bytes) -> bool:
        if self.is_detached or not self._connection.write_text(*parts):
            return False
        self._buffer.add(parts)
        return True

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Close the connection; waits while there is none."""
        self._is_closing = True
        while True:
            await self.until_attached()
            connection = self._connection
            await connection.close(code, reason)
            if connection is self._connection and not self.is_detached:
                return

    def abort(self) -> None:
        """Abort the connection. No other one can replace it."""
        self.end()
        self._connection.abort()

    async def wait_closed(self) -> None:
        """Wait until no connection is left."""
        while not self._is_over:
            connection = self._connection
            await connection.wait_closed()
            with suppress(Disconnected):
                await self._next(connection)

    # ------------------------------------------------------------------------------------ detaching

    def _lost(self, connection: PublicConnection) -> None:
        """Handle the lost transport of a connection."""
        if connection is not self._connection or self._is_over:
            return
        was_cut = connection.was_cut_in_closing and self.ends_with_an_answer
        was_cut = was_cut or (connection.was_cut and not self._is_closing)
        if not (self._nonce and was_cut) or self._owner is None:
            self.end()
        else:
            self._context.run(self._detach, self._owner)

    def _detach(self, owner: ConnectionOwner) -> None:
        self.is_detached = True
        now = self._clock.now()
        self._ends_at = now + self._window_s
        self._timer = self._clock.call_at(min(now + SLOT_KEPT_S, self._ends_at), self._look)
        owner.detached()
        self._registry.detached(self)

    def _look(self) -> None:
        """End the session if its time is up, or another session waits for its slot."""
        now = self._clock.now()
        if now >= self._ends_at or self._owner is None or self._owner.others_wait():
            self.end()
        else:
            self._timer = self._clock.call_at(min(now + LOOK_S, self._ends_at), self._look)

    def end(self) -> None:
        """End the session: no connection can resume it. Harmless when repeated."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_timer()
        self._registry.forget(self)
        self.is_detached = False
        self._buffer.close()
        self._leave()
        self._leave = _nothing
        self._owner, self._on_flood, self._on_text = None, ignore_flood, ignore_text
        self._changed.set()

    async def until_attached(self) -> None:
        """Wait while there is no connection. Raises `Disconnected` if none can come."""
        while self.is_detached:
            self._changed.clear()
            await self._changed.wait()
        if self._is_over:
            raise Disconnected

    async def _next(self, last: PublicConnection) -> None:
        """Wait for the connection after `last`. Raises `Disconnected` if none can come."""
        while self._connection is last and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if self._is_over:
            raise Disconnected

    # ----------------------------------------------------------------------------------- resuming

    def may_resume(self) -> bool:
        """Return whether the rate limit of resuming allows another attempt, which then counts."""
        return self._resumes.take()

    def resume(self, connection: PublicConnection, last_event: int | None, nonce: bytes) -> bool:
        """Continue over `connection`, with the events after `last_event`. `nonce` is that of the token.

        False if these events are no longer kept, or were never sent: then the session is over.
        """
        missed = self._buffer.after(last_event) if last_event is not None else None
        if last_event is None or missed is None:
            self.abort()
            return False
        self._used_nonce, self._received_before = nonce, self.received
        self._context.run(self._go_on, connection, last_event, missed)
        connection.when_lost(partial(self._lost, connection))
        return True

    def take_over(
        self, last_event: int, nonces: tuple[bytes, bytes], received: int, events: dict[int, Parts]
    ) -> None:
        """Continue a session of another adapter, over the connection that it begins with.

        `nonces` are those of the client's token and of its next one; `events` are those that the session has
        sent or was about to send. Raises `ValueError` if the client missed other events.
        """
        self._used_nonce, following = nonces
        self.received = self._received_before = received
        self._buffer.restore(events, max(events, default=last_event))
        missed = self._buffer.after(last_event)
        if missed is None:
            raise ValueError("events are missing")
        self._leave = self._connection.take_leave()
        self._welcome(self._registry.offer(self, following), last_event, missed)

    def _welcome(self, offer: ResumeOffer, last_event: int, missed: Iterator[Parts]) -> None:
        """Send a client that reconnected its new token and the missed events; the token is stored first."""
        if self._owner is not None:
            self._owner.offered()
        resumed = SessionResumed(resume=offer, last_event=last_event, received=self.received)
        self._connection.write_text(encode(resumed))
        for parts in missed:
            self._connection.write_text(*parts)

    def _go_on(self, connection: PublicConnection, last_event: int, missed: Iterator[Parts]) -> None:
        old, was_detached = self._connection, self.is_detached
        self._connection, self.is_detached = connection, False
        self._stop_timer()
        self._registry.attached(self)
        self._welcome(self.offer(), last_event, missed)
        connection.hold(self._is_held)
        connection.when_flooding(self._on_flood)
        connection.when_text(self._on_text)
        if not was_detached:
            self._supersede(old)
        self._changed.set()
        if was_detached and self._owner is not None:
            self._owner.resumed()

    def _supersede(self, old: PublicConnection) -> None:
        """Close a connection that another one has superseded; its further input is discarded."""
        old.when_text(lambda text: True)
        old.when_flooding(lambda verdict: old.abort())
        task = asyncio.create_task(_close(old))
        self._superseded.add(task)
        task.add_done_callback(self._superseded.discard)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def path_of(selection: Selection) -> str:
    """Return the dialect and mode of a connection."""
    return f"{selection.dialect.value}/{selection.mode.value}"


async def _close(old: PublicConnection) -> None:
    try:
        async with asyncio.timeout(SUPERSEDED_S):
            await old.close(CloseCode.RESUMED_ELSEWHERE, "resumed_elsewhere")
    except TimeoutError:
        old.abort()


def _nothing() -> None:
    """Do nothing."""
