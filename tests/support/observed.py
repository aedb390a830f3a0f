"""Checks everything that WebSocket clients of this process exchange against the published schemas."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection

from tests.support.schemas import Observer


@contextmanager
def observed() -> Iterator[None]:
    """Fails at the end of the block if an event was not of its dialect, also if nobody noticed it before."""
    observers: dict[ClientConnection, Observer] = {}
    faults: list[str] = []
    recv, send = ClientConnection.recv, ClientConnection.send

    def observer(connection: ClientConnection) -> Observer:
        if connection not in observers:
            assert connection.request is not None
            observers[connection] = Observer(connection.request.path)
        return observers[connection]

    async def watched_recv(self: ClientConnection, *arguments: Any, **options: Any) -> Any:
        frame = await recv(self, *arguments, **options)
        try:
            observer(self).server_said(json.loads(frame))
        except AssertionError as fault:
            faults.append(str(fault))
        return frame

    async def watched_send(self: ClientConnection, message: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(message, str):
            observer(self).client_said(json.loads(message))
        await send(self, message, *arguments, **options)

    ClientConnection.recv, ClientConnection.send = watched_recv, watched_send  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientConnection.recv, ClientConnection.send = recv, send  # type: ignore[method-assign]
    for one in list(observers.values()):
        try:
            one.end()
        except AssertionError as fault:
            faults.append(str(fault))
    assert not faults, faults[:5]
