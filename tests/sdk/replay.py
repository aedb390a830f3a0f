"""A scripted WebSocket server, for cases that a correct server does not produce."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from websockets.asyncio.server import Request, Response, ServerConnection, serve

from tests.support.schemas import check_client, check_server

CREATED = {
    "type": "session.created",
    "session_id": "sess_0123456789ab",
    "mode": "full_duplex",
    "metrics": {"prompt_length": 12},
    "usage": {
        "total_tokens": 12,
        "input_tokens": 12,
        "output_tokens": 0,
        "input_token_details": {"text_tokens": 12, "audio_tokens": 0, "vision_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"text_tokens": 0, "audio_tokens": 0},
    },
    "server_send_ts": 1795159650.25,
}
QUEUE_DONE = {"type": "session.queue_done"}
CLOSED = {"type": "session.closed", "session_id": "sess_0123456789ab", "reason": "user_stop"}
for proper in (CREATED, QUEUE_DONE, CLOSED):
    check_server("realtime", proper)


_DIALECTS = {"/v1/realtime": "realtime", "/v1/transcription": "transcription", "/ws/chat": "chat"}

MODELS = {
    "object": "list",
    "data": [{"id": "antiphon-mini", "object": "model", "created": 0, "owned_by": "a"}],
}


class Peer:
    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        assert socket.request is not None
        self.path, _, _ = socket.request.path.partition("?")

    async def send(self, *events: dict[str, object]) -> None:
        for event in events:
            await self.socket.send(json.dumps(event))

    async def receive(self, expected_type: str) -> dict[str, object]:
        event = await self._next()
        assert event["type"] == expected_type, event
        return event

    async def _next(self) -> dict[str, object]:
        event: dict[str, object] = json.loads(await self.socket.recv())
        check_client(_DIALECTS[self.path], event)
        return event

    async def request(self) -> dict[str, object]:
        """The client's next event, whatever its type."""
        return await self._next()

    async def begin(self) -> dict[str, object]:
        """Plays the opening; returns the client's `session.init`."""
        await self.send(QUEUE_DONE)
        init = await self.receive("session.init")
        await self.send(CREATED)
        return init

    async def end(self) -> None:
        """Answers the client's `session.close`, whatever came before it."""
        while (await self._next())["type"] != "session.close":
            pass
        await self.send(CLOSED)


@asynccontextmanager
async def replay(
    script: Callable[[Peer], Awaitable[None]],
    headers: dict[str, str] | None = None,
    max_message_bytes: int = 2**25,
) -> AsyncIterator[str]:
    """Runs `script` for each client and then closes its socket; yields the server's address."""

    async def play(socket: ServerConnection) -> None:
        await script(Peer(socket))

    def add_headers(_socket: ServerConnection, _request: object, response: object) -> None:
        response.headers.update(headers or {})  # type: ignore[attr-defined]

    def answer_page(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(200, json.dumps(MODELS)) if request.path == "/v1/models" else None

    async with serve(
        play,
        "127.0.0.1",
        0,
        process_request=answer_page,
        process_response=add_headers,
        close_timeout=0.2,
        max_size=max_message_bytes,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}"
