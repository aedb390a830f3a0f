"""What is written to a transport, gathered so that it leaves in few system calls."""

import asyncio
from typing import Final

from ws_adapter.process.byte_count import ByteCount

_FLUSH: Final = 2**16
"""Bytes that do not wait for more."""


class Outlet:
    """Writes in each turn of the event loop what was put into it, between `open` and `close`."""

    def __init__(self, byte_count: ByteCount) -> None:
        """What is written is counted in `byte_count`."""
        self._loop = asyncio.get_running_loop()
        self._byte_count = byte_count
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._is_flush_due = False

    def open(self, transport: asyncio.Transport) -> None:
        """From now on it is written to `transport`."""
        self._transport = transport

    def close(self) -> None:
        """Writes what is left, and nothing after it."""
        self.flush()
        self._transport = None

    def put(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Writes both soon; `data` must stay as it is."""
        self._parts += head, data
        self._size += len(head) + len(data)
        if self._size >= _FLUSH:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_due)

    def flush(self) -> None:
        """Writes what there is at once."""
        parts, size, self._parts, self._size = self._parts, self._size, [], 0
        if parts and self._transport is not None:
            self._byte_count.sent += size
            self._transport.write(b"".join(parts))  # as `writelines` should: see docs/decisions.md

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self.flush()
