"""G.711 by table, against the values of the standard."""

import numpy as np
import pytest

from ws_adapter.protocol.media.g711 import ALAW, ULAW, CompandingLaw

laws = pytest.mark.parametrize("law", [ULAW, ALAW], ids=["ulaw", "alaw"])


@pytest.mark.parametrize(
    ("law", "code", "expected"),
    [
        (ULAW, 0xFF, 0),
        (ULAW, 0x80, 32_124),
        (ULAW, 0x00, -32_124),
        (ULAW, 0xFE, 8),
        (ULAW, 0x7E, -8),
        (ALAW, 0xD5, 0),
        (ALAW, 0x55, 0),
        (ALAW, 0xD4, 24),
        (ALAW, 0x54, -24),
        (ALAW, 0xAA, 32_256),
        (ALAW, 0x2A, -32_256),
    ],
)
def test_levels_are_those_of_the_standard(law: CompandingLaw, code: int, expected: int) -> None:
    assert round(float(law.decode(bytes([code]))[0]) * 32_768) == expected


@laws
def test_each_code_comes_back(law: CompandingLaw) -> None:
    levels = law.decode(bytes(range(256)))
    again = law.decode(law.encode(levels))
    assert (levels == again).all()


@laws
def test_a_sample_gets_a_level_near_it(law: CompandingLaw) -> None:
    samples = np.arange(-32_000, 32_000, dtype=np.float32) / 32_768
    error = np.abs(law.decode(law.encode(samples)) - samples)
    # The largest error is that of the first samples of a segment: half a step of 16 in its beginning.
    assert (error <= np.maximum(np.abs(samples) / 27, 17 / 32_768)).all()


@laws
def test_levels_never_fall_while_samples_rise(law: CompandingLaw) -> None:
    samples = np.linspace(-1.5, 1.5, 10_001, dtype=np.float32)
    assert (np.diff(law.decode(law.encode(samples))) >= 0).all()


@laws
def test_silence_is_the_code_of_nothing(law: CompandingLaw) -> None:
    assert law.encode(np.zeros(3, np.float32)) == law.silence * 3
