"""A running conversation asks nothing of the Redis in whose queue it once stood, and that is taken away."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.conftest import Recording, antiphon
from tests.support.long import long
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

PATIENCE_S = 60.0


async def said(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            event: dict[str, Any] = json.loads(await socket.recv())
            assert event["type"] != "error", event
            if event["type"] == kind:
                return event


async def speak(socket: ClientConnection, seconds: list[NDArray[np.float32]]) -> list[dict[str, Any]]:
    """Each second with its answer, before which nothing else is said."""
    answers = []
    for pcm in seconds:
        audio = base64.b64encode(pcm.tobytes()).decode()
        await socket.send(json.dumps({"type": "audio_chunk", "audio_base64": audio}))
        answers.append(await said(socket, "result"))
    return answers


@long
async def test_conversation_goes_on_while_redis_hangs_and_after_it_was_killed(
    redis_server: RedisServer, recordings: list[Recording]
) -> None:
    joke = next(recording for recording in recordings if recording.name == "joke")
    seconds = joke.units(silence=6)
    third = len(seconds) // 3
    shared = ("--dispatcher", redis_server.url)
    with (
        antiphon("worker", "--listen", "127.0.0.1:0", "--slots", "1", *shared),
        antiphon("adapter", "--port", "0", *ADAPTER_OPTIONS, *shared) as adapter,
    ):
        async with connect(adapter.address.replace("http", "ws") + "/ws/duplex/adx_talk") as socket:
            await said(socket, "queue_done")
            await socket.send(json.dumps({"type": "prepare"}))
            await said(socket, "prepared")
            answers = await speak(socket, seconds[:third])
            redis_server.pause()
            try:
                answers += await speak(socket, seconds[third : 2 * third])
            finally:
                redis_server.resume()
            redis_server.stop()
            answers += await speak(socket, seconds[2 * third :])

    assert len(answers) == len(seconds)
    assert not any(answer.get("dropped") for answer in answers)
    assert any(not answer["is_listen"] for answer in answers), "the joke was told"
