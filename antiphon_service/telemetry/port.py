"""An operator's port: plain HTTP for a few pages, separate from the clients' port."""

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
"""The content security policy of the status page, which has no scripts and loads nothing."""

OPEN_TIMEOUT_S: Final = 5.0
"""The longest time in seconds for a request to arrive."""

NOWHERE: Final = "0.0.0.0"


def stop_listening(server: asyncio.Server | Server) -> None:
    """Stop a server from accepting connections, while the accepted ones go on as before.

    `Server.close` would reject the connections whose handshake is not over.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
        listener.shutdown(socket.SHUT_RDWR)
