"""`/v1/realtime?intent=transcription` with the official client, in front of the shipped model."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.conformance.support.recordings import pcm16, recording
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

RATE = 24_000
COMPLETED = "conversation.item.input_audio_transcription.completed"


@asynccontextmanager
async def connected(stack: Stack, **heard: Any) -> AsyncIterator[AsyncRealtimeConnection]:
    """A session in which words are awaited."""
    client = AsyncOpenAI(base_url=f"{stack.address}/v1", api_key="none")
    audio = {"input": {"transcription": {"model": "antiphon-mini"}, **heard}}
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        async with asyncio.timeout(PATIENCE_S):
            assert (await connection.recv()).type == "session.created"
            await connection.session.update(session={"type": "transcription", "audio": audio})
            assert (await connection.recv()).type == "session.updated"
            yield connection


async def say(connection: AsyncRealtimeConnection, name: str, silence_s: float = 0.0) -> None:
    """A recording in pieces of 100 ms, as fast as they go."""
    data = pcm16(recording(name, RATE, silence_s))
    for at in range(0, len(data), RATE // 5):
        audio = base64.b64encode(data[at : at + RATE // 5]).decode()
        await connection.input_audio_buffer.append(audio=audio)


async def until(connection: AsyncRealtimeConnection, name: str) -> list[Any]:
    """Events up to one of this type."""
    events = [await connection.recv()]
    while events[-1].type != name:
        assert events[-1].type != "error", events[-1]
        events.append(await connection.recv())
    return events


async def test_audio_committed_by_client_is_transcribed(shipped: Stack) -> None:
    async with connected(shipped, turn_detection=None) as connection:
        await say(connection, "counting")
        await connection.input_audio_buffer.commit()

        events = await until(connection, COMPLETED)

        assert [event.type for event in events[:3]] == [
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
        ]
        assert "count" in events[-1].transcript.lower()
        assert "".join(event.delta for event in events if event.type.endswith(".delta")) == (
            events[-1].transcript
        )
        assert events[-1].item_id == events[0].item_id
        assert events[-1].usage.seconds > 2


async def test_speech_detected_by_server_vad_is_transcribed(shipped: Stack) -> None:
    async with connected(shipped, turn_detection={"type": "server_vad"}) as connection:
        await say(connection, "counting", silence_s=1.0)

        events = await until(connection, COMPLETED)

        assert [event.type for event in events[:3]] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
        ]
        assert len({event.item_id for event in (*events[:3], events[-1])}) == 1
        assert 700 <= events[0].audio_start_ms <= 1100
        assert "count" in events[-1].transcript.lower()


async def test_a_client_secret_for_transcription_opens_that(shipped: Stack) -> None:
    server = AsyncOpenAI(base_url=f"{shipped.address}/v1", api_key="none")
    heard: Any = {"transcription": {"model": "antiphon-mini"}, "turn_detection": None}
    secret = await server.realtime.client_secrets.create(
        session={"type": "transcription", "audio": {"input": heard}}
    )
    assert secret.session.type == "transcription"
    assert secret.session.audio is not None

    browser = AsyncOpenAI(base_url=f"{shipped.address}/v1", api_key=secret.value)
    async with asyncio.timeout(PATIENCE_S), browser.realtime.connect() as connection:
        created: Any = await connection.recv()
        await say(connection, "counting")
        await connection.input_audio_buffer.commit()
        events = await until(connection, COMPLETED)

    assert created.session.type == "transcription"
    assert created.session.audio.input.transcription.model == "antiphon-mini"
    assert created.session.audio.input.turn_detection is None
    assert "count" in events[-1].transcript.lower()
