"""Common parts of the administration ports: plain HTTP pages, separate from the clients' port."""

import asyncio
import socket
from typing import Final

from websockets.asyncio.server import Server

READ_METHODS: Final = ("GET", "HEAD")
"""The HTTP methods that every page allows."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)
"""The content security policy of the status page, which has no scripts and loads nothing."""

OPEN_TIMEOUT_S: Final = 5.0
"""The longest time in seconds for a request to arrive."""

UNKNOWN_ADDRESS: Final = "0.0.0.0"
"""The address of a client whose socket has no peer address, for example a closed one."""


def stop_listening(server: asyncio.Server | Server) -> None:
    """Stop a server from accepting connections; the accepted ones stay open.

    `Server.close` would also reject connections whose handshake is not complete.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
        listener.shutdown(socket.SHUT_RDWR)
