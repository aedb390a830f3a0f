"""The factory of channels to workers."""

from collections.abc import Callable
from typing import TypeAlias

from ws_adapter.process.byte_count import ByteCount
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.tls import WorkerTls

Dial: TypeAlias = Callable[[str, Callable[[], None]], Channel]
"""A function that makes a channel to a target; its callback is called when a connection is lost."""


def dialler(tls: WorkerTls | None = None, byte_count: ByteCount | None = None) -> Dial:
    """Return a function that makes channels, with `tls` except to Unix sockets.

    `byte_count` counts the bytes of all messages.
    """
    counted = byte_count or ByteCount()
    return lambda target, on_lost: Channel(target, on_lost, counted, tls)
