"""Keeps gRPC able to wake the event loop when a lot happens at once.

The poller thread of `grpc.aio` writes one byte to a socket pair for each event; the loop reads one byte in
each of its turns, and handles every event that has come. So bytes are left over whenever several events come
in a turn. At about 280 of them the socket pair is full and the poller blocks, until three quarters are read:
for 200 turns nothing comes from any worker, while each turn reads every public socket.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

_PLENTY: Final = 4096


@contextmanager
def unclogged(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The first channel of `loop` is to be made within: then each turn empties gRPC's socket pair."""
    add_reader = loop.add_reader

    def watch(source: Any, callback: Callable[..., Any], *arguments: Any) -> None:
        if isinstance(source, socket.socket) and _is_grpc(callback):
            add_reader(source, _wake, source, callback)
        else:
            add_reader(source, callback, *arguments)

    loop.add_reader = watch  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del loop.add_reader  # the method of its class is back


def _is_grpc(callback: Callable[..., Any]) -> bool:
    owner = getattr(callback.func, "__self__", None) if isinstance(callback, partial) else None
    return type(owner).__module__.startswith("grpc.")


def _wake(source: socket.socket, handle_events: Callable[[], None]) -> None:
    # An event is queued before its byte is written: those whose bytes are read here are handled here.
    with suppress(BlockingIOError):
        source.recv(_PLENTY)
    try:
        handle_events()
    except Exception:
        # It gives up at an event of a loop that is closed; there are no bytes left for those behind it.
        asyncio.get_running_loop().call_soon(_wake, source, handle_events)
        raise
