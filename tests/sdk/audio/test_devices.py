"""Microphone and speakers, over a stand-in for sounddevice, and over PortAudio where that is installed."""

import asyncio
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import numpy as np
import pytest

from antiphon import AudioError, Microphone, Speaker
from antiphon.audio import devices as module
from tests.support.fake_sounddevice import Devices
from tests.support.patience import PATIENCE_S

RAMP = np.arange(4000, dtype=np.float32) / 4000


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    found = Devices()
    monkeypatch.setitem(sys.modules, "sounddevice", found)
    return found


async def take(microphone: Microphone, samples: int) -> np.ndarray:
    found = np.zeros(0, np.float32)
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < samples:
            found = np.concatenate([found, await anext(microphone)])
    return found


async def test_recorded_audio_is_read_in_order(devices: Devices) -> None:
    async with Microphone() as microphone:
        await asyncio.to_thread(devices.record, RAMP)
        assert np.array_equal(await take(microphone, 4000), RAMP)
        assert devices.inputs[0].settings["samplerate"] == 16_000
        assert devices.inputs[0].is_running
    assert devices.inputs[0].is_closed
    with pytest.raises(StopAsyncIteration):
        await anext(microphone)


async def test_microphone_of_another_rate_is_resampled(devices: Devices) -> None:
    devices.rate_hz = 48_000
    tone = np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000).astype(np.float32)
    async with Microphone(3) as microphone:
        await asyncio.to_thread(devices.record, tone)
        found = await take(microphone, 15_000)
    assert devices.inputs[0].settings["device"] == 3
    spectrum = np.abs(np.fft.rfft(found))
    assert abs(np.argmax(spectrum) * 16_000 / len(found) - 440) < 2


async def test_unread_microphone_drops_the_oldest_audio(devices: Devices) -> None:
    async with Microphone() as microphone:
        for second in range(15):
            await asyncio.to_thread(devices.record, np.full(16_000, second / 100, np.float32))
        await asyncio.sleep(0)
        found = await take(microphone, 160_000)
    assert abs(microphone.dropped_s - 5) < 0.01
    assert found[0] == pytest.approx(0.05)
    assert len(found) == 160_000


async def test_skip_drops_earlier_recorded_audio(devices: Devices) -> None:
    async with Microphone() as microphone:
        await asyncio.to_thread(devices.record, RAMP)
        await take(microphone, 1)
        microphone.skip()
        await asyncio.to_thread(devices.record, -RAMP)
        assert np.array_equal(await take(microphone, 4000), -RAMP)


async def test_stopped_microphone_raises_after_its_recording_and_wakes_readers(devices: Devices) -> None:
    async with Microphone() as microphone:
        await asyncio.to_thread(devices.record, RAMP)
        await asyncio.to_thread(devices.inputs[0].stop_by_itself)
        assert len(await take(microphone, 4000)) == 4000
        with pytest.raises(AudioError, match="microphone stopped"):
            await take(microphone, 1)
    async with Microphone() as microphone:
        waiting = asyncio.create_task(take(microphone, 1))
        await asyncio.sleep(0)
        await asyncio.to_thread(devices.inputs[1].stop_by_itself)
        with pytest.raises(AudioError, match="microphone stopped"):
            await waiting


async def test_samples_are_played_in_order_and_then_silence(devices: Devices) -> None:
    async with Speaker() as speaker:
        speaker.play(RAMP)
        speaker.play(-RAMP)
        assert devices.outputs[0].settings["samplerate"] == 24_000
        heard = [await asyncio.to_thread(devices.played, 2400) for _ in range(4)]
        async with asyncio.timeout(PATIENCE_S):
            await speaker.wait_played()
    assert devices.outputs[0].is_closed
    expected = np.concatenate([RAMP, -RAMP, np.zeros(1600, np.float32)])
    assert np.array_equal(np.concatenate(heard), expected)


async def test_interruption_silences_the_speaker(devices: Devices) -> None:
    async with Speaker() as speaker:
        speaker.play(RAMP)
        await asyncio.to_thread(devices.played, 1000)
        speaker.interrupt()
        async with asyncio.timeout(PATIENCE_S):
            await speaker.wait_played()
        assert not devices.played(1000).any()
        speaker.play(RAMP)
        assert np.array_equal(devices.played(4000), RAMP)


async def test_speaker_of_another_rate_is_resampled(devices: Devices) -> None:
    devices.rate_hz = 48_000
    tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000).astype(np.float32)
    async with Speaker() as speaker:
        speaker.play(tone)
        heard = devices.played(40_000)
    assert abs(np.argmax(np.abs(np.fft.rfft(heard))) * 48_000 / len(heard) - 440) < 2


async def test_full_speaker_queue_drops_the_oldest_audio(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_UNPLAYED_S", 1.0)
    async with Speaker() as speaker:
        for second in range(3):
            speaker.play(np.full(24_000, second / 10, np.float32))
        assert speaker.dropped_s == 2
        assert devices.played(10)[0] == pytest.approx(0.2)


async def test_stopped_speaker_raises_and_ends_the_wait(devices: Devices) -> None:
    async with Speaker() as speaker:
        speaker.play(RAMP)
        waiting = asyncio.create_task(speaker.wait_played())
        await asyncio.to_thread(devices.outputs[0].stop_by_itself)
        async with asyncio.timeout(PATIENCE_S):
            await waiting
        with pytest.raises(AudioError, match="speaker stopped"):
            speaker.play(RAMP)


@pytest.mark.parametrize(("kind", "side"), [(Microphone, "input"), (Speaker, "output")])
async def test_missing_or_failing_device_raises_audio_error(devices: Devices, kind: type, side: str) -> None:
    async def refused(problem: str, *name: str) -> None:
        with pytest.raises(AudioError, match=problem):
            async with kind(*name):
                pytest.fail("it opened")

    await refused("no such thing", "no such thing")
    devices.refuses_start = True
    await refused("Device unavailable")
    assert all(stream.is_closed for stream in devices.inputs + devices.outputs)
    devices.missing = (side,)
    await refused(r"Cannot use the .*python -m sounddevice")


@pytest.mark.parametrize("missing", ["sounddevice", "soxr"])
async def test_missing_extra_or_portaudio_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, missing: str, tmp_path: Path
) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    with pytest.raises(AudioError, match="libportaudio2"):
        async with Microphone():
            pytest.fail("it opened")
    monkeypatch.setitem(sys.modules, "sounddevice", Devices())
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(AudioError, match=rf"{missing}.*pip install 'antiphon\[mic\]'"):
        async with Microphone():
            pytest.fail("it opened")


ALSA = """
pcm.null {{ type null }}
pcm.recorded {{ type file slave.pcm null file "/dev/null" infile "{recording}" format raw }}
pcm.!default {{ type asym playback.pcm null capture.pcm recorded }}
ctl.!default {{ type hw card 0 }}
"""
"""The default device hears a file of float32 samples, plays to nobody, and keeps no pace: it has no clock."""

ROUND = """
import asyncio
import os
import subprocess
import numpy as np
from antiphon import Microphone, Speaker

async def main():
    async with asyncio.timeout(60):
        async with Microphone() as microphone:
            print(float((await anext(microphone)).mean()))
        async with Speaker() as speaker:
            speaker.play(np.full(24_000, 0.25, np.float32))
            await speaker.wait_played()

asyncio.run(main())
"""


@pytest.mark.skipif(find_library("portaudio") is None, reason="PortAudio is not installed (libportaudio2)")
def test_portaudio_records_and_plays_through_alsa(tmp_path: Path) -> None:
    np.full(16_000 * 60, 0.25, "<f4").tofile(tmp_path / "recording.raw")
    config = tmp_path / "asound.conf"
    config.write_text(ALSA.format(recording=tmp_path / "recording.raw"))
    done = subprocess.run(
        [sys.executable, "-c", ROUND],
        env=os.environ | {"ALSA_CONFIG_PATH": str(config)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.25, abs=1e-3)
