"""Where callers come in: who may, and who has to leave for it."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from h2.exceptions import ProtocolError

from antiphon.http2.connection import ConnectionBroken
from inference_service.transport.budget import ARRIVAL, HANDSHAKE
from inference_service.transport.call import Call
from inference_service.transport.connection import CallerConnection
from inference_service.transport.origins import Origin, Origins

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 512
"""Those in the handshake too. Beyond them one that has no session is closed for each that comes."""

SILENCE_S: Final = 10.0
"""From one line of the log about who is turned away or hung up on to the next."""

_BACKLOG: Final = 256
_AT_ONCE: Final = 32
"""Callers taken in before others have their turn."""
_PAUSE_S: Final = 1.0
"""Without anybody coming in, when the system has no descriptor for them."""


class Door:
    """Takes callers in, as far as there is room and where they come from may still spend something."""

    def __init__(self, most_calls: int, on_call: Callable[[Call], None], tls: ssl.SSLContext | None) -> None:
        """Each connection may have `most_calls` open, and is behind `tls` if that is given."""
        self.connections: dict[CallerConnection, None] = {}
        """The oldest first."""
        self._loop: asyncio.AbstractEventLoop
        self._most_calls = most_calls
        self._on_call = on_call
        self._tls = tls
        self._price = ARRIVAL if tls is None else ARRIVAL + HANDSHAKE
        self._origins = Origins(most_calls)
        self._sockets: list[socket.socket] = []
        self._left = asyncio.Event()
        self._unwelcome = 0
        self._silent_until = 0.0

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Listens on bound `sockets`. Raises `OSError` if another one does already."""
        self._loop = asyncio.get_running_loop()
        for sock in sockets:
            self._sockets.append(sock)
            sock.setblocking(False)
            sock.listen(_BACKLOG)
            self._accept_from(sock)

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return bool(self._sockets)

    def shut(self) -> None:
        """Takes nobody in any more."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()

    async def all_gone(self) -> None:
        """Waits until there is no connection."""
        while self.connections:
            self._left.clear()
            await self._left.wait()

    def _accept_from(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("nobody comes in for %g s: %s", _PAUSE_S, error.strerror)
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE_S, self._accept_from, listener)
                return
            self._take_in(sock)

    def _take_in(self, sock: socket.socket) -> None:
        now = self._loop.time()
        try:
            origin = self._origins.of(sock, now)
        except OSError:
            sock.close()
            return
        if not origin.budget.spend(self._price, now):
            self._turn_away(sock, f"{origin.name} comes too often or floods us")
        elif not self._make_room(origin):
            self._turn_away(sock, f"there are {MOST_CONNECTIONS} connections with sessions")
        else:
            connection = CallerConnection(sock, origin, self._most_calls, self._on_call, self._lost)
            self.connections[connection] = None
            connection.enter(self._tls)

    def _turn_away(self, sock: socket.socket, why: str) -> None:
        sock.close()
        self._complain(why)

    def _complain(self, why: str) -> None:
        """Seldom: a flood would fill the log."""
        self._unwelcome += 1
        if (now := self._loop.time()) >= self._silent_until:
            logger.warning("callers are turned away or hung up on, %d by now: %s", self._unwelcome, why)
            self._silent_until = now + SILENCE_S

    def _make_room(self, origin: Origin) -> bool:
        """Whether there is room for a caller of `origin`, or has been made.

        Who goes has no session, and is of the origin that has most such connections, this caller's among
        them: who floods us pushes out their own. One without a call goes first, then the oldest.
        """
        if len(self.connections) < MOST_CONNECTIONS:
            return True
        minor = [each for each in self.connections if each.is_minor]
        if not minor:
            return False
        crowd = Counter(each.origin.name for each in minor)
        crowd[origin.name] += 1
        other = min(minor, key=lambda each: (-crowd[each.origin.name], not each.is_idle))
        del self.connections[other]
        other.abort()
        return True

    def _lost(self, connection: CallerConnection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            if isinstance(why := connection.lost_by, ConnectionBroken | ProtocolError):
                self._complain(f"{connection.origin.name}: {why}")
        if not self.connections:
            self._left.set()
