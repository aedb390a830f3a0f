"""Tests of transcription: utterance after utterance, also with a server that misbehaves."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import antiphon
from tests.sdk.replay import Peer, replay
from tests.support.schemas import check_server

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

SECOND = np.full(16_000, 0.25, np.float32)
GREETING = {"type": "session.created", "id": "sess-" + 32 * "0", "created": 1795159650}
UPDATE, APPEND, COMMIT = "session.update", "input_audio_buffer.append", "input_audio_buffer.commit"


def delta(text: str) -> dict[str, object]:
    return {"type": "transcription.delta", "delta": text}


def done(text: str) -> dict[str, object]:
    usage = {"prompt_tokens": 39, "total_tokens": 41, "completion_tokens": 2}
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return {"type": "transcription.done", "text": text, "usage": usage | details}


def fault(code: str, text: str = "So it is.") -> dict[str, object]:
    return {"type": "error", "error": text, "code": code}


for proper in (GREETING, delta(" good"), done(" good"), fault("queue_full")):
    check_server("transcription", proper)


async def greet(peer: Peer) -> None:
    """Plays the opening; the model is the one that is served."""
    assert peer.path == "/v1/transcription"
    await peer.send(GREETING)
    assert (await peer.receive(UPDATE))["model"] == "antiphon-mini"


async def utterance(peer: Peer) -> list[np.ndarray]:
    """Hears one utterance to its end; returns its pieces as int16."""
    assert (await peer.receive(COMMIT))["final"] is False
    heard = []
    while (event := await peer.request())["type"] == APPEND:
        heard.append(np.frombuffer(base64.b64decode(str(event["audio"])), "<i2"))
    assert event == {"type": COMMIT, "final": True}
    return heard


async def until_transcript(session: antiphon.TranscriptionSession) -> list[antiphon.TranscriptionEvent]:
    events = []
    async for event in session:
        events.append(event)
        if isinstance(event, antiphon.Transcript):
            break
    return events


async def test_deltas_arrive_while_audio_is_sent() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await peer.receive(COMMIT)
        await peer.receive(APPEND)
        await peer.send(delta(" good"))
        await peer.receive(APPEND)
        await peer.receive(COMMIT)
        await peer.send(delta(" morning"), done(" good morning"))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        assert session.id == GREETING["id"]
        await session.send_audio(SECOND)
        assert await anext(session) == antiphon.TextDelta(" good")
        await session.send_audio(SECOND)
        await session.end_utterance()
        assert await until_transcript(session) == [
            antiphon.TextDelta(" morning"),
            antiphon.Transcript(" good morning", prompt_tokens=39, completion_tokens=2),
        ]


async def test_several_utterances_over_one_socket_each_begin_and_end() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        for text in (" one", " two"):
            assert len(await utterance(peer)) == 1
            await peer.send(delta(text), done(text))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        for text in (" one", " two"):
            await session.send_audio(SECOND)
            await session.end_utterance()
            await session.end_utterance()
            assert (await until_transcript(session))[0] == antiphon.TextDelta(text)


async def test_audio_is_int16_and_long_audio_is_cut() -> None:
    heard: list[np.ndarray] = []

    async def script(peer: Peer) -> None:
        await greet(peer)
        heard.extend(await utterance(peer))
        await peer.send(done(""))
        await peer.socket.wait_closed()

    audio = np.zeros(70 * 16_000, np.float32)
    audio[:5] = [0.0, 0.5, -1.0, 1.0, 2.0]
    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        with pytest.raises(antiphon.AudioError):
            await session.send_audio(SECOND.astype(np.float64))  # type: ignore[arg-type]
        await session.send_audio(audio)
        await session.end_utterance()
        await until_transcript(session)
    assert [len(piece) for piece in heard] == [480_000, 480_000, 160_000]
    assert heard[0][:5].tolist() == [0, 16384, -32768, 32767, 32767]


async def test_model_can_be_chosen_and_changed() -> None:
    models = []

    async def script(peer: Peer) -> None:
        await peer.send(GREETING)
        for _ in range(2):
            models.append((await peer.receive(UPDATE))["model"])
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.transcribe("voxtral") as session:
            await session.use_model("antiphon-mini")
    assert models == ["voxtral", "antiphon-mini"]


async def test_file_is_one_utterance(tmp_path: Path) -> None:
    antiphon.write_wav(tmp_path / "question.wav", np.tile(SECOND, 3)[:40_000], 16_000)
    heard: list[np.ndarray] = []

    async def script(peer: Peer) -> None:
        await greet(peer)
        heard.extend(await utterance(peer))
        await peer.send(done(" good"))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        async with session.stream_file(tmp_path / "question.wav") as stream:
            assert stream.duration_s == 2.5
            assert [type(event) for event in await until_transcript(session)] == [antiphon.Transcript]
    assert sum(map(len, heard)) == 40_000


@pytest.mark.parametrize("code", ["processing_error", "queue_full", "idle_timeout", "context_full"])
async def test_failed_utterance_is_an_event_and_the_next_audio_begins_another(code: str) -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await peer.receive(COMMIT)
        await peer.receive(APPEND)
        await peer.send(fault(code))
        assert await utterance(peer)
        await peer.send(done(" good"))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        await session.send_audio(SECOND)
        assert await anext(session) == antiphon.ErrorEvent(code, "So it is.")
        await session.send_audio(SECOND)
        await session.end_utterance()
        assert isinstance((await until_transcript(session))[-1], antiphon.Transcript)


async def test_late_read_error_does_not_block_the_end_of_the_next_utterance() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await utterance(peer)
        await peer.send(fault("processing_error"))
        await utterance(peer)
        await peer.send(done(" two"))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        await session.send_audio(SECOND)
        await session.end_utterance()
        await session.send_audio(SECOND)
        assert isinstance(await anext(session), antiphon.ErrorEvent)
        await session.end_utterance()
        assert [type(event) for event in await until_transcript(session)] == [antiphon.Transcript]


@pytest.mark.parametrize("code", ["buffer_full", "invalid_audio"])
async def test_rejected_audio_is_an_event_of_the_same_utterance(code: str) -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await peer.receive(COMMIT)
        await peer.receive(APPEND)
        await peer.send(fault(code))
        await peer.receive(APPEND)
        await peer.receive(COMMIT)
        await peer.send(done(""))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        await session.send_audio(SECOND)
        assert await anext(session) == antiphon.ErrorEvent(code, "So it is.")
        await session.send_audio(SECOND)
        await session.end_utterance()
        await until_transcript(session)


@pytest.mark.parametrize("code", ["model_not_found", "model_not_validated"])
async def test_model_that_is_not_served_raises(code: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(GREETING)
        await peer.receive(UPDATE)
        await peer.send(fault(code, "There is no model 'sphinx'."))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe("sphinx") as session:
        for _ in range(2):
            with pytest.raises(antiphon.ProtocolError, match="sphinx"):
                await anext(session)
        with pytest.raises(antiphon.ProtocolError, match="sphinx"):
            await session.send_audio(SECOND)


@asynccontextmanager
async def page(told: bytes, asked: list[str]) -> AsyncIterator[str]:
    """A server that answers each request alike and notes it; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(told)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("HTTP/1.1 401 No", antiphon.AuthError),
        ("HTTP/1.1 404 No", antiphon.ConnectError),
        ("HTTP/1.1 503 No", antiphon.ConnectError),
        ("220 mail.example.org ESMTP", antiphon.ConnectError),
    ],
)
async def test_failed_models_request_raises_matching_error(
    status: str, kind: type[antiphon.AntiphonError]
) -> None:
    told = f"{status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    async with page(told, []) as url, antiphon.connect(url) as client:
        with pytest.raises(kind):
            await client.models()


async def test_models_are_asked_for_with_the_key() -> None:
    asked: list[str] = []
    body = b'{"object":"list","data":[{"id":"one"},{"id":"two"}]}'
    told = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
    async with page(told, asked) as url:
        async with antiphon.connect(f"{url}/v1/realtime?mode=audio", api_key="secret") as client:
            assert await client.models() == ("one", "two")
    assert asked[0].startswith("GET /v1/models HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in asked[0]


async def test_server_that_ends_the_session_raises() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await peer.send(delta(" good"))
        await peer.socket.close(1012)

    async with replay(script, headers={"antiphon-trace-id": "4bf92f"}) as url:
        async with antiphon.connect(url) as client, client.transcribe() as session:
            assert await anext(session) == antiphon.TextDelta(" good")
            with pytest.raises(antiphon.SessionClosed) as caught:
                await anext(session)
            with pytest.raises(antiphon.SessionClosed):
                await session.send_audio(SECOND)
    error = caught.value
    assert (error.reason, error.code, error.trace_id) == ("server_shutdown", 1012, "4bf92f")


async def test_events_before_close_are_readable() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await utterance(peer)
        await peer.send(done(" good"), fault("context_full"))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.transcribe() as session:
            await session.send_audio(SECOND)
            await session.end_utterance()
            assert isinstance(await anext(session), antiphon.Transcript)
        assert [event async for event in session] == [antiphon.ErrorEvent("context_full", "So it is.")]
        with pytest.raises(antiphon.SessionClosed, match="user_stop"):
            await session.send_audio(SECOND)


async def test_program_may_send_everything_before_it_reads() -> None:
    async def script(peer: Peer) -> None:
        await greet(peer)
        await peer.receive(COMMIT)
        heard = 0
        while (await peer.request())["type"] == APPEND:
            heard += 1
            await peer.send(delta(" a"))
        await peer.send(done(" a" * heard))
        await peer.socket.wait_closed()

    async with replay(script) as url, antiphon.connect(url) as client, client.transcribe() as session:
        for _ in range(1000):
            await session.send_audio(SECOND[:160])
        await session.end_utterance()
        events = await until_transcript(session)
    assert len(events) == 1001
