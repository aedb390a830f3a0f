"""Transcription beside the rest of the adapter: recordings, figures, and room for those who talk."""

import base64
from pathlib import Path

import numpy as np

from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, hang, write
from tests.ws_adapter.support.conversation import append as talk
from tests.ws_adapter.support.recordings import Read, read_recording, read_wav
from tests.ws_adapter.support.stage import serving, until
from tests.ws_adapter.support.transcription_conversation import COMMIT, FINAL, Event, append

UPDATE: Event = {"type": "session.update", "model": EVERYTHING.name}


def find(recordings: Path) -> list[Read]:
    return [read_recording(folder) for folder in recordings.iterdir()]


async def test_recording_holds_transcribed_audio(tmp_path: Path) -> None:
    samples = (np.sin(np.arange(24_000) / 20) * 20_000).astype("<i2")
    event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples.tobytes()).decode()}
    async with serving(ScriptedEngine(write(" good"), info=EVERYTHING), recordings=tmp_path) as stage:
        async with stage.client("/v1/transcription") as client:
            created = await client.expect("session.created")
            await client.send(UPDATE, COMMIT, event, FINAL)
            await client.expect_until("transcription.done")

    (read,) = find(tmp_path)
    assert read.meta["mode"] == "transcription"
    assert read.meta["session_id"] == created["id"]
    assert [told["type"] for told in read.events("down")] == [told["type"] for told in client.events]
    rate_hz, heard = read_wav(read.folder / "up.wav")
    assert rate_hz == 16_000
    assert np.array_equal(heard, samples.astype(np.float32) / np.float32(32768))


async def test_waiting_transcription_audio_leaves_room_for_conversations() -> None:
    """Half of what may be in flight: a file that is sent at once is refused beyond it, a talker is not."""
    engine = ScriptedEngine(hang("prefill"), slots=2, info=EVERYTHING)
    async with (
        serving(engine, max_inflight_mib=8) as stage,
        stage.client() as talker,
        stage.client("/v1/transcription") as client,
    ):
        await client.expect("session.created")
        await client.send(UPDATE, COMMIT, append())
        await until(lambda: engine.sessions and engine.session.given)
        await client.send(*[append(10.0)] * 30)
        assert (await client.next())["code"] == "buffer_full"
        await talker.begin()
        await talker.send(talk(4.0))
        await until(lambda: len(engine.session.heard) == 2)
        assert all(pcm.any() for pcm in engine.session.heard.values()), "not the silence behind lost input"
