"""Decode the bytes of an AudioChunk, and refuse those that are no sound."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from inference_service.errors import UnitRefused
from inference_service.interface.engine import Failure
from inference_service.media.pcm import decode_pcm

F32, S16 = common.AUDIO_ENCODING_PCM_F32LE, common.AUDIO_ENCODING_PCM_S16LE
RATE, UNIT = 16_000, 16_000


def chunk(data: bytes, encoding: int = F32, rate: int = RATE) -> common.AudioChunk:
    return common.AudioChunk(encoding=encoding, sample_rate_hz=rate, data=data)  # type: ignore[arg-type]


def decode(audio: common.AudioChunk) -> np.ndarray:
    return decode_pcm(audio, field="duplex.audio", sample_rate_hz=RATE, max_samples=UNIT)


def refusal(audio: common.AudioChunk) -> Failure:
    with pytest.raises(UnitRefused) as refused:
        decode(audio)
    return refused.value.failure


def test_samples_arrive_as_they_were_sent_within_their_range() -> None:
    sent = np.linspace(-1, 1, 100, dtype="<f4")
    heard = decode(chunk(sent.tobytes()))
    assert heard.dtype == np.float32
    np.testing.assert_array_equal(heard, sent)
    overdriven = np.array([-3.0, 0.5, 15.9], "<f4")
    np.testing.assert_array_equal(decode(chunk(overdriven.tobytes())), np.array([-1, 0.5, 1], np.float32))
    short = np.array([-32768, 0, 16384, 32767], "<i2")
    np.testing.assert_allclose(decode(chunk(short.tobytes(), S16)), [-1, 0, 0.5, 32767 / 32768])


@pytest.mark.parametrize(
    ("audio", "field"),
    [
        pytest.param(chunk(b"\0" * 8, 0), "duplex.audio.encoding", id="no encoding"),
        pytest.param(chunk(b"\0" * 8, 99), "duplex.audio.encoding", id="unknown encoding"),
        pytest.param(chunk(b"\0" * 8, rate=24_000), "duplex.audio.sample_rate_hz", id="other rate"),
        pytest.param(chunk(b"\0" * 8, rate=0), "duplex.audio.sample_rate_hz", id="no rate"),
        pytest.param(chunk(b""), "duplex.audio.data", id="empty"),
        pytest.param(chunk(b"\0" * 7), "duplex.audio.data", id="part of a float"),
        pytest.param(chunk(b"\0" * 3, S16), "duplex.audio.data", id="part of a 16-bit sample"),
        pytest.param(chunk(b"\0" * 4 * (UNIT + 1)), "duplex.audio.data", id="over one unit"),
        pytest.param(chunk(np.array([0, np.nan], "<f4").tobytes()), "duplex.audio.data", id="nan"),
        pytest.param(chunk(np.array([0, -np.inf], "<f4").tobytes()), "duplex.audio.data", id="infinity"),
        pytest.param(chunk(np.array([0, 16.5], "<f4").tobytes()), "duplex.audio.data", id="not audio"),
    ],
)
def test_bad_audio_is_refused_by_its_field(audio: common.AudioChunk, field: str) -> None:
    failure = refusal(audio)
    assert (failure.reason, failure.field, failure.retryable) == (Reason.AUDIO_INVALID, field, False)
    assert failure.message.startswith(field)


@given(st.binary(max_size=64), st.sampled_from([0, F32, S16, 3]), st.sampled_from([0, RATE, 2**32 - 1]))
def test_any_bytes_are_audio_in_range_or_refused(data: bytes, encoding: int, rate: int) -> None:
    with contextlib.suppress(UnitRefused):
        assert np.all(np.abs(decode(chunk(data, encoding, rate))) <= 1)
