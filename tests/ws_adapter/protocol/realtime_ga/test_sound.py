"""Sound of a Realtime session in its formats: nothing folded, nothing lost, and how late it is."""

from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.realtime_ga_conversation import begun, heard
from tests.ws_adapter.support.sound import tone
from ws_adapter.protocol.core.signals import Piece
from ws_adapter.protocol.live.sound import PCM_24K, Format
from ws_adapter.protocol.realtime_ga.input_buffer import InputBuffer

PCMU = Format("audio/pcmu", 8000)


def loudness(samples: Any) -> float:
    middle = samples[samples.size // 4 : -samples.size // 4]
    return float(np.sqrt(np.mean(np.square(middle))))


@pytest.mark.parametrize(("hz", "passes"), [(1000.0, True), (6000.0, False)])
def test_g711_output_is_filtered_before_it_is_thinned(hz: float, passes: bool) -> None:
    session = begun(audio={"input": {"turn_detection": None}, "output": {"format": {"type": "audio/pcmu"}}})
    session.respond()
    session.worker(Piece(1, "Beep", tone(24_000, hz=hz).tobytes()))
    session.finish()
    samples = PCMU.decode(heard(session.sent))
    assert (loudness(samples) > 0.3) == passes
    assert passes or loudness(samples) < 0.01


@pytest.mark.parametrize("format", [PCM_24K, PCMU], ids=["pcm", "pcmu"])
def test_committed_audio_is_complete(format: Format) -> None:
    buffer = InputBuffer(format)
    data = format.encode(tone(format.rate_hz))
    for at in range(0, len(data), 333):
        buffer.append(data[at : at + 333])
    samples = np.frombuffer(buffer.take_all(), "<f4")
    assert abs(samples.size - 16_000) <= 16
    assert abs(loudness(samples) - 0.5 / np.sqrt(2)) < 0.02
    assert buffer.ms == buffer.held_bytes == 0


def test_places_count_from_the_first_audio_through_commits() -> None:
    buffer = InputBuffer(PCM_24K)
    for _ in range(3):
        buffer.append(PCM_24K.silence(48_000))
        buffer.take_all()
    assert buffer.begin == buffer.end == 3 * 16_000
