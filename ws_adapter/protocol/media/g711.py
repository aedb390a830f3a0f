"""G.711: eight bits for each sample of telephone speech, by table (ITU-T G.711, sections 2 and 3)."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ws_adapter.protocol.wire.codec import Samples

_Table = NDArray[np.uint8]

_FULL_SCALE: Final = 32_768
_BIAS: Final = 0x84
_ULAW_CLIP: Final = 32_635
_ALAW_IDLE: Final = 8


class CompandingLaw:
    """A companding law of G.711: mu-law or A-law. Codes are bytes, samples are float32 in [-1, 1]."""

    def __init__(self, levels: NDArray[np.int16], codes: _Table, silence: int) -> None:
        self.silence = bytes([silence])
        """The code of 0."""
        self._levels = (levels / np.float32(_FULL_SCALE)).astype(np.float32)
        self._codes = codes

    def decode(self, codes: bytes) -> Samples:
        """Return one sample for each code."""
        decoded: Samples = self._levels[np.frombuffer(codes, np.uint8)]
        return decoded

    def encode(self, samples: Samples) -> bytes:
        """Return one code for each sample; samples beyond [-1, 1] are clipped."""
        scaled = np.clip(np.rint(samples * np.float32(_FULL_SCALE)), -_FULL_SCALE, _FULL_SCALE - 1)
        codes: bytes = self._codes[scaled.astype(np.int32) + _FULL_SCALE].tobytes()
        return codes


def _ulaw_levels() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.uint8)
    exponent = ((code >> 4) & 0x07).astype(np.int32)
    level = ((((code & 0x0F).astype(np.int32) << 3) + _BIAS) << exponent) - _BIAS
    return np.where(code & 0x80, -level, level).astype(np.int16)


def _ulaw_codes() -> _Table:
    sample = np.arange(-_FULL_SCALE, _FULL_SCALE, dtype=np.int32)
    size = np.minimum(np.abs(sample), _ULAW_CLIP) + _BIAS
    exponent = np.floor(np.log2(size)).astype(np.int32) - 7
    code = (exponent << 4) | ((size >> (exponent + 3)) & 0x0F)
    return _bytes(~(code | np.where(sample < 0, 0x80, 0)) & 0xFF)


def _alaw_levels() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, step = (code >> 4) & 0x07, code & 0x0F
    level = np.where(exponent, ((step << 4) + 0x108) << np.maximum(exponent - 1, 0), (step << 4) + 8)
    # A-law has no code for 0: an idle line would decode to a sound of -72 dBFS, and models hear it.
    level = np.where(level == _ALAW_IDLE, 0, level)
    return np.where(code & 0x80, level, -level).astype(np.int16)


def _alaw_codes() -> _Table:
    sample = np.arange(-_FULL_SCALE, _FULL_SCALE, dtype=np.int32)
    # A negative sample is coded by its one's complement, so 0 has only one code.
    size = np.where(sample < 0, ~sample, sample)
    exponent = np.maximum(np.floor(np.log2(np.maximum(size, 1))).astype(np.int32) - 7, 0)
    step = (size >> np.maximum(exponent + 3, 4)) & 0x0F
    return _bytes(((exponent << 4) | step | np.where(sample < 0, 0, 0x80)) ^ 0x55)


def _bytes(codes: NDArray[np.int32]) -> _Table:
    return codes.astype(np.uint8)


ULAW: Final = CompandingLaw(_ulaw_levels(), _ulaw_codes(), 0xFF)
"""The law of North America and Japan, `audio/pcmu`."""

ALAW: Final = CompandingLaw(_alaw_levels(), _alaw_codes(), 0xD5)
"""The law of all other countries, `audio/pcma`."""
