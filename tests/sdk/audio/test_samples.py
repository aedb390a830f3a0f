"""Tests of the checks and encodings of samples."""

import base64

import numpy as np
import pytest

from antiphon import AudioError, ProtocolError
from antiphon.audio.samples import as_samples, from_base64, pieces, to_base64


def test_array_is_taken_as_it_is_and_bytes_as_little_endian_float32() -> None:
    samples = np.array([0.0, 0.5, -1.0], np.float32)
    assert as_samples(samples) is samples
    assert as_samples(np.array([0.25, -0.5], "<f4").tobytes()).tolist() == [0.25, -0.5]


@pytest.mark.parametrize(
    ("audio", "remedy"),
    [
        (np.zeros(4, np.float64), "astype"),
        (np.zeros(4, np.int16), "32768"),
        (np.zeros((4, 2), np.float32), "Average"),
        (np.zeros(0, np.float32), "no samples"),
        (np.array([0.0, np.nan], np.float32), "nan_to_num"),
        (np.array([np.inf], np.float32), "nan_to_num"),
        (b"", "no samples"),
        (b"12345", "multiple of 4"),
    ],
)
def test_unfit_audio_is_refused_with_the_remedy(audio: object, remedy: str) -> None:
    with pytest.raises(AudioError, match=remedy):
        as_samples(audio)  # type: ignore[arg-type]


def test_samples_round_trip_through_base64() -> None:
    samples = np.linspace(-1, 1, 1001, dtype=np.float32)
    assert np.array_equal(from_base64(to_base64(samples)), samples)


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"12345").decode()])
def test_malformed_audio_of_the_server_raises_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        from_base64(text)


def test_pieces_keep_order_and_length() -> None:
    samples = np.arange(7, dtype=np.float32)
    assert [piece.tolist() for piece in pieces(samples, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
