"""The port of an operator: plain HTTP for a few pages, apart from what clients use."""

import asyncio
import socket
from typing import Final

from websockets.asyncio.server import Server

READING: Final = ("GET", "HEAD")
"""The methods of a page."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)
"""The status page has neither scripts nor anything that is loaded."""

OPEN_TIMEOUT_S: Final = 5.0
"""Longest that a request may take to come in."""

NOWHERE: Final = "0.0.0.0"


def stop_listening(server: asyncio.Server | Server) -> None:
    """Have a server accept nobody any more, while all that it has accepted goes on as before.

    `Server.close` would turn those away whose handshake is not over.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
        listener.shutdown(socket.SHUT_RDWR)
