"""Turns that the shipped model takes by itself (`semantic_vad`), with OpenAI's own client, in real time."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.conformance.realtime_ga.test_openai_sdk import RATE_HZ, question
from tests.conformance.support.client import meanwhile
from tests.conformance.support.recordings import reply_to
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S

RATE = RATE_HZ
PIECE = RATE // 50 * 2
"""Bytes of 20 ms."""
MOST_ASKED = 3
"""How often a conversation is held: the model draws its words, and may answer with others."""
_EVENTS: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SEMANTIC = {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}


class Microphone:
    """Sends what is said, and silence in between, as fast as it is heard."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._said = bytearray()

    def say(self, pcm: bytes) -> None:
        self._said += pcm

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            piece = bytes(self._said[:PIECE]).ljust(PIECE, b"\0")
            del self._said[:PIECE]
            await self._connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
            due += PIECE / 2 / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))


Follow = Callable[[Any, Microphone, list[Any]], Awaitable[bool]]
"""Is given the connection and all events each time that one has come; whether that was the last."""


async def converse(stack: Stack, first: bytes, follow: Follow) -> list[Any]:
    """All events, from a question on."""
    client, events = AsyncOpenAI(api_key="none", base_url=f"{stack.address}/v1"), list[Any]()
    async with (
        asyncio.timeout(PATIENCE_S),
        client.realtime.connect(model="antiphon-mini") as connection,
    ):
        await connection.session.update(session=SEMANTIC)  # type: ignore[arg-type]
        microphone = Microphone(connection)
        microphone.say(first)
        async with meanwhile(microphone.run()):
            async for event in connection:
                events.append(event)
                assert event.type != "error", event
                if await follow(connection, microphone, events):
                    break
    return events


def of(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


def seconds(events: list[Any]) -> float:
    """Of sound in answers."""
    deltas = of(events, "response.output_audio.delta")
    return sum(len(base64.b64decode(delta.delta)) for delta in deltas) / 2 / RATE


def text_of(done: Any) -> str:
    """The words of an answer that is over."""
    return str(done.response.output[0].content[0].transcript.strip())


async def answered(stack: Stack, first: bytes, follow: Follow, reply: str) -> list[Any]:
    """The events of a conversation whose last answer is `reply`, which is held again where it is not."""
    for _ in range(MOST_ASKED):
        events = await converse(stack, first, follow)
        if text_of(events[-1]) == reply:
            return events
    raise AssertionError(f"answered {text_of(events[-1])!r} in place of {reply!r}, {MOST_ASKED} times")


async def spoken_answer(stack: Stack) -> None:
    pcm, reply = question("counting"), reply_to("counting")

    async def is_over(connection: Any, microphone: Microphone, events: list[Any]) -> bool:
        return bool(events[-1].type == "response.done")

    events = await answered(stack, pcm, is_over, reply)

    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "conversation.created"]
    assert "input_audio_buffer.speech_started" in kinds
    (done,) = of(events, "response.done")
    assert done.response.status == "completed"
    assert 2.0 < seconds(events) < 4.0
    assert done.response.usage.output_token_details.audio_tokens > 50


async def interrupted_answer(stack: Stack) -> None:
    """Assert that a model interrupted before any audio was heard answers the new question."""
    counting, name, reply = question("counting"), question("name"), reply_to("name")

    async def follow(connection: Any, microphone: Microphone, events: list[Any]) -> bool:
        done, event = of(events, "response.done"), events[-1]
        if event.type == "response.output_audio.delta" and len(of(events, event.type)) == 1:
            microphone.say(name)
        elif event.type == "response.done" and len(done) == 1:
            item = event.response.output[0].id
            await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=0)
        return len(done) == 2

    events = await answered(stack, counting, follow, reply)

    first, second = of(events, "response.done")
    if first.response.status == "cancelled":
        assert first.response.status_details.reason == "turn_detected"
    else:  # on a busy machine it may have said all before the speech over it was heard
        assert first.response.status == "completed"
    (cut,) = of(events, "conversation.item.truncated")
    assert (cut.item_id, cut.audio_end_ms) == (first.response.output[0].id, 0)
    assert second.response.status == "completed"


async def test_a_spoken_question_is_answered_and_speech_over_an_answer_ends_it(shipped: Stack) -> None:
    """Both at once: a conversation takes its ten seconds."""
    await asyncio.gather(spoken_answer(shipped), interrupted_answer(shipped))


@pytest.mark.long
async def test_clients_greet_type_and_change_instructions_around_the_models_own_turns(shipped: Stack) -> None:
    """The microphone is open before the first update; every event fits the types of OpenAI's SDK."""
    pcm, reply = question("counting"), reply_to("counting")
    client = AsyncOpenAI(api_key="none", base_url=f"{shipped.address}/v1")
    async with (
        asyncio.timeout(PATIENCE_S),
        client.realtime.connect(model="antiphon-mini") as connection,
    ):
        microphone = Microphone(connection)
        before = base64.b64encode(bytes(10 * PIECE)).decode()
        await connection.input_audio_buffer.append(audio=before)

        async def answer() -> Any:
            while True:
                frame = json.loads(await connection.recv_bytes())
                event = _EVENTS.validate_python(frame)
                assert event.type != "error", event
                if event.type == "session.updated":
                    detections.append(frame["session"]["audio"]["input"]["turn_detection"]["type"])
                if event.type == "response.done":
                    return event.response

        detections: list[str] = []
        async with meanwhile(microphone.run()):
            await connection.session.update(session=SEMANTIC)  # type: ignore[arg-type]
            await write(connection)
            greeting = await answer()
            microphone.say(pcm)
            spoken = await answer()
            await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
            await write(connection)
            typed = await answer()
            microphone.say(pcm)
            again = await answer()

    assert detections == ["semantic_vad", "semantic_vad"]
    assert [done.status for done in (greeting, spoken, typed, again)] == ["completed"] * 4
    transcripts = [done.output[0].content[0].transcript for done in (greeting, spoken, typed, again)]
    assert "antiphon" in transcripts[0]
    assert "antiphon" in transcripts[2]
    assert (transcripts[1], transcripts[3]) == (reply, reply)


async def write(connection: Any) -> None:
    """A typed question, and that it is to be answered."""
    content = [{"type": "input_text", "text": "what is your name"}]
    await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    await connection.response.create()
