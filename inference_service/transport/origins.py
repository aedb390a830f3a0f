"""Where callers come from, and what all that come from there may take together."""

import asyncio
import socket
import struct
from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

from antiphon.network import counted_as, plain
from inference_service.transport.budget import Budget

MOST_ENTERING: Final = 16
"""Handshakes of one origin under way at once, at 0.3 to 1.5 ms each. Its others wait for their turn."""

REMEMBERED: Final = 10_000
"""Those who have not come for the longest are forgotten first, whose budgets are full again by then."""

_CREDENTIALS: Final = struct.Struct("3i")


class Origin:
    """What the connections of one address have in common; see `name_of`."""

    def __init__(self, name: str, budget: Budget) -> None:
        self.name = name
        self.budget = budget
        self.turns = asyncio.Semaphore(MOST_ENTERING)
        """One for each handshake."""


class Origins:
    """All that are known."""

    def __init__(self, most_calls: int) -> None:
        """Each may have all the calls that a connection may have."""
        self._most_calls = most_calls
        self._known: OrderedDict[str, Origin] = OrderedDict()

    def of(self, sock: socket.socket, now: float) -> Origin:
        """Where an accepted socket comes from. Raises `OSError` if whoever it was has gone again."""
        name = name_of(sock)
        if name not in self._known:
            self._known[name] = Origin(name, Budget(self._most_calls, now))
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return self._known[name]


def name_of(sock: socket.socket) -> str:
    """The address of the other end of `sock`, as it is counted. Raises `OSError` if it has none any more.

    On a Unix socket that is the process that has dialled: so nobody who may use the socket hurts an adapter
    beside them. Processes that this one cannot see, those of other containers, are one.
    """
    if sock.family == socket.AF_UNIX:
        seen = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return f"process {_CREDENTIALS.unpack(seen)[0]}"
    return counted_as(plain(ip_address(sock.getpeername()[0].partition("%")[0])))
