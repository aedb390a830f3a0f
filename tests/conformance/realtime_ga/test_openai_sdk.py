"""Conversations over `/v1/realtime?model=`: the checkpoint of the package and OpenAI's own SDK for Python."""

import asyncio
import base64
import json
import re
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.conformance.support.recordings import pcm16, recording
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

PAGE = Path(__file__).parents[3] / "docs/realtime.md"
MODEL = "antiphon-mini"
HERE = "http://localhost:8006"
RATE_HZ = 24_000
PIECE = RATE_HZ * 2 // 10
"""Bytes of a tenth of a second."""

_EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)


def question(name: str, silence_s: float = 0.0) -> bytes:
    """A recording at 24 kHz, and silence behind it."""
    return pcm16(recording(name, RATE_HZ, silence_s))


class Conversation:
    """A connection of the SDK; every event has to be of the types that it was generated from."""

    def __init__(self, connection: Any) -> None:
        self.sdk = connection
        self.events: list[Any] = []
        self.frames: list[Any] = []

    async def next(self) -> Any:
        frame = await self.sdk.recv_bytes()
        self.frames.append(json.loads(frame))
        _EVENTS.validate_python(self.frames[-1])
        event = self.sdk.parse_event(frame)
        assert event.type != "error", event.error
        self.events.append(event)
        return event

    async def until(self, *kinds: str) -> Any:
        """Reads up to an event of one of these types."""
        while (event := await self.next()).type not in kinds:
            pass
        return event

    async def update(self, **session: Any) -> Any:
        """Changes the session, and returns it."""
        await self.sdk.session.update(session={"type": "realtime", **session})
        return (await self.until("session.updated")).session

    async def type(self, text: str) -> None:
        """Adds what the user writes."""
        content = [{"type": "input_text", "text": text}]
        item: Any = {"type": "message", "role": "user", "content": content}
        await self.sdk.conversation.item.create(item=item)

    async def say(self, pcm: bytes) -> None:
        """Adds what the user says."""
        for at in range(0, len(pcm), PIECE):
            audio = base64.b64encode(pcm[at : at + PIECE]).decode()
            await self.sdk.input_audio_buffer.append(audio=audio)

    def of(self, kind: str) -> Sequence[Any]:
        """All events of a type, so far."""
        return [event for event in self.events if event.type == kind]


@asynccontextmanager
async def conversation(stack: Stack, key: str = "none", model: str = MODEL) -> AsyncIterator[Conversation]:
    client = AsyncOpenAI(api_key=key, base_url=f"{stack.address}/v1")
    async with asyncio.timeout(PATIENCE_S), client.realtime.connect(model=model) as connection:
        talk = Conversation(connection)
        assert (await talk.next()).type == "session.created"
        yield talk


MANUAL = {"input": {"turn_detection": None}}


def test_models_are_listed_as_openai_lists_them(shipped: Stack) -> None:
    client = OpenAI(api_key="none", base_url=f"{shipped.address}/v1")

    (model,) = client.models.list()

    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "antiphon")
    assert model.created > 0


async def test_a_typed_question_is_answered_in_writing(shipped: Stack) -> None:
    async with conversation(shipped) as talk:
        session = await talk.update(output_modalities=["text"], audio=MANUAL)
        assert session.audio.input.turn_detection is None
        await talk.type("what is your name")
        await talk.sdk.response.create()
        done = (await talk.until("response.done")).response

    for frame in talk.frames:
        if frame["type"] in ("response.created", "response.done"):
            # Trap 4: of a client in use a key that is missing ends the reader.
            assert {"status_details", "metadata", "usage", "conversation_id"} <= frame["response"].keys()
    assert done.status == "completed"
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    text = "".join(event.delta for event in talk.of("response.output_text.delta"))
    assert text == done.output[0].content[0].text
    assert "antiphon" in text


async def test_a_spoken_question_is_answered_aloud(shipped: Stack) -> None:
    async with conversation(shipped) as talk:
        await talk.update(audio=MANUAL)
        await talk.say(question("name"))
        await talk.sdk.input_audio_buffer.commit()
        await talk.sdk.response.create()
        done = (await talk.until("response.done")).response

    transcript = "".join(event.delta for event in talk.of("response.output_audio_transcript.delta"))
    assert transcript == done.output[0].content[0].transcript
    assert transcript
    heard = b"".join(base64.b64decode(event.delta) for event in talk.of("response.output_audio.delta"))
    samples = np.frombuffer(heard, "<i2") / 32_768
    assert samples.size > RATE_HZ // 2
    assert np.sqrt(np.mean(np.square(samples))) > 0.01


async def test_server_vad_hears_when_the_question_is_over(shipped: Stack) -> None:
    """Trap 6: what began to be said, what was committed and the item are one."""
    async with conversation(shipped) as talk:
        await talk.say(question("name", silence_s=1.0))
        done = (await talk.until("response.done")).response

    (started,) = talk.of("input_audio_buffer.speech_started")
    (stopped,) = talk.of("input_audio_buffer.speech_stopped")
    (committed,) = talk.of("input_audio_buffer.committed")
    assert started.item_id == stopped.item_id == committed.item_id
    assert talk.of("conversation.item.added")[0].item.id == committed.item_id
    assert started.audio_start_ms < stopped.audio_end_ms
    assert done.output[0].content[0].transcript
    assert not [event for event in talk.events if "input_audio_transcription" in event.type]


async def test_answer_after_barge_in_is_truncated_at_played_position(shipped: Stack) -> None:
    """Trap 9: truncate, while it is told or when it is told whole; then retrieve tells what is left."""
    async with conversation(shipped) as talk:
        await talk.say(question("counting", silence_s=1.0))
        await talk.until("response.output_audio.delta")
        await talk.say(question("stop", silence_s=1.0))
        done = (await talk.until("response.done")).response
        (item,) = done.output
        await talk.sdk.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=100)
        cut = await talk.until("conversation.item.truncated")
        await talk.sdk.conversation.item.retrieve(item_id=item.id)
        left = (await talk.until("conversation.item.retrieved")).item

    assert (cut.item_id, cut.content_index, cut.audio_end_ms) == (item.id, 0, 100)
    # How far the answer was told when the user was heard is the machine's affair.
    assert done.status in ("completed", "cancelled")
    if done.status == "cancelled":
        assert done.status_details.reason == "turn_detected"
        assert item.status == "incomplete"
    assert left.id == item.id
    assert len(left.content[0].transcript or "") < len("one two three")


async def test_a_client_secret_opens_a_session_with_its_settings(shipped: Stack) -> None:
    server = AsyncOpenAI(api_key="none", base_url=f"{shipped.address}/v1")
    session: Any = {
        "type": "realtime",
        "model": MODEL,
        "instructions": "Be kind.",
        "output_modalities": ["text"],
    }
    secret = await server.realtime.client_secrets.create(
        session=session, expires_after={"anchor": "created_at", "seconds": 60}
    )
    assert secret.session.instructions == "Be kind."

    async with conversation(shipped, secret.value) as talk:
        opened = talk.events[0].session
        await talk.type("what is your name")
        await talk.sdk.response.create()
        done = (await talk.until("response.done")).response

    assert (opened.instructions, opened.output_modalities) == ("Be kind.", ["text"])
    assert "antiphon" in done.output[0].content[0].text


def test_the_client_for_programs_that_wait_is_served_too(shipped: Stack) -> None:
    client = OpenAI(api_key="none", base_url=f"{shipped.address}/v1")
    told = []

    with client.realtime.connect(model=MODEL) as connection:
        connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["text"],
                "audio": {"input": {"turn_detection": None}},
            }
        )
        content: Any = [{"type": "input_text", "text": "what is your name"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create()
        while not told or told[-1].type != "response.done":
            told.append(connection.recv())

    assert "error" not in {event.type for event in told}
    assert "antiphon" in told[-1].response.output[0].content[0].text


def test_the_example_of_the_page_runs(shipped: Stack, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert HERE in example

    done = subprocess.run(
        [sys.executable, "-c", example.replace(HERE, shipped.address)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=tmp_path,
    )

    assert (done.returncode, done.stdout) == (0, "my name is antiphon"), done.stderr
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getnframes() > RATE_HZ // 2


async def test_reconnecting_is_not_worth_it_with_a_wrong_secret(shipped: Stack) -> None:
    """The SDK tries again after codes that may pass, and 3000 is none of these."""
    client = AsyncOpenAI(api_key="ek_wrong", base_url=f"{shipped.address}/v1")
    tried: list[Any] = []
    connecting = client.realtime.connect(model=MODEL, on_reconnecting=tried.append)

    async with asyncio.timeout(PATIENCE_S), connecting as connection:
        event = await connection.recv()
        with pytest.raises(Exception, match="3000"):
            async for _ in connection:
                pass

    assert event.error.code == "invalid_api_key"
    assert tried == []
