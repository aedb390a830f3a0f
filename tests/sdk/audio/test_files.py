"""Recordings of any rate, read with soundfile and soxr."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from antiphon import AudioError, Clip, read_audio, write_wav
from antiphon.audio import files

TONE_HZ = 440.0


def tone(rate_hz: int, seconds: float = 2.0) -> np.ndarray:
    return np.sin(2 * np.pi * TONE_HZ * np.arange(int(seconds * rate_hz)) / rate_hz).astype(np.float32) / 2


def loudest_hz(samples: np.ndarray, rate_hz: int = 16_000) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate_hz / len(samples))


@pytest.mark.parametrize(
    ("name", "rate_hz", "subtype"),
    [
        ("a.flac", 44_100, "PCM_16"),
        ("a.flac", 16_000, "PCM_24"),
        ("a.wav", 8_000, "PCM_16"),
        ("a.wav", 48_000, "PCM_24"),
        ("a.wav", 96_000, "PCM_32"),
        ("a.wav", 22_050, "DOUBLE"),
        ("a.wav", 8_000, "ULAW"),
    ],
)
def test_recording_of_any_rate_is_resampled(tmp_path: Path, name: str, rate_hz: int, subtype: str) -> None:
    soundfile.write(tmp_path / name, tone(rate_hz), rate_hz, subtype=subtype)
    samples = read_audio(tmp_path / name)
    assert samples.dtype == np.float32
    assert abs(len(samples) - 32_000) <= 1
    assert abs(loudest_hz(samples) - TONE_HZ) < 1
    assert abs(float(np.abs(samples[1000:-1000]).max()) - 0.5) < 0.02


def test_channels_are_averaged(tmp_path: Path) -> None:
    left = tone(48_000)
    soundfile.write(tmp_path / "a.flac", np.stack([left, np.zeros_like(left)], axis=1), 48_000)
    assert abs(float(np.abs(read_audio(tmp_path / "a.flac")[1000:-1000]).max()) - 0.25) < 0.01


def test_recording_longer_than_a_block_is_resampled_without_a_gap(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(44_100, 25.0), 44_100)
    samples = read_audio(tmp_path / "a.flac")
    expected = tone(16_000, 25.0)
    assert abs(len(samples) - len(expected)) <= 1
    middle = slice(1000, len(expected) - 1000)
    assert float(np.abs(samples[middle] - expected[middle]).max()) < 0.01


def test_wav_of_the_right_format_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    write_wav(tmp_path / "a.wav", tone(16_000), 16_000)
    assert len(read_audio(tmp_path / "a.wav")) == 32_000


@pytest.mark.parametrize("missing", ["soundfile", "soxr"])
@pytest.mark.parametrize("name", ["a.flac", "a.wav"])
def test_missing_extra_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, name: str
) -> None:
    soundfile.write(tmp_path / name, tone(44_100), 44_100)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(AudioError, match=r"pip install 'antiphon\[audio\]'") as error:
        read_audio(tmp_path / name)
    assert f"ffmpeg -i {tmp_path / name}" in str(error.value)


@pytest.mark.parametrize("data", [b"", b"no sound at all", b"fLaC" + bytes(100), b"RIFF\x00\x00\x00\x00WAVE"])
def test_file_that_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.flac").write_bytes(data)
    with pytest.raises(AudioError, match=r"ffmpeg|damaged"):
        read_audio(tmp_path / "a.flac")


@pytest.mark.parametrize(
    ("samples", "rate_hz", "complaint"),
    [
        (np.zeros(0, np.float32), 44_100, "no samples"),
        (np.full(44_100, np.nan, np.float32), 44_100, "NaN"),
        (tone(16_000), 1_000, "1000 Hz"),
    ],
    ids=["nothing", "no numbers", "no rate of a recording"],
)
def test_unfit_samples_are_refused(tmp_path: Path, samples: np.ndarray, rate_hz: int, complaint: str) -> None:
    soundfile.write(tmp_path / "a.wav", samples, rate_hz, subtype="FLOAT")
    with pytest.raises(AudioError, match=complaint):
        read_audio(tmp_path / "a.wav")


def test_recording_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_S", 1)
    soundfile.write(tmp_path / "a.flac", tone(44_100), 44_100)
    with pytest.raises(AudioError, match="Send it in parts"):
        read_audio(tmp_path / "a.flac")


def test_clip_of_a_flac_file_has_its_samples(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone(44_100), 44_100)
    assert abs(len(Clip.read(tmp_path / "a.flac").samples(16_000)) - 32_000) <= 1
