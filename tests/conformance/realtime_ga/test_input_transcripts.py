"""The words of the user in OpenAI's Realtime: the checkpoint of the package and OpenAI's SDK for Python."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from antiphon.audio.wav import read_wav
from clients.recordings import make
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

RECORDINGS = Path(make.__file__).parent
RATE = 24_000
PIECE = RATE // 10 * 2
"""Bytes of 100 ms."""
KIND = "conversation.item.input_audio_transcription"
TRANSCRIPTION = {"model": "gpt-4o-mini-transcribe", "language": "en"}
_EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


class Talk:
    """A connection of the SDK; every event has to be of the types that it was generated from."""

    def __init__(self, connection: Any) -> None:
        self.sdk = connection
        self.events: list[Any] = []

    async def next(self) -> Any:
        frame = await self.sdk.recv_bytes()
        _EVENTS.validate_json(frame)
        event = self.sdk.parse_event(frame)
        assert event.type != "error", event.error
        assert event.type != f"{KIND}.failed", event.error
        self.events.append(event)
        return event

    async def until_told(self, *kinds: str) -> None:
        """Reads until each of these types has come."""
        while not set(kinds) <= {event.type for event in self.events}:
            await self.next()

    def of(self, kind: str) -> Sequence[Any]:
        return [event for event in self.events if event.type == kind]

    async def say(self, name: str, silence_s: float = 0.0) -> None:
        """A recording, and silence behind it."""
        said = read_wav(RECORDINGS / f"{name}.wav").astype(np.float32)
        samples = soxr.resample(np.concatenate([said, np.zeros(round(silence_s * 16_000))]), 16_000, RATE)
        data = (samples * 32_767).astype("<i2").tobytes()
        for at in range(0, len(data), PIECE):
            audio = base64.b64encode(data[at : at + PIECE]).decode()
            await self.sdk.input_audio_buffer.append(audio=audio)


@asynccontextmanager
async def talking(stack: Stack, turn_detection: Any) -> AsyncIterator[Talk]:
    """A conversation whose user's words are asked for."""
    client = AsyncOpenAI(api_key="none", base_url=f"{stack.address}/v1")
    async with asyncio.timeout(PATIENCE_S), client.realtime.connect(model="antiphon-mini") as connection:
        talk = Talk(connection)
        heard: Any = {"transcription": TRANSCRIPTION, "turn_detection": turn_detection}
        await connection.session.update(session={"type": "realtime", "audio": {"input": heard}})
        await talk.until_told("session.updated")
        assert talk.events[-1].session.audio.input.transcription.model == "gpt-4o-mini-transcribe"
        yield talk


def check(talk: Talk) -> str:
    """The words of the question came in pieces and whole, for the item that was committed."""
    (completed,), (committed,) = talk.of(f"{KIND}.completed"), talk.of("input_audio_buffer.committed")
    deltas = talk.of(f"{KIND}.delta")
    assert completed.item_id == committed.item_id
    assert {delta.item_id for delta in deltas} == {committed.item_id}
    assert "".join(delta.delta for delta in deltas) == completed.transcript
    assert {"count", "eight"} <= set(completed.transcript.split())
    assert completed.usage.type == "duration"
    assert completed.usage.seconds > 1.0
    return str(completed.transcript)


async def test_transcript_of_a_turn_that_the_client_commits_is_completed_and_retrieved(
    shipped: Stack,
) -> None:
    async with talking(shipped, None) as talk:
        await talk.say("counting")
        await talk.sdk.input_audio_buffer.commit()
        await talk.sdk.response.create()
        await talk.until_told(f"{KIND}.completed", "response.done")
        transcript = check(talk)
        await talk.sdk.conversation.item.retrieve(item_id=talk.of(f"{KIND}.completed")[0].item_id)
        await talk.until_told("conversation.item.retrieved")

    assert talk.events[-1].item.content[0].transcript == transcript
    (done,) = talk.of("response.done")
    assert done.response.status == "completed"


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
@pytest.mark.sample("semantic_vad")
async def test_transcript_of_a_turn_that_is_detected_is_completed(shipped: Stack, kind: str) -> None:
    async with talking(shipped, {"type": kind}) as talk:
        await talk.say("counting", silence_s=2.0)
        await talk.until_told(f"{KIND}.completed", "response.done")

    check(talk)
    (started,) = talk.of("input_audio_buffer.speech_started")
    assert started.item_id == talk.of(f"{KIND}.completed")[0].item_id


async def test_no_transcript_comes_unless_it_is_asked_for(shipped: Stack) -> None:
    client = AsyncOpenAI(api_key="none", base_url=f"{shipped.address}/v1")
    async with asyncio.timeout(PATIENCE_S), client.realtime.connect(model="antiphon-mini") as connection:
        talk = Talk(connection)
        await talk.say("counting", silence_s=1.0)
        await talk.until_told("response.done")

    assert not [event for event in talk.events if event.type.startswith(KIND)]
