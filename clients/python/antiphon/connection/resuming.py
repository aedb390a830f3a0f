"""A WebSocket that reconnects after a loss and resumes its session."""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from antiphon.connection.endpoint import close_websocket
from antiphon.errors import AntiphonError
from antiphon.protocol.duplex import continued
from antiphon.protocol.events import ResumeOffer
from antiphon.protocol.fields import Fields

MOST_KEPT: Final = 2 * 1024 * 1024
"""The number of characters of sent messages that are kept, since a resume may have to send them again."""

_LOST: Final = frozenset({None, 1006, 1012, 1013, 1014})
"""The close codes of a lost connection: a missing Close frame, or a gateway's code."""

_BUSY: Final = frozenset({1012, 1013})
"""The close codes with which a server asks the client to wait before it reconnects."""

_TRY_AGAIN: Final = frozenset({"rate_limited", "service_unavailable"})
"""The error codes after which a session can still be resumed."""

_FIRST_DELAY_S: Final = 0.25
_BUSY_DELAY_S: Final = 2.0
_LONGEST_DELAY_S: Final = 5.0
_ANSWER_S: Final = 10.0


class ResumingSocket:
    """The socket of a session: `recv` and `send` as on a WebSocket, across reconnects.

    `reopen` opens another connection to an address. Without a resume offer of the server, or without
    `reopen`, a lost connection ends the session. `on_lost` is called when the connection is lost, and
    `on_resumed` with the number of attempts after a reconnect.
    """

    def __init__(
        self,
        socket: ClientConnection,
        url: str,
        reopen: Callable[[str], Awaitable[ClientConnection]] | None = None,
    ) -> None:
        self.on_lost: Callable[[float], object] = lambda window_s: None
        self.on_resumed: Callable[[int], object] = lambda attempts: None
        self._socket = socket
        self._response = socket.response
        self._url = url
        self._reopen = reopen
        self._offer: ResumeOffer | None = None
        self._events = 0
        """The number of messages that were received."""
        self._sent = 0
        self._kept: deque[tuple[int, str]] = deque()
        """The last messages that were sent, with their numbers."""
        self._kept_size = 0
        self._is_over = False
        self._open = asyncio.Event()
        """An event that is set while a connection is open, and once no further one will be opened."""
        self._open.set()
        self._ending = asyncio.Event()
        self._resuming = asyncio.Lock()

    @property
    def close_code(self) -> int | None:
        """The close code of the last connection, once its Close frame has arrived."""
        code, received = self._socket.close_code, self._socket.protocol.close_rcvd
        return received.code if code is None and received is not None else code

    @property
    def trace_id(self) -> str | None:
        """The trace id that the server named at the first connection."""
        return self._response.headers.get("antiphon-trace-id") if self._response else None

    def offered(self, offer: ResumeOffer | None) -> None:
        """Store the server's offer to resume the session."""
        self._offer = offer if self._reopen is not None else None
        if self._offer is None:
            self._reopen = None
            self._kept.clear()

    async def recv(self) -> str | bytes:
        """Return the next message. Raises `ConnectionClosed`."""
        while True:
            socket = self._socket
            try:
                frame = await socket.recv()
            except ConnectionClosed:
                if not await self._resume(socket):
                    raise
                continue
            self._events += 1
            return frame

    async def send(self, frame: str) -> None:
        """Send a message; wait for the next connection while there is none. Raises `ConnectionClosed`."""
        await self._open.wait()
        self._keep(frame)
        socket = self._socket
        try:
            await socket.send(frame)
        except ConnectionClosed:
            # Resuming sends the kept frame again. A program may send everything before it receives.
            if not await self._resume(socket):
                raise

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._socket.wait_closed()

    async def close(self, code: int) -> None:
        """Close the connection for good."""
        self._end()
        await close_websocket(self._socket, code)

    def abort(self) -> None:
        """Abort the connection for good."""
        self._end()
        self._socket.transport.abort()

    def _end(self) -> None:
        self._is_over = True
        self._ending.set()
        self._open.set()

    def _keep(self, frame: str) -> None:
        self._sent += 1
        if self._reopen is None:
            return
        self._kept.append((self._sent, frame))
        self._kept_size += len(frame)
        while self._kept_size > MOST_KEPT and len(self._kept) > 1:
            self._kept_size -= len(self._kept.popleft()[1])

    def _renumber(self, received: int) -> None:
        """Number the kept messages as the server does: messages that neither side has any more do not count.

        `received` is the number of messages that the server has.
        """
        gone = self._kept[0][0] - 1 - received if self._kept else 0
        if gone > 0:
            self._sent -= gone
            self._kept = deque((number - gone, frame) for number, frame in self._kept)

    # ----------------------------------------------------------------------------------- resuming

    async def _resume(self, lost: ClientConnection) -> bool:
        """Resume over another connection, which one task opens; return False if the session is over."""
        async with self._resuming:
            if self._socket is not lost:
                return True
            self._open.clear()
            try:
                is_open = await self._open_next()
            finally:
                # After a cancellation, the next task that sends or receives resumes.
                self._open.set()
            if not is_open:
                self._end()
            return is_open

    async def _open_next(self) -> bool:
        """Open the next connection; retry for as long as the server waits."""
        code = self._socket.close_code
        if self._offer is None or self._is_over or code not in _LOST:
            return False
        self.on_lost(self._offer.window_s)
        until = time.monotonic() + self._offer.window_s
        delay_s = random.uniform(0.0, _BUSY_DELAY_S if code in _BUSY else _FIRST_DELAY_S)
        attempts = 0
        while time.monotonic() + delay_s < until and not await self._is_ended_within(delay_s):
            attempts += 1
            again_s = await self._unless_ended(self._try())
            if again_s is None:
                return False
            if again_s == 0.0:
                self.on_resumed(attempts)
                return True
            backoff_s = min(_LONGEST_DELAY_S, max(again_s, _FIRST_DELAY_S) * 2 ** (attempts - 1))
            delay_s = backoff_s * random.uniform(0.5, 1.0)
        return False

    async def _is_ended_within(self, seconds: float) -> bool:
        """Wait for `seconds`; return whether this side ended the session meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return False
        return True

    async def _unless_ended(self, attempt: Coroutine[Any, Any, float | None]) -> float | None:
        """Return the result of an attempt, or None if this side ends the session meanwhile."""
        trying, ending = asyncio.create_task(attempt), asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({trying, ending}, return_when=asyncio.FIRST_COMPLETED)
            return trying.result() if trying.done() and not self._is_over else None
        finally:
            trying.cancel()
            ending.cancel()
            await asyncio.gather(trying, ending, return_exceptions=True)

    async def _try(self) -> float | None:
        """Make one attempt.

        Return 0 on success, the delay before the next one, or None if no retry can succeed.
        """
        assert self._offer is not None
        assert self._reopen is not None
        try:
            socket = await self._reopen(_resume_url(self._url, self._offer.token, self._events))
        except AntiphonError as error:
            return _FIRST_DELAY_S if error.retryable else None
        try:
            async with asyncio.timeout(_ANSWER_S):
                fields = Fields.of(await socket.recv())
                if fields.text("type") != "session.resumed":
                    return _BUSY_DELAY_S if _may_try_again(fields) else None
                resumed = continued(fields)
                self._offer = resumed.offer
                self._renumber(resumed.received)
                for number, frame in list(self._kept):
                    if number > resumed.received:
                        await socket.send(frame)
            if self._is_over:
                return None
            self._socket = socket
            return 0.0
        except (ConnectionClosed, TimeoutError):
            return _FIRST_DELAY_S
        except AntiphonError:
            return None
        finally:
            if self._socket is not socket:
                with contextlib.suppress(AttributeError):  # of a transport that has gone by itself
                    socket.transport.abort()


def _may_try_again(fields: Fields) -> bool:
    """Return whether the refusal leaves the token valid: a rate limit, or an unreachable adapter."""
    return not _TRY_AGAIN.isdisjoint((fields.object("error").text("code"), fields.text("code")))


def _resume_url(url: str, token: str, last_event: int) -> str:
    parts = urlsplit(url)
    asked = urlencode({"resume": token, "last_event": last_event})
    return urlunsplit(parts._replace(query=f"{parts.query}&{asked}" if parts.query else asked))
