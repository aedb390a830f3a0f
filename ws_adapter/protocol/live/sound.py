"""Conversion of audio between the client's format and the model's, for Live and OpenAI's Realtime.

Resampling delays input by up to 30 ms and output by up to 50 ms, as the tests measure. At the end of a turn
the samples that the resampler holds back are sent too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ
from ws_adapter.protocol.duplex.input import SECOND_S
from ws_adapter.protocol.live.resampler import Resampler, SavedResampler
from ws_adapter.protocol.media.g711 import ALAW, ULAW, CompandingLaw
from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

Encoding: TypeAlias = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]

INPUT_RATE_HZ: Final = 16_000

BLOCK_S: Final = 0.1
"""The seconds of the client's audio that are processed at a time."""

SHORT_BLOCK_S: Final = 0.02
"""The same for models with units of at most `BLOCK_S`: a block delays the input by its length."""

_LAWS: Final[Mapping[Encoding, CompandingLaw]] = {"audio/pcmu": ULAW, "audio/pcma": ALAW}
_SCALE: Final = np.float32(32_768)


@dataclass(frozen=True)
class Format:
    """Raw mono audio: little-endian int16, or one of the laws of G.711."""

    encoding: Encoding
    rate_hz: int

    @property
    def width(self) -> int:
        """Bytes of a sample."""
        return 1 if self.encoding in _LAWS else 2

    @property
    def bytes_per_s(self) -> int:
        """Bytes of a second."""
        return self.width * self.rate_hz

    def silence(self, size: int) -> bytes:
        """Return `size` bytes of silence."""
        return _LAWS[self.encoding].silence * size if self.encoding in _LAWS else bytes(size)

    def decode(self, data: bytes) -> Samples:
        """Return float32 in [-1, 1]; `data` is whole samples."""
        if self.encoding in _LAWS:
            return _LAWS[self.encoding].decode(data)
        return np.frombuffer(data, "<i2").astype(np.float32) / _SCALE

    def encode(self, samples: Samples) -> bytes:
        """Return the bytes of float32 samples; those beyond [-1, 1] are clipped."""
        if self.encoding in _LAWS:
            return _LAWS[self.encoding].encode(samples)
        data: bytes = np.clip(samples * _SCALE, -_SCALE, _SCALE - 1).astype("<i2").tobytes()
        return data


PCM_24K: Final = Format("audio/pcm", 24_000)
"""The default format of a session."""


class SavedInputConverter(Struct, frozen=True):
    """The state of an `InputConverter`."""

    waiting: bytes
    resampler: SavedResampler | None


class InputConverter:
    """The conversion of the client's audio into the model's input, float32 at 16 kHz.

    A client may cut its audio anywhere, and into small pieces: less than a block waits for more.
    """

    def __init__(self, format: Format, unit_s: float = SECOND_S) -> None:
        """`unit_s` is the length of a unit of the model."""
        self.format = format
        self._block = round(format.bytes_per_s * (BLOCK_S if unit_s > BLOCK_S else SHORT_BLOCK_S))
        self._waiting = bytearray()
        self._resampler = _resampler(format.rate_hz, INPUT_RATE_HZ)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of audio that wait for more."""
        return len(self._waiting)

    def wait(self, data: bytes) -> None:
        """Keep audio that is converted together with the next piece."""
        self._waiting += data

    def hear(self, data: bytes) -> Samples:
        """Take audio of the client; return the samples that are available now, perhaps none."""
        self._waiting += data
        return self.rest() if len(self._waiting) >= self._block else NO_AUDIO.samples

    def rest(self) -> Samples:
        """Take all waiting samples; the bytes of an incomplete sample still wait."""
        whole = len(self._waiting) // self.format.width * self.format.width
        if not whole:
            return NO_AUDIO.samples
        samples = self.format.decode(bytes(self._waiting[:whole]))
        del self._waiting[:whole]
        return samples if self._resampler is None else self._resampler.more(samples)

    def end(self) -> Samples:
        """Return all remaining samples, including the resampler's delay, at the end of the input."""
        samples = self.rest()
        if self._resampler is None:
            return samples
        return np.concatenate([samples, self._resampler.more(NO_AUDIO.samples, last=True)])

    def save(self) -> SavedInputConverter:
        """Return the state."""
        return SavedInputConverter(bytes(self._waiting), _saved(self._resampler))

    def restore(self, saved: SavedInputConverter) -> None:
        """Go on from a saved state of the same format."""
        self._waiting = bytearray(saved.waiting)
        _restore(self._resampler, saved.resampler)


class OutputConverter:
    """The conversion of the model's speech, float32 at 24 kHz, into the client's format."""

    def __init__(self, format: Format) -> None:
        self.format = format
        self._resampler = _resampler(OUTPUT_RATE_HZ, format.rate_hz)

    def say(self, audio: bytes, *, ends_turn: bool) -> bytes:
        """Return the bytes to send for the next audio of a turn, float32 at 24 kHz.

        With `ends_turn`, the samples that the resampler holds back are included.
        """
        samples = np.frombuffer(audio, "<f4")
        if self._resampler is not None:
            samples = self._resampler.more(samples, last=ends_turn)
        if ends_turn:
            self.stop()
        return self.format.encode(samples)

    def stop(self) -> None:
        """Drop the audio of the turn that the resampler holds back."""
        if self._resampler is not None:
            self._resampler.clear()

    def save(self) -> SavedResampler | None:
        """Return the state; None for a format that is not resampled."""
        return _saved(self._resampler)

    def restore(self, saved: SavedResampler | None) -> None:
        """Go on from a saved state of the same format."""
        _restore(self._resampler, saved)


def _resampler(from_hz: int, to_hz: int) -> Resampler | None:
    return None if from_hz == to_hz else Resampler(from_hz, to_hz)


def _saved(resampler: Resampler | None) -> SavedResampler | None:
    return resampler.save() if resampler is not None else None


def _restore(resampler: Resampler | None, saved: SavedResampler | None) -> None:
    if resampler is not None and saved is not None:
        resampler.restore(saved)
