"""Tests of the recording folder: its content for each kind of frame."""

import io
import json
import os
import stat
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.recordings import (
    NOBODY,
    Read,
    append,
    b64,
    delta,
    noise,
    read_recording,
    read_wav,
    recording_to,
)
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.recording import folder as folder_module
from ws_adapter.recording.recorder import Recording


@asynccontextmanager
async def recorded(root: Path, label: str = "s") -> AsyncIterator[tuple[Recording, ManualClock]]:
    """A recording by a clock that the test turns; it ends with the block."""
    clock = ManualClock()
    async with recording_to(root, clock) as recorder:
        recording = recorder.begin(label, "audio", NOBODY)
        yield recording, clock
        recording.end("user_stop", "w1/0")


async def record(root: Path, *frames: bytes, label: str = "sess_1", is_text: bool = True) -> Read:
    """The recording of a session in which a client sends `frames`."""
    async with recorded(root, label) as (recording, _):
        for frame in frames:
            recording.up(frame, is_text)
    return read_recording(root / recording.recording_id)


async def test_events_are_kept_in_order_with_their_times(tmp_path: Path) -> None:
    async with recorded(tmp_path, "sess_31d0c7aa54ef") as (recording, clock):
        recording.down(b'{"type":"session.queue_done"}')
        await clock.advance(0.1)
        recording.up('{"type":"session.init","payload":{"system_prompt":"Sei kurz, ö."}}'.encode())
        await clock.advance(1.5)
    read = read_recording(tmp_path / recording.recording_id)

    began = 1_795_164_650.0
    assert read.lines == [
        {"seq": 0, "ts": began, "dir": "down", "frame": {"type": "session.queue_done"}},
        {
            "seq": 1,
            "ts": began + 0.1,
            "dir": "up",
            "frame": {"type": "session.init", "payload": {"system_prompt": "Sei kurz, ö."}},
        },
    ]
    assert read.meta == {
        "session_id": "sess_31d0c7aa54ef",
        "mode": "audio",
        "client": {"address": "127.0.0.1"},
        "created_at": "2026-11-20T08:50:50.000Z",
        "ended_at": "2026-11-20T08:50:51.600Z",
        "duration_s": 1.6,
        "worker": "w1/0",
        "close_reason": "user_stop",
    }


async def test_times_do_not_follow_a_clock_that_jumps(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (recording, clock):
        recording.up(b"{}")
        clock.unix = lambda: 17.0  # type: ignore[method-assign]
        await clock.advance(2)
        recording.up(b"{}")
    read = read_recording(tmp_path / recording.recording_id)
    assert read.lines[1]["ts"] - read.lines[0]["ts"] == 2.0
    assert read.meta["duration_s"] == 2.0


async def test_a_session_that_has_not_ended_can_be_read(tmp_path: Path) -> None:
    async with recording_to(tmp_path) as recorder:
        recording = recorder.begin("s", "audio", NOBODY)
        recording.up(append(noise(1)))
    read = read_recording(tmp_path / recording.recording_id)
    assert "ended_at" not in read.meta
    assert "audio_started_at" in read.meta
    assert len(read.samples(read.lines[0]["frame"]["input"]["audio"])) == 16_000


async def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        read = await record(tmp_path / "new", append(noise(0.1), video_frames=[b64(b"\xff\xd8\xff")]))
    finally:
        os.umask(before)
    for path in (tmp_path / "new", read.folder, *read.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_clips_of_both_directions_can_be_cut_out_of_their_tracks_exactly(tmp_path: Path) -> None:
    said, heard = [noise(1), noise(0.3), noise(1)], [noise(1, 24_000), noise(0.02, 24_000)]
    async with recorded(tmp_path) as (recording, clock):
        for samples in said:
            await clock.advance(1)
            recording.up(append(samples))
        for samples in heard:
            await clock.advance(0.5)
            recording.down(delta(samples))
    read = read_recording(tmp_path / recording.recording_id)
    up = [event["input"]["audio"] for event in read.events("up")]
    assert all(np.array_equal(read.samples(a), b) for a, b in zip(up, said, strict=True))
    down = [event["audio"] for event in read.events("down")]
    assert all(np.array_equal(read.samples(a), b) for a, b in zip(down, heard, strict=True))


async def test_tracks_lie_on_the_time_line_of_the_session(tmp_path: Path) -> None:
    """Input was heard before it was sent; output is heard from then on; both tracks begin together."""
    async with recorded(tmp_path) as (recording, clock):
        await clock.advance(100)  # a wait in the queue is not part of the audio
        recording.up(append(noise(1)))  # 0 to 1 s
        await clock.advance(0.5)
        recording.down(delta(noise(1, 24_000)))  # 1.5 to 2.5 s
        await clock.advance(0.6)
        recording.up(append(noise(1)))  # 0.1 s late: follows at once, 1 to 2 s
        recording.down(delta(noise(1, 24_000)))  # 2.1 s is early: 2.5 to 3.5 s
        await clock.advance(5)
        recording.up(append(noise(1)))  # 6.1 to 7.1 s
    read = read_recording(tmp_path / recording.recording_id)

    up = [event["input"]["audio"]["start"] / 16_000 for event in read.events("up")]
    down = [event["audio"]["start"] / 24_000 for event in read.events("down")]
    assert up == pytest.approx([0, 1, 6.1])
    assert down == pytest.approx([1.5, 2.5])
    assert read.meta["audio_started_at"] == "2026-11-20T08:52:29.000Z"
    _, track = read_wav(read.folder / "up.wav")
    assert len(track) == 7.1 * 16_000
    assert not track[2 * 16_000 : round(6.1 * 16_000)].any()


async def test_pcm16_is_played_at_its_loudness(tmp_path: Path) -> None:
    samples = np.array([0, 1, -32768, 32767], "<i2")
    read = await record(tmp_path, append(samples, format="pcm16"))
    reference = read.lines[0]["frame"]["input"]["audio"]
    assert np.array_equal(read.samples(reference) * 32768, samples.astype(np.float32))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "audio_chunk", "audio_base64": ...},
        {"type": "audio_chunk", "audio_data": ...},
        {"type": "input_audio_buffer.append", "audio": ...},
        {"type": "input.append", "input": {"audio": {"data": ...}}},
        {"type": "input.append", "input": {"audio": {"audio_base64": ...}}},
        {"type": "result", "is_listen": False, "audio_data": ...},
    ],
)
async def test_audio_is_found_under_each_of_its_names(tmp_path: Path, event: Any) -> None:
    samples = noise(0.5)
    frame = json.dumps(event, default=lambda _: b64(samples)).encode()
    read = await record(tmp_path, frame)
    expected = {"file": "up.wav", "start": 0, "samples": 8000, "sample_rate": 16_000}
    assert read.lines[0]["frame"] == json.loads(json.dumps(event, default=lambda _: expected))
    assert np.array_equal(read.samples(expected), samples)


@pytest.mark.parametrize(
    "data",
    [b"\0" * 7, np.array([np.nan], "<f4").tobytes(), np.array([1e9], "<f4").tobytes()],
    ids=["broken sample", "NaN", "far too loud"],
)
async def test_unplayable_audio_is_stored_in_its_own_file(tmp_path: Path, data: bytes) -> None:
    read = await record(tmp_path, append(data))
    assert read.lines[0]["frame"]["input"]["audio"] == {"file": "up/000000-1.bin", "bytes": len(data)}
    assert (read.folder / "up/000000-1.bin").read_bytes() == data
    assert not (read.folder / "up.wav").exists()


async def test_a_second_clip_in_one_event_does_not_disturb_the_track(tmp_path: Path) -> None:
    """And a burst is laid end to end."""
    one, other = noise(1), noise(1)
    frame = json.dumps({"type": "audio_chunk", "audio": b64(one), "audio_base64": b64(other)}).encode()
    read = await record(tmp_path, frame, append(noise(1)), append(noise(1)))
    assert np.array_equal(read_wav(read.folder / "up.wav")[1][:16_000], one)
    assert (read.folder / "up/000000-1.bin").read_bytes() == other.tobytes()
    assert [event["input"]["audio"]["start"] for event in read.events("up")[1:]] == [16_000, 32_000]


async def test_track_beyond_a_wav_file_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "LONGEST", 20_000)
    read = await record(tmp_path, append(noise(1)), append(noise(1)), b"{}")
    assert [line["seq"] for line in read.lines] == [0]
    assert len(read_wav(read.folder / "up.wav")[1]) == 16_000
    assert "longer than a WAV file" in read.meta["stopped"]


def wav_file() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 22_050, 0, "NONE", ""))
        writer.writeframes(bytes(2000))
    return file.getvalue()


async def test_reference_audio_is_a_file_that_plays(tmp_path: Path) -> None:
    raw, wav = noise(0.5), wav_file()
    voice = {"ref_audio_base64": b64(raw), "tts_ref_audio_base64": "data:audio/wav;base64," + b64(wav)}
    read = await record(tmp_path, json.dumps({"type": "session.init", "payload": {"voice": voice}}).encode())
    kept = read.lines[0]["frame"]["payload"]["voice"]
    assert kept["ref_audio_base64"] == {"file": "up/000000-1.wav", "samples": 8000, "sample_rate": 16_000}
    assert np.array_equal(read.samples(kept["ref_audio_base64"]), raw)
    assert kept["tts_ref_audio_base64"] == {"file": "up/000000-2.wav", "bytes": len(wav)}
    assert (read.folder / "up/000000-2.wav").read_bytes() == wav


@pytest.mark.parametrize(
    ("data", "extension"),
    [
        (b"\xff\xd8\xff\xe0 picture", "jpg"),
        (b"\x89PNG\r\n\x1a\n picture", "png"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (b"<svg/>", "bin"),
    ],
)
@pytest.mark.parametrize(
    "event",
    [
        {"type": "input.append", "input": {"video_frames": [..., ...]}},
        {"type": "input.append", "input": {"frames": [{"data": ...}, {"base64": ...}]}},
        {"type": "audio_chunk", "frame_base64_list": [..., ...]},
        {"type": "video_frame", "frame_base64": ..., "data": ...},
    ],
)
async def test_images_are_files_of_their_type(
    tmp_path: Path, data: bytes, extension: str, event: Any
) -> None:
    read = await record(tmp_path, json.dumps(event, default=lambda _: b64(data)).encode())
    names = iter((f"up/000000-1.{extension}", f"up/000000-2.{extension}"))
    expected = json.dumps(event, default=lambda _: {"file": next(names), "bytes": len(data)})
    assert read.lines[0]["frame"] == json.loads(expected)
    assert (read.folder / f"up/000000-2.{extension}").read_bytes() == data


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"not json",
        b'{"type":',
        b'{"type":"\xff\xfe"}',
        b'{"type":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"[" + b"{}," * 70_000 + b"{}]",
        b"\x00" * 5000,
        b'{"type":"input.append","input":{"audio":{"format":[],"data":"AAAA"}}}',
        b'{"a":123456789012345678901234567890,"b":1e400,"c":-0.0}',
        b'"text"',
        b"null",
    ],
)
async def test_any_frame_gives_one_bounded_line(tmp_path: Path, frame: bytes) -> None:
    read = await record(tmp_path, frame, b'{"type":"session.close"}')
    assert [line["seq"] for line in read.lines] == [0, 1]
    assert read.lines[1]["frame"] == {"type": "session.close"}
    assert "unreadable" in read.lines[0] or len(frame) < 10_000
    if "unreadable" in read.lines[0]:
        assert read.lines[0]["frame"] is None
        assert read.lines[0]["unreadable"]["bytes"] == len(frame)
        assert len(json.dumps(read.lines[0])) < 10_000
    assert "stopped" not in read.meta


async def test_text_where_base64_belongs_is_a_file_if_it_is_long(tmp_path: Path) -> None:
    frame = json.dumps({"type": "audio_chunk", "audio": "é" * 300, "frame": "!"}).encode()
    empty = b'{"type":"response.output_audio.delta","text":"","audio":""}'
    read = await record(tmp_path, frame, empty)
    long = {"file": "up/000000-1.txt", "bytes": 600}
    assert read.lines[0]["frame"] == {"type": "audio_chunk", "audio": long, "frame": "!"}
    assert read.lines[1]["frame"] == json.loads(empty)


@pytest.mark.parametrize(
    ("label", "start"),
    [
        ("../../etc/passwd", "etcpasswd-"),
        ("/", "session-"),
        ("", "session-"),
        ("a\0b\nc", "abc-"),
        ("x" * 500, "x" * 128 + "-"),
        ("omni_k3f9", "omni_k3f9-"),
    ],
)
async def test_paths_are_made_of_harmless_characters(tmp_path: Path, label: str, start: str) -> None:
    root = tmp_path / "in/here"
    read = await record(root, b"{}", label=label)
    assert read.folder.name.startswith(start)
    assert os.listdir(root) == [read.folder.name]
    assert os.listdir(tmp_path) == ["in"]
    assert read.meta["session_id"] == label
