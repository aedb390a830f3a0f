"""The way in: `antiphon.connect`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from antiphon.duplex import DuplexSession
from antiphon.endpoint import endpoint
from antiphon.events import Queued
from antiphon.wire import DuplexConfig


def connect(url: str, api_key: str | None = None) -> "Client":
    """A client of the server at `url`, for example `ws://localhost:8006`; use it with `async with`.

    Nothing is sent yet: each conversation opens a WebSocket of its own. Raises `ConnectError` if `url` is no
    address.
    """
    return Client(url, api_key)


class Client:
    """Opens conversations with one server."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._duplex_url = endpoint(url, mode="audio")
        self._api_key = api_key
        self._sessions: set[DuplexSession] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes conversations that another task still holds open."""
        for session in list(self._sessions):
            await session.close()

    @asynccontextmanager
    async def duplex(
        self,
        instructions: str | None = None,
        *,
        config: DuplexConfig | None = None,
        on_queue: Callable[[Queued], object] | None = None,
        seed: int | None = None,
    ) -> AsyncIterator[DuplexSession]:
        """Opens a full-duplex conversation: both sides may speak at any time.

        `instructions` is the system prompt, `config` what differs from the model's defaults, and `seed`
        makes the answers repeatable on one server. `on_queue` is called with a `Queued` when no slot is
        free, and every few seconds until one is. Leaving the block ends the conversation and waits at most 2
        s for the server to confirm.

        Raises `ConnectError`, `QueueFull`, `AuthError`, or `ProtocolError` if the settings are refused.
        """
        session = await DuplexSession.open(
            self._duplex_url, self._api_key, instructions, config, seed, on_queue
        )
        self._sessions.add(session)
        try:
            yield session
        finally:
            self._sessions.discard(session)
            await session.close()
