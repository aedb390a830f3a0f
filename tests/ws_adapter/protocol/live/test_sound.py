"""Audio in the format of a session, in both directions."""

import numpy as np
import pytest

from tests.ws_adapter.support.sound import tone
from ws_adapter.protocol.live.sound import Format, InputConverter, OutputConverter

FORMATS = [
    Format("audio/pcm", 24_000),
    Format("audio/pcm", 16_000),
    Format("audio/pcmu", 8_000),
    Format("audio/pcma", 8_000),
]
formats = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.encoding}-{f.rate_hz}")

LONGEST_IN_MS = 30
LONGEST_OUT_MS = 50


@formats
def test_a_second_is_heard_as_it_was_said(format: Format) -> None:
    converter = InputConverter(format)
    heard = np.concatenate([converter.hear(format.encode(tone(format.rate_hz, 2.0))), converter.rest()])
    assert 0 <= 32_000 - heard.size <= 16 * LONGEST_IN_MS
    middle = slice(8_000, 24_000)
    assert np.abs(heard[middle] - tone(16_000, 2.0)[middle]).max() < 0.02


@formats
@pytest.mark.parametrize("cut", [1, 7, 333, 4_001])
def test_it_does_not_matter_where_the_client_cuts(format: Format, cut: int) -> None:
    said = format.encode(tone(format.rate_hz))
    whole, cutting = InputConverter(format), InputConverter(format)
    heard = [cutting.hear(said[at : at + cut]) for at in range(0, len(said), cut)]
    pieces = np.concatenate([*heard, cutting.rest()])
    expected = np.concatenate([whole.hear(said), whole.rest()])
    assert pieces.size == expected.size
    assert np.abs(pieces - expected).max() < 1e-4
    assert cutting.waiting_bytes < format.width


@formats
def test_little_waits_for_more(format: Format) -> None:
    converter = InputConverter(format)
    converter.hear(bytes(converter.format.bytes_per_s // 10 - 2))
    assert 0 < converter.waiting_bytes < format.bytes_per_s // 10


@formats
def test_a_turn_is_said_to_its_end(format: Format) -> None:
    """The resampler holds some back, at the end of a turn nothing."""
    converter, said = OutputConverter(format), tone(24_000, 2.0)
    first = converter.say(said[:24_000].tobytes(), ends_turn=False)
    second = converter.say(said[24_000:].tobytes(), ends_turn=True)
    samples = format.decode(first + second)
    assert samples.size == 2 * format.rate_hz
    assert format.rate_hz - len(first) // format.width <= format.rate_hz * LONGEST_OUT_MS // 1000
    middle = slice(format.rate_hz // 2, 3 * format.rate_hz // 2)
    assert np.abs(samples[middle] - tone(format.rate_hz, 2.0)[middle]).max() < 0.02


@formats
def test_nothing_of_a_turn_is_left_for_the_next(format: Format) -> None:
    converter, fresh = OutputConverter(format), OutputConverter(format)
    converter.say(tone(24_000).tobytes(), ends_turn=False)
    converter.stop()
    silence = bytes(4 * 24_000)
    assert converter.say(silence, ends_turn=True) == fresh.say(silence, ends_turn=True)


@formats
def test_silence_is_silent(format: Format) -> None:
    assert np.abs(format.decode(format.silence(format.width * 10))).max() <= 8 / 32_768


def test_too_loud_is_clipped() -> None:
    pcm = Format("audio/pcm", 24_000)
    assert pcm.encode(np.array([2.0, -2.0], np.float32)) == np.array([32_767, -32_768], "<i2").tobytes()
