"""Section 11, the rows of chat: copies of what such clients do, and the one that its page prints."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.support.chat_words import CHAT, CLOSE, REALTIME, append, begin, request
from tests.conformance.support.client import PING, PONG, TEXT, Client, Event
from tests.conformance.support.stack import Stack
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import hang, speak, write
from tests.ws_adapter.support.chat_conversation import f32

PROGRAM = Path(__file__).parents[2] / "data/chat_mode/client.txt"
SAYS = write("Seven", ".")


async def run_printed_client(tmp_path: Path, url: str, reference: str | None = None) -> list[str]:
    """What the printed client says about a conversation at `url`."""
    program = PROGRAM.read_text()
    last = "asyncio.run(chat_streaming())"
    assert program.endswith(f"{last}\n")
    path = tmp_path / "client.py"
    path.write_text(program.replace(last, f"asyncio.run(chat_streaming({url!r}, {reference!r}))"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return said.decode().splitlines()


async def test_printed_client_runs_unchanged(chatter: Stack, tmp_path: Path) -> None:
    """Row 17: the Python client of the page on chat: prefill, chunks, done."""
    said = await run_printed_client(tmp_path, chatter.url(CHAT))

    assert said[0] == "Prefill done, 12 input tokens"
    assert said[-2:] == ["Final: ", "Tokens: 12 in, 1 out"]


async def test_row_17_one_request_and_a_switch_on_four_types(chatter: Stack) -> None:
    """Row 17: one request; `switch` on four types; retries on abnormal close only: 1000 after `done`."""
    text, audio = "", b""
    async with chatter.client(CHAT) as client:
        await client.send(
            request(speak("Sev", "en.", seconds=0.5), tts={"enabled": True, "mode": "audio_assistant"})
        )
        events, code = await client.end()
    for event in events:
        match event["type"]:
            case "prefill_done":
                assert event["input_tokens"] > 0
            case "chunk":
                text += event["text_delta"]
                audio += base64.b64decode(event["audio_data"] or "")
            case "done":
                assert event["text"] == text
            case other:
                raise AssertionError(other)

    assert text == "Seven."
    assert np.frombuffer(audio, "<f4").size == 12_000
    assert code == 1000


async def test_row_17_client_closes_by_itself_after_done(chatter: Stack) -> None:
    """Row 17: the JavaScript client of the page closes after `done`: a complete close handshake."""
    async with chatter.client(CHAT) as client:
        await client.send(request(SAYS))
        await client.until("done")
        await client.socket.close()
        assert client.socket.close_code == 1000


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_row_2_blocks_until_queue_done_and_created(narrow_chatter: Stack, is_waiting: bool) -> None:
    """Row 2: G3 blocks until `session.queue_done`, then until `session.created`: both are always sent."""
    if not is_waiting:
        async with narrow_chatter.client(REALTIME) as client:
            await begin(client)
        return
    async with narrow_chatter.client(CHAT) as holder:
        await holder.send(request(hang("generate")))
        await holder.expect("prefill_done")
        async with narrow_chatter.client(REALTIME) as client:
            await client.expect("session.queued")
            holder.vanish()
            await client.until("session.queue_done")
            await client.send({"type": "session.init", "payload": {}})
            await client.expect("session.created")


async def test_row_7_every_frame_is_an_object_with_a_type(chatter: Stack) -> None:
    """Row 7: every frame is an object with string `type`, audio 4-byte aligned, frame <= 16 MiB."""
    async with chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(speak("One.", seconds=0.3, end=SAYS.end), tts={"enabled": True}))
        for event in await client.until("response.done"):
            assert isinstance(event["type"], str)
            if event.get("kind") == "audio":
                assert len(base64.b64decode(event["audio"], validate=True)) % 4 == 0


async def test_row_8_answers_are_matched_by_input_id(chatter: Stack) -> None:
    """Row 8: matches answers by its own `input_id`: echo."""
    async with chatter.client(REALTIME) as client:
        await begin(client)
        for number in range(3):
            await client.send(append(SAYS, input_id=f"my id {number}"))
            events = await client.until("response.done")
            assert {event["input_id"] for event in events} == {f"my id {number}"}


@pytest.mark.parametrize("path", [CHAT, REALTIME])
async def test_row_9_unknown_things_are_ignored(chatter: Stack, path: str) -> None:
    """Row 9: `Authorization: Bearer`, unknown query parameters, unknown fields."""
    headers = {"Authorization": "Bearer sk-none", "X-Client": "robot"}
    target = f"{path}{'&' if '?' in path else '?'}session_id=1&autostart=true"
    async with chatter.client(target, additional_headers=headers) as client:
        await ask(client, path, device={"os": "none"}, stop=None)


@pytest.mark.parametrize("path", [CHAT, REALTIME])
async def test_row_11_closes_abruptly(narrow_chatter: Stack, path: str) -> None:
    """Row 11: closes abruptly in the middle of an answer: release at once."""
    async with narrow_chatter.client(path) as client:
        if path == REALTIME:
            await begin(client)
            await client.send(append(hang("generate")))
        else:
            await client.send(request(hang("generate")))
        await narrow_chatter.until(free_slots=0)
        client.vanish()
    await narrow_chatter.until(free_slots=1)


async def test_row_16_next_session_right_after_the_last(narrow_chatter: Stack) -> None:
    """Row 16: the next session right after the last one ended: no refusal while the old slot is cleaned."""
    for _ in range(5):
        async with narrow_chatter.client(REALTIME) as client:
            client.ignored = {"session.queued", "session.queue_update"}
            await begin(client)
            await client.send(append(SAYS))
            await client.until("response.done")
            await client.send(CLOSE)
            assert (await client.end())[1] == 1000


@pytest.mark.parametrize("path", [CHAT, REALTIME])
async def test_row_22_pings_are_answered_in_every_state(narrow_chatter: Stack, path: str) -> None:
    """Row 22: answer pings in every state: before a request, in the queue, and during an answer."""
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


async def ask(client: Client, path: str, **fields: Any) -> list[Event]:
    """One answered turn."""
    if path == CHAT:
        await client.send(request(SAYS, **fields))
        return (await client.end())[0]
    await begin(client)
    await client.send(append(SAYS, **fields))
    return await client.until("response.done")


async def test_reference_voice_as_the_page_sends_it(chatter: Stack) -> None:
    """Seed 003: the reference in the system message, as float32 at 16 kHz, and again for speech."""
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
