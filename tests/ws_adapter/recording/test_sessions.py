"""Recordings of real conversations: complete, exact, and nothing that a client could notice."""

import asyncio
import base64
import json
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_engine import (
    EVERYTHING,
    INFO,
    TALK,
    ScriptedEngine,
    running_worker,
    speak,
    turn_end,
)
from tests.ws_adapter.support.conversation import CLOSE, Event
from tests.ws_adapter.support.process import adapter_process
from tests.ws_adapter.support.recordings import Read, b64, failing, noise, read_recording, read_wav
from tests.ws_adapter.support.stage import PATIENCE_S, Client, Stage, running_adapter, until
from tests.ws_adapter.web.test_http1 import HANDSHAKE, connect
from tests.ws_adapter.worker.test_session_streams import JPEG
from ws_adapter.access.keys import make_key
from ws_adapter.protocol.live.sound import Encoding, Format
from ws_adapter.recording import folder

PICTURE = b"\xff\xd8\xff\xe0 no camera saw this"


@asynccontextmanager
async def recorded_stage(
    recordings: Path | None, *script: Any, info: Any = INFO, **options: Any
) -> AsyncIterator[Stage]:
    """An adapter with a scripted worker; on leaving the block the recordings are written."""
    engine = ScriptedEngine(*(script or TALK), slots=2, info=info)
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, recordings=recordings, **options) as stage:
            yield stage


@asynccontextmanager
async def recorded_client(
    recordings: Path, *script: Any, path: str = "/v1/realtime?mode=audio", info: Any = INFO
) -> AsyncIterator[Client]:
    """A client that closes its session with the block, whose recording is then written."""
    async with recorded_stage(recordings, *script, info=info) as stage:
        async with stage.client(stage.address.replace("http", "ws") + path) as client:
            yield client
            await client.send({"type": "session.close"})
            await client.rest()


async def converse(client: Client, units: int = len(TALK)) -> list[Event]:
    """A whole conversation; returns what the client sent."""
    voice = {"ref_audio_base64": b64(noise(0.5))}
    sent = [{"type": "session.init", "payload": {"system_prompt": "Sei kurz.", "voice": voice}}]
    await client.expect("session.queue_done")
    await client.send(sent[0])
    await client.expect("session.created")
    for number in range(units):
        fields = {"audio": b64(noise(1)), "video_frames": [b64(PICTURE)], "input_id": f"in-{number}"}
        sent.append({"type": "input.append", "input": fields})
        await client.send(sent[-1])
        while (await client.next())["kind"] not in ("listen", "audio"):
            pass
    sent.append(CLOSE)
    await client.send(CLOSE)
    await client.rest()
    return sent


def find(recordings: Path) -> list[Read]:
    return [read_recording(recordings / name) for name in sorted(os.listdir(recordings))]


def whole(read: Read, value: Any) -> Any:
    """An event of the recording with files in the place of the references to them: as it was sent."""
    if isinstance(value, list):
        return [whole(read, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "samples" in value:
        return b64(read.samples(value))
    if "file" in value:
        return b64((read.folder / value["file"]).read_bytes())
    return {key: whole(read, item) for key, item in value.items()}


def gist(events: list[Event]) -> list[tuple[Any, ...]]:
    """Return the event fields that are equal in two runs of one conversation."""
    names = ("type", "kind", "text", "audio", "reason", "input_id", "chunk_index")
    return [tuple(event.get(name) for name in names) for event in events]


UNRECORDED: list[list[tuple[Any, ...]]] = []


async def unrecorded() -> list[tuple[Any, ...]]:
    """The gist of the conversation where nothing is recorded, as nothing is by default; held once."""
    if not UNRECORDED:
        async with recorded_stage(None) as stage, stage.client() as client:
            await converse(client)
        assert client.close_code == 1000
        assert all("recording_session_id" not in event for event in client.events)
        UNRECORDED.append(gist(client.events))
    return UNRECORDED[0]


async def test_a_recording_holds_every_event_and_every_sample(tmp_path: Path) -> None:
    async with recorded_stage(tmp_path) as stage, stage.client(user_agent_header="probe/1") as client:
        sent = await converse(client)
    (read,) = find(tmp_path)

    assert [whole(read, event) for event in read.events("up")] == sent
    assert [whole(read, event) for event in read.events("down")] == client.events
    assert [line["seq"] for line in read.lines] == list(range(len(sent) + len(client.events)))
    times = [line["ts"] for line in read.lines]
    assert times == sorted(times)

    up_hz, up = read_wav(read.folder / "up.wav")
    down_hz, down = read_wav(read.folder / "down.wav")
    assert (up_hz, down_hz) == (16_000, 24_000)
    spoken = [event["audio"] for event in read.events("down") if "audio" in event]
    assert len(spoken) == 3
    silence = np.ones(len(down), bool)
    for clip in spoken:
        silence[clip["start"] : clip["start"] + clip["samples"]] = False
    assert not down[silence].any()
    assert len(up) >= len(TALK) * 16_000

    created = next(event for event in client.events if event["type"] == "session.created")
    assert created["recording_session_id"] == read.folder.name
    assert read.meta.pop("worker").endswith(("/0", "/1"))
    assert read.meta.pop("created_at") < read.meta["ended_at"]
    assert read.meta.pop("audio_started_at") < read.meta.pop("ended_at")
    assert 0 < read.meta.pop("duration_s") < 60
    assert read.meta == {
        "session_id": created["session_id"],
        "mode": "audio",
        "client": {"address": "127.0.0.1", "user_agent": "probe/1"},
        "close_reason": "user_stop",
    }


async def test_a_program_that_calls_itself_something_odd_is_recorded(tmp_path: Path) -> None:
    async with recorded_stage(tmp_path) as stage:
        reader, writer = await connect(stage)
        writer.write(HANDSHAKE + b"User-Agent: \xff\xfe" + 999 * b"x" + b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"session.queue_done")
        writer.close()
    (read,) = find(tmp_path)
    assert read.meta["client"]["user_agent"] == "??" + 254 * "x"
    assert read.meta["close_reason"] == "disconnected"


async def test_session_created_of_earlier_dialect_has_recording_id(tmp_path: Path) -> None:
    async with recorded_client(tmp_path, speak("Hello")) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.update", "session": {"instructions": "Sei kurz."}})
        created = await client.expect("session.created")
        samples = (noise(1) * 30_000).astype("<i2")
        await client.send({"type": "input_audio_buffer.append", "audio": b64(samples), "format": "pcm16"})
        await client.expect("response.output_audio.delta")
    (read,) = find(tmp_path)
    assert created["recording_session_id"] == read.folder.name
    assert [whole(read, event) for event in read.events("down")] == client.events
    assert np.array_equal(read_wav(read.folder / "up.wav")[1] * 32768, samples)


async def test_frames_that_are_refused_are_recorded_too(tmp_path: Path) -> None:
    async with recorded_stage(tmp_path) as stage, stage.client() as client:
        await client.begin()
        await client.send({"type": "input.append", "input": {"audio": "!"}}, {"type": "nonsense"})
        await client.socket.send(b"\x01\x02")
        await client.rest()
    (read,) = find(tmp_path)
    assert read.events("up")[1:] == [
        {"type": "input.append", "input": {"audio": "!"}},
        {"type": "nonsense"},
        None,
    ]
    (line,) = [line for line in read.lines if "unreadable" in line]
    assert line["unreadable"] == {"bytes": 2, "binary": True, "head": "\x01\x02"}
    codes = [event["error"]["code"] for event in read.events("down") if event["type"] == "error"]
    assert codes == ["invalid_payload", "unknown_event", "invalid_frame"]


async def test_a_client_that_vanishes_in_the_queue_leaves_a_whole_recording(tmp_path: Path) -> None:
    async with recorded_stage(tmp_path) as stage:
        async with stage.client() as one, stage.client() as other, stage.client() as third:
            await one.begin()
            await other.begin()
            await third.expect("session.queued")
            third.vanish()
            await until(lambda: any("ended_at" in meta.read_text() for meta in tmp_path.glob("*/meta.json")))
    ended = [read for read in find(tmp_path) if read.meta["close_reason"] == "disconnected"]
    (read,) = [read for read in ended if "worker" not in read.meta]
    assert [event["type"] for event in read.events("down")] == ["session.queued"]


async def test_events_pending_at_adapter_shutdown_are_recorded(tmp_path: Path) -> None:
    async with recorded_stage(tmp_path) as stage, stage.client() as client:
        await client.begin()
        stage.adapter.interrupt()
        stage.adapter.interrupt()
        await client.rest()
    (read,) = find(tmp_path)
    assert [whole(read, event) for event in read.events("down")] == client.events
    assert read.meta["close_reason"] == "server_shutdown"
    assert "ended_at" in read.meta


async def test_no_secret_is_in_a_recording(tmp_path: Path) -> None:
    secret, key = make_key("alice")
    keys = tmp_path / "keys"
    keys.write_text(key.line)
    recordings = tmp_path / "recordings"
    async with recorded_stage(recordings, auth="keys", keys=keys, auth_query=True) as stage:
        for how in (
            {"additional_headers": {"Authorization": f"Bearer {secret}"}},
            {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]},
            {"url": f"{stage.url}&token={secret}"},
        ):
            async with stage.client(**how) as client:
                await converse(client)
    reads = find(recordings)

    assert [read.meta["client"]["key"] for read in reads] == ["alice"] * 3
    for read in reads:
        for name in ("meta.json", "stream.jsonl"):
            text = (read.folder / name).read_text()
            assert secret not in text
            assert key.hash not in text


@pytest.mark.parametrize("after", [0, 1, 6])
@pytest.mark.parametrize("name", ["mkdir", "open", "pwrite", "replace"])
async def test_a_broken_disk_changes_no_public_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    monkeypatch.setattr(os, name, failing(name, after))
    async with recorded_stage(tmp_path) as stage, stage.client() as client:
        await converse(client)
    monkeypatch.undo()
    assert gist(client.events) == await unrecorded()
    assert client.close_code == 1000


LIMIT_BYTES = 200_000


async def test_files_that_may_not_grow_stay_whole_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """A real adapter, which the system allows no file larger than three seconds of input."""
    async with recorded_stage(None) as stage:
        pass
    recordings = tmp_path / "recordings"
    async with (
        running_worker(ScriptedEngine(*TALK, slots=2), slots=2) as worker,
        adapter_process(worker.address, "--recordings", str(recordings), errors=asyncio.subprocess.PIPE) as (
            process,
            address,
        ),
    ):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        remote = replace(stage, address=address)
        await remote.until(ready=True)
        async with remote.client() as client:
            await converse(client)
        process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            _, log = await process.communicate()

    assert process.returncode == 0
    assert gist(client.events) == await unrecorded()
    (read,) = find(recordings)
    assert read.meta["stopped"] == "File too large"
    assert read.meta["close_reason"] == "user_stop"
    assert len(read_wav(read.folder / "up.wav")[1]) == 48_000
    assert [event["type"] for event in read.events("up")] == ["session.init"] + 3 * ["input.append"]
    assert log.decode().count("recordings in") == 1


@pytest.mark.parametrize("path", ["/ws/chat", "/v1/realtime?mode=chat"])
async def test_a_chat_is_recorded_with_its_pictures_and_clips(tmp_path: Path, path: str) -> None:
    voice, clip = noise(0.5), noise(0.25, rate_hz=8_000)
    parts = [
        {"type": "image", "data": base64.b64encode(JPEG).decode()},
        {"type": "audio", "data": b64(clip), "sample_rate": 8_000},
    ]
    asked = {
        "messages": [{"role": "user", "content": parts}],
        "tts": {"enabled": True, "ref_audio_data": b64(voice)},
        "streaming": False,
    }
    async with recorded_stage(tmp_path, turn_end("Yes.", seconds=0.5), info=EVERYTHING) as stage:
        async with stage.client(stage.address.replace("http", "ws", 1) + path) as client:
            if path == "/ws/chat":
                await client.send(asked)
            else:
                await client.begin()
                await client.send({"type": "input.append", "input": asked})
                await client.expect_until("response.done")
                await client.send(CLOSE)
            await client.rest()

    (read,) = find(tmp_path)
    (recorded,) = [event for event in read.events("up") if "messages" in event.get("input", event)]
    assert whole(read, recorded.get("input", recorded)) == asked
    fields = recorded.get("input", recorded)
    assert fields["messages"][0]["content"][1]["data"]["sample_rate"] == 8_000
    said = client.events[-1] if path == "/ws/chat" else client.events[-2]
    assert whole(read, read.events("down")[client.events.index(said)]) == said
    name = "recording_session_id"
    assert read.folder.name == next(event[name] for event in client.events if name in event)
    assert read.meta["mode"] == "chat"
    assert read.meta["close_reason"] == ("done" if path == "/ws/chat" else "user_stop")


def pictured(count: int, **fields: Any) -> dict[str, Any]:
    return {"type": "input.append", "input": {"audio": b64(noise(1)), **fields, "frames": ["AAAA"] * count}}


async def test_a_frame_that_was_refused_leaves_no_files(tmp_path: Path) -> None:
    async with recorded_client(tmp_path) as client:
        await client.begin()
        await client.send({"type": "input.append", "input": {"audio": b64(noise(1)[:-1].tobytes()[:-1])}})
        await client.socket.send(json.dumps(pictured(20_000)))
        for _ in range(2):
            assert (await client.expect("error"))["error"]["code"] == "invalid_payload"
    (read,) = find(tmp_path)
    assert sorted(os.listdir(read.folder)) == ["meta.json", "stream.jsonl"]
    assert [line["frame"] is None for line in read.lines if line["dir"] == "up"] == [
        False,
        False,
        True,
        False,
    ]
    assert read.events("up")[1]["input"]["audio"].keys() == {"bytes"}


async def test_files_of_frames_and_sessions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "FILES_OF_A_SESSION", 300)
    async with recorded_client(tmp_path) as client:
        await client.begin()
        for _ in range(2):
            # A session without video passes pictures over, however many.
            await client.socket.send(json.dumps(pictured(2_000)))
            while (await client.next()).get("input_id") is None:
                pass
    (read,) = find(tmp_path)
    files = os.listdir(read.folder / "up")
    assert len(files) == 300
    assert sum(name.startswith("000") and "-256." in name for name in files) == 1
    assert read.meta["omitted_files"] == 4_000 - 300
    assert [len(event["input"]["frames"]) for event in read.events("up")[1:3]] == [2_000, 2_000]
    assert read.events("up")[2]["input"]["frames"][-1] == {"bytes": 3}


@pytest.mark.parametrize(
    ("encoding", "rate_hz"), [("audio/pcm", 24_000), ("audio/pcm", 16_000), ("audio/pcmu", 8000)]
)
async def test_live_session_is_recorded_in_its_format(
    encoding: Encoding, rate_hz: int, tmp_path: Path
) -> None:
    """Both tracks play at the rate that the client chose; nothing of either is left in the events."""
    format = Format(encoding, rate_hz)
    said = format.encode(noise(1.2, rate_hz))
    async with recorded_client(tmp_path, speak("Seven"), turn_end(), path="/v1/live/sessions") as client:
        audio = {"format": {"type": encoding, "rate": rate_hz}}
        await client.send({"type": "session.start", "session": {"model": "scripted", "audio": audio}})
        await client.expect("session.started")
        await client.send({"type": "session.input_audio.append", "audio": b64(said)})
        heard = b""
        while not any(format.decode(heard[-format.bytes_per_s // 2 :])):
            event = await client.next()
            heard += base64.b64decode(event["delta"]) if "audio.delta" in event["type"] else b""

    (read,) = find(tmp_path)
    up_hz, up = read_wav(read.folder / "up.wav")
    down_hz, down = read_wav(read.folder / "down.wav")
    assert (up_hz, down_hz) == (rate_hz, rate_hz)
    assert np.array_equal(up, format.decode(said))
    begin = format.decode(heard)
    assert np.array_equal(down[: begin.size], begin)
    stream = (read.folder / "stream.jsonl").read_text()
    assert b64(said) not in stream
    assert '"delta":{"file":"down.wav"' in stream


async def test_a_realtime_session_is_recorded_in_the_format_of_each_direction(tmp_path: Path) -> None:
    """Items that are retrieved are files of their own, and stand on no track."""
    up_format, down_format = Format("audio/pcmu", 8000), Format("audio/pcm", 24_000)
    said = up_format.encode(noise(0.5, 8000))
    async with recorded_stage(tmp_path, turn_end("Seven"), info=EVERYTHING) as stage:
        async with stage.client(stage.url.partition("?")[0] + "?model=scripted") as client:
            given = {"input": {"format": {"type": "audio/pcmu"}, "turn_detection": None}}
            await client.send({"type": "session.update", "session": {"type": "realtime", "audio": given}})
            await client.expect_until("session.updated")
            await client.send({"type": "input_audio_buffer.append", "audio": b64(said)})
            await client.send({"type": "input_audio_buffer.commit"}, {"type": "response.create"})
            await client.expect_until("response.done")
            item_id = client.events[-1]["response"]["output"][0]["id"]
            await client.send({"type": "conversation.item.retrieve", "item_id": item_id})
            await client.expect_until("conversation.item.retrieved")

    (read,) = find(tmp_path)
    assert read_wav(read.folder / "up.wav")[0] == 8000
    assert np.array_equal(read_wav(read.folder / "up.wav")[1], up_format.decode(said))
    heard = [event["delta"] for event in client.events if event["type"] == "response.output_audio.delta"]
    expected = down_format.decode(b"".join(map(base64.b64decode, heard)))
    assert read_wav(read.folder / "down.wav")[0] == 24_000
    assert np.array_equal(read_wav(read.folder / "down.wav")[1][-expected.size :], expected)
    (retrieved,) = [event for event in read.events("down") if event["type"] == "conversation.item.retrieved"]
    assert retrieved["item"]["content"][0]["audio"]["file"].endswith(".bin")
