"""Chat on the real engine, with random weights: what no script can show, whatever the words are."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from tests.conformance.support.chat_words import CHAT, REALTIME, begin
from tests.conformance.support.client import Client, Event
from tests.conformance.support.duplex_words import jpeg
from tests.conformance.support.stack import Stack
from tests.ws_adapter.support.chat_conversation import f32

LONG_S = 60.0


def asked(*parts: Event, **fields: object) -> Event:
    content = list(parts) or [{"type": "text", "text": "hello"}]
    drawn = {"temperature": 0, "max_new_tokens": 24}
    return {"messages": [{"role": "user", "content": content}], "generation": drawn, **fields}


@asynccontextmanager
async def chatting(tiny_engine: Stack, payload: Event | None = None) -> AsyncIterator[Client]:
    """A client of G3; the slots of those before it may still be cleaned."""
    async with tiny_engine.client(REALTIME) as client:
        client.ignored = {"session.queued", "session.queue_update"}
        await begin(client, payload)
        yield client


async def answered(tiny_engine: Stack, event: Event) -> list[Event]:
    async with tiny_engine.client(CHAT) as client:
        client.ignored = {"queued", "queue_update", "queue_done"}
        await client.send(event)
        return await client.until("done", LONG_S)


async def test_streamed_and_at_once_are_the_same(tiny_engine: Stack) -> None:
    streamed = await answered(tiny_engine, asked(tts={"enabled": False}))
    (read, done) = await answered(tiny_engine, asked(tts={"enabled": False}, streaming=False))

    assert streamed[0] == read
    assert "".join(event["text_delta"] for event in streamed[1:-1]) == streamed[-1]["text"]
    assert streamed[-1] == done


async def test_same_seed_same_speech(tiny_engine: Stack) -> None:
    async with chatting(tiny_engine, {"seed": 7}) as client:
        ask = {"type": "input.append", "input": asked(tts={"enabled": True})}
        await client.send(ask)
        *deltas, streamed = await client.until("response.done", LONG_S)
        await client.send({**ask, "input": {**ask["input"], "streaming": False}})
        whole = (await client.until("response.done", LONG_S))[-1]

    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas if event["kind"] == "audio")
    assert "".join(event["text"] for event in deltas if event["kind"] == "text") == streamed["text"]
    assert streamed["text"] == whole["text"]
    for usage in (streamed["usage"], whole["usage"]):
        usage["input_token_details"].pop("cached_tokens")  # the first turn may be the first of its worker
    assert streamed["usage"] == whole["usage"]
    assert np.allclose(
        np.frombuffer(audio, "<f4"), np.frombuffer(base64.b64decode(whole["audio"]), "<f4"), atol=1e-4
    )


async def test_most_tokens_are_kept(tiny_engine: Stack) -> None:
    drawn = {"temperature": 0, "max_new_tokens": 3}
    async with chatting(tiny_engine) as client:
        await client.send({"type": "input.append", "input": asked(generation=drawn)})
        done = (await client.until("response.done", LONG_S))[-1]

    assert done["usage"]["output_token_details"]["text_tokens"] <= 3
    assert done["reason"] == "length" or done["usage"]["output_tokens"] < 3


async def test_pictures_and_clips_are_counted(tiny_engine: Stack) -> None:
    parts = [
        {"type": "text", "text": "hello"},
        {"type": "image", "data": jpeg()},
        {"type": "audio", "data": f32(1.0, rate=8_000), "sample_rate": 8_000},
    ]
    async with chatting(tiny_engine) as client:
        for _ in range(2):
            await client.send({"type": "input.append", "input": asked(*parts)})
            done = (await client.until("response.done", LONG_S))[-1]
            details = done["usage"]["input_token_details"]
            assert details["vision_tokens"] > 0
            assert details["audio_tokens"] > 0
            assert done["metrics"]["vision_slices"] == 1


async def test_broken_picture(tiny_engine: Stack) -> None:
    cut_off = base64.b64encode(base64.b64decode(jpeg(side=64))[:-20]).decode()
    broken = asked({"type": "text", "text": "hello"}, {"type": "image", "data": cut_off})
    async with chatting(tiny_engine) as client:
        await client.send({"type": "input.append", "input": broken})
        refused = await client.next(LONG_S)
        assert refused["error"]["code"] == "invalid_payload"
        assert refused["error"]["param"].startswith("input.messages[0].content[1]")
        assert (await client.next())["reason"] == "error"
        await client.send({"type": "input.append", "input": asked()})
        await client.until("response.done", LONG_S)
