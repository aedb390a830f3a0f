"""Clients of chat that must keep working, each a copy of its traffic."""

import json
from typing import Any

import pytest

from tests.conformance.support.chat_words import CHAT, CLOSE, REALTIME, append, begin, request
from tests.conformance.support.client import PING, PONG, TEXT
from tests.conformance.support.stack import Stack
from tests.support.scripted_engine import hang, write
from tests.ws_adapter.support.chat_conversation import f32

SAYS = write("Seven", ".")
ASK = {CHAT: request, REALTIME: append}
DONE = {CHAT: "done", REALTIME: "response.done"}


async def test_client_closes_by_itself_after_done(chatter: Stack) -> None:
    async with chatter.client(CHAT) as client:
        await client.send(request(SAYS))
        await client.until("done")
        await client.socket.close()
        assert client.socket.close_code == 1000


@pytest.mark.parametrize("path", [CHAT, REALTIME])
async def test_client_adds_what_nobody_asked_for(chatter: Stack, path: str) -> None:
    headers = {"Authorization": "Bearer sk-none", "X-Client": "robot"}
    target = f"{path}{'&' if '?' in path else '?'}session_id=1&autostart=true"
    async with chatter.client(target, additional_headers=headers) as client:
        if path == REALTIME:
            await begin(client)
        await client.send(ASK[path](SAYS, device={"os": "none"}, stop=None))
        await client.until(DONE[path])


async def test_client_opens_the_next_session_at_once(narrow_chatter: Stack) -> None:
    for _ in range(5):
        async with narrow_chatter.client(REALTIME) as client:
            client.ignored = {"session.queued", "session.queue_update"}
            await begin(client)
            await client.send(append(SAYS))
            await client.until("response.done")
            await client.send(CLOSE)
            assert (await client.end())[1] == 1000


@pytest.mark.parametrize("path", [CHAT, REALTIME])
async def test_pings_are_answered_in_every_state(narrow_chatter: Stack, path: str) -> None:
    async with narrow_chatter.client(CHAT) as holder:
        await holder.send(request(hang("generate"), key="pings"))
        await holder.expect("prefill_done")
        async with narrow_chatter.raw_client(path) as client:
            await ping(client, b"one")
            init = {"type": "session.init", "payload": {}}
            await client.send(request(hang("generate")) if path == CHAT else init)
            await ping(client, b"two")
            narrow_chatter.worker.release("pings", "generate", 1)
            await holder.expect("done")
            await ping(client, b"three")


async def ping(client: Any, data: bytes) -> None:
    await client.frame(PING, data)
    while (frame := await client.read()) != (PONG, data):
        assert frame[0] == TEXT


async def test_reference_voice_as_the_page_sends_it(chatter: Stack) -> None:
    """The reference in the system message, as float32 at 16 kHz, and again for speech."""
    voice = f32(1.0)
    system = {
        "role": "system",
        "content": [
            {"type": "text", "text": "Mimic the voice from the audio sample."},
            {"type": "audio", "data": voice},
            {"type": "text", "text": "You are a helpful assistant."},
        ],
    }
    tts = {"enabled": True, "mode": "audio_assistant", "ref_audio_data": voice}
    asked = {"messages": [system, {"role": "user", "content": "Hello!"}], "tts": tts}
    async with chatter.client(CHAT) as client:
        await client.send(json.dumps(asked))
        events, code = await client.end()

    assert events[-1]["unsupported_fields"] == ["tts.ref_audio_data", "tts.mode"]
    assert code == 1000
