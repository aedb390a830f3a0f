"""A relay between a client and a JSON worker that parses and serialises every message.

A typical realtime gateway works like this: one WebSocket to the client, one to the worker, and `json` of the
standard library on both. Audio stays in base64. The relay adds fields such as the session id.

Start `python -m benchmarks.adapter.relay worker`, then
`python -m benchmarks.adapter.relay <port of the worker>`.
"""

import asyncio
import json
import secrets
import sys
import time

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.load import payload

_PREPARED = '{"type":"prepared","session_id":"","prompt_length":58}'


async def answer(connection: ServerConnection) -> None:
    """Run the worker: open a session, then answer each unit with a second of speech, without parsing it."""
    await connection.recv()
    await connection.send(_PREPARED)
    while True:
        await connection.recv(decode=False)
        await connection.send(payload.RESULT, text=True)


class Relay:
    """One conversation between a client and the worker at `port`."""

    def __init__(self, client: ServerConnection, port: int) -> None:
        self._client = client
        self._port = port
        self._session_id = f"sess_{secrets.token_hex(6)}"
        self._number = 0

    async def run(self) -> None:
        """Relay in both directions until one side disconnects."""
        async with connect(f"ws://127.0.0.1:{self._port}", compression=None, max_size=None) as worker:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._to_worker(worker))
                group.create_task(self._to_client(worker))

    async def _to_worker(self, worker: ClientConnection) -> None:
        while True:
            event = json.loads(await self._client.recv())
            message = {"type": event["type"], "session_id": self._session_id}
            if event["type"] == "audio_chunk":
                self._number += 1
                message |= {"audio": event["audio_base64"], "seq": self._number}
            await worker.send(json.dumps(message))

    async def _to_client(self, worker: ClientConnection) -> None:
        while True:
            message = json.loads(await worker.recv())
            message["session_id"] = self._session_id
            message["server_send_ts"] = time.time()
            await self._client.send(json.dumps(message))


async def main(argument: str) -> None:
    """Serve until killed."""
    handler = answer if argument == "worker" else lambda client: Relay(client, int(argument)).run()
    server = await serve(handler, "127.0.0.1", 0, compression=None, max_size=None)
    print(f"ready on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
