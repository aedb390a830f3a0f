"""Names of `websockets` that the adapter relies on and that the library does not document.

The adapter is imported nowhere here: a release without one of the names is to fail with one sentence.
"""

from importlib.metadata import version

import websockets.frames
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

OF_A_CONNECTION = ("drain", "loop", "protocol", "transport")
OF_ITS_PROTOCOL = ("close_rcvd", "close_sent", "max_message_size")
OF_FRAMES = ("apply_mask",)


async def test_undocumented_names_of_websockets_are_there() -> None:
    missing: list[str] = []

    async def look(connection: ServerConnection) -> None:
        missing.extend(name for name in OF_A_CONNECTION if not hasattr(connection, name))
        missing.extend(
            f"protocol.{name}" for name in OF_ITS_PROTOCOL if not hasattr(connection.protocol, name)
        )
        missing.extend(f"frames.{name}" for name in OF_FRAMES if not hasattr(websockets.frames, name))
        await connection.send("looked")

    async with serve(look, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as client:
            assert await client.recv() == "looked"

    assert not missing, (
        f"websockets {version('websockets')} lacks {', '.join(missing)}, on which ws_adapter.web.websocket "
        "relies: keep the bound in pyproject.toml below it until that module does without"
    )
