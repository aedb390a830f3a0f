"""Tests of WAV files: reading, errors, writing."""

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from antiphon import AudioError, read_wav, write_wav

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def wav_bytes(
    data: bytes,
    *,
    encoding: int = PCM,
    channels: int = 1,
    rate_hz: int = 16_000,
    bits: int = 16,
    extra: bytes = b"",
) -> bytes:
    block = channels * bits // 8
    layout = struct.pack("<HHIIHH", encoding, channels, rate_hz, rate_hz * block, block, bits) + extra
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(layout)) + layout
    body += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "speech.wav"


HALF = wav_bytes(np.array([16384], "<i2").tobytes())


@pytest.mark.parametrize(
    ("content", "samples"),
    [
        (wav_bytes(np.array([0, 16384, -32768], "<i2").tobytes()), [0.0, 0.5, -1.0]),
        (wav_bytes(np.array([0.25, -0.75], "<f4").tobytes(), encoding=FLOAT, bits=32), [0.25, -0.75]),
        (
            wav_bytes(
                np.array([0.5], "<f4").tobytes(),
                encoding=EXTENSIBLE,
                bits=32,
                extra=struct.pack("<HHIH", 22, 32, 4, FLOAT) + bytes(14),
            ),
            [0.5],
        ),
        (HALF[:12] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + HALF[12:], [0.5]),
        (wav_bytes(np.array([16384, 16384], "<i2").tobytes())[:-1], [0.5]),
    ],
    ids=["pcm16", "float32", "extensible header", "other chunks", "cut off"],
)
def test_wav_file_is_read_as_float32(path: Path, content: bytes, samples: list[float]) -> None:
    with pytest.raises(FileNotFoundError):
        read_wav(path)
    path.write_bytes(content)
    assert read_wav(path).dtype == np.float32
    assert read_wav(path).tolist() == samples


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (wav_bytes(bytes(8), rate_hz=44_100), "44100 Hz and 1 channel; .*ffmpeg -i .* -ac 1 -ar 16000"),
        (wav_bytes(bytes(8), channels=2), "2 channels; .*ffmpeg"),
        (wav_bytes(bytes(9), bits=24), "24-bit samples .*ffmpeg"),
        (wav_bytes(bytes(8), encoding=7, bits=8), "format 7; .*ffmpeg"),
        (b"ID3 this is no WAV file", "no WAV file. .*ffmpeg"),
        (wav_bytes(b"")[:30], "damaged"),
        (wav_bytes(b""), "no samples"),
        (wav_bytes(np.array([np.nan], "<f4").tobytes(), encoding=FLOAT, bits=32), "NaN"),
    ],
)
def test_any_other_file_is_refused_with_the_remedy(path: Path, content: bytes, complaint: str) -> None:
    path.write_bytes(content)
    with pytest.raises(AudioError, match=complaint):
        read_wav(path)


def test_answer_is_written_as_24_khz_mono_pcm16(path: Path) -> None:
    write_wav(path, np.array([0.0, 1.0, -1.0, 2.0], np.float32))
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 32767, -32767, 32767]


def test_written_wav_is_readable(path: Path) -> None:
    samples = np.linspace(-1, 1, 100, dtype=np.float32)
    write_wav(path, samples, 16_000)
    assert np.abs(read_wav(path) - samples).max() < 1e-4
