"""Reference audio: the voice a session shall hear as its own and speak with."""

import re
import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np
import soxr

from ws_adapter.codec import Samples, bounded, decode_base64
from ws_adapter.dialects.errors import Refusal, invalid
from ws_adapter.dialects.events import VoiceFields
from ws_adapter.dialects.faults import shown

RATE_HZ: Final = 16_000
SHORTEST_S: Final = 0.5
LONGEST_S: Final = 30.0

_DATA_PREFIX: Final = re.compile(r"data:[^,]{0,100};base64,")
_VOICE_ID: Final = re.compile(r"[a-z0-9_-]{1,64}")
_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_STREAMED_SIZE: Final = 0x7FFF_0000
"""From here on a size in a header means that the program wrote to a pipe and could not know it."""
_FORMATS: Final = {(_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32)}


@dataclass(frozen=True)
class Voice:
    """References as bytes of float32 little-endian mono at 16 kHz, or the id of a registered voice."""

    llm_reference: bytes | None = None
    speech_reference: bytes | None = None
    voice_id: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the references."""
        return len(self.llm_reference or b"") + len(self.speech_reference or b"")


VoicePlaces = Sequence[tuple[str, VoiceFields | None]]
"""Where a voice may be named in an event: paths, empty for its root, and what is there; the first wins."""


def read_voice(places: VoicePlaces, voices: Set[str] | None) -> Voice:
    """The voice that an event asks for; raises `Refusal`.

    Audio wins over an id. `voices` are the ids registered with the workers, None while no worker is known.
    """
    llm = _reference(places, ("ref_audio_base64", "ref_audio"))
    speech = _reference(places, ("tts_ref_audio_base64", "tts_ref_audio"))
    if llm is None and speech is None:
        return Voice(voice_id=_voice_id(places, voices))
    return Voice(llm_reference=llm, speech_reference=speech)


def _given(places: VoicePlaces, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Path and value of the first field that has one."""
    for path, fields in places:
        for name in names:
            value: str | None = getattr(fields, name, None)
            if value:
                return f"{path}.{name}" if path else name, value
    return None


def _reference(places: VoicePlaces, names: tuple[str, ...]) -> bytes | None:
    found = _given(places, names)
    if found is None:
        return None
    path, text = found
    prefix = _DATA_PREFIX.match(text)
    data = decode_base64(text[prefix.end() :] if prefix else text, path)
    samples = _wav(data, path) if data.startswith(b"RIFF") else _raw(data, path)
    seconds = samples.size / RATE_HZ
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise invalid(path, f"expected {SHORTEST_S:g} s to {LONGEST_S:g} s of audio, got {seconds:.6g} s")
    return bounded(samples, path).samples.astype("<f4", copy=False).tobytes()


def _raw(data: bytes, path: str) -> Samples:
    if len(data) % 4:
        raise invalid(path, f"expected a WAV file or whole float32 samples, got {len(data)} bytes")
    return np.frombuffer(data, "<f4")


@dataclass(frozen=True)
class _WavFormat:
    """What the `fmt ` chunk of a WAV file says."""

    encoding: int
    channels: int
    rate_hz: int
    bits: int


def _wav(data: bytes, path: str) -> Samples:
    layout, body = _wav_chunks(data, path)
    if (layout.encoding, layout.bits) not in _FORMATS:
        raise invalid(path, f"expected WAV of 16, 24 or 32 bits PCM or float32, got {layout.bits} bits")
    if layout.channels not in (1, 2):
        raise invalid(path, f"expected WAV of 1 or 2 channels, got {layout.channels}")
    if not 8_000 <= layout.rate_hz <= 48_000:
        raise invalid(path, f"expected WAV of 8000 to 48000 Hz, got {layout.rate_hz} Hz")
    frame = layout.channels * layout.bits // 8
    body = body[: len(body) // frame * frame]
    if len(body) / frame / layout.rate_hz > LONGEST_S + 1:
        raise invalid(path, f"expected {SHORTEST_S:g} s to {LONGEST_S:g} s of audio, got more")
    samples = _wav_samples(layout, body)
    # Before resampling, which would spread one NaN over everything.
    stereo = bounded(samples, path).samples.reshape(-1, layout.channels)
    mono: Samples = stereo.mean(axis=1, dtype=np.float32)
    if layout.rate_hz != RATE_HZ and mono.size:
        mono = soxr.resample(mono, layout.rate_hz, RATE_HZ)
    return mono


def _wav_samples(layout: _WavFormat, body: bytes) -> Samples:
    if layout.encoding == _FLOAT:
        return np.frombuffer(body, "<f4")
    if layout.bits == 24:
        # Three bytes become the upper three of four, which keeps the sign.
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        integers = wide.reshape(-1).view("<i4")
    else:
        integers = np.frombuffer(body, f"<i{layout.bits // 8}")
    scaled: Samples = integers.astype(np.float32) / np.float32(np.iinfo(integers.dtype).max + 1)
    return scaled


def _wav_chunks(data: bytes, path: str) -> tuple[_WavFormat, bytes]:
    """Format and sample bytes; sizes in headers are held against the bytes that are really there."""
    damaged = invalid(path, "the WAV file is damaged: its format or its samples are missing")
    if data[8:12] != b"WAVE":
        raise damaged
    layout: _WavFormat | None = None
    position = 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + size]
        if len(body) < size < _STREAMED_SIZE:
            raise damaged
        if name == b"fmt ":
            layout = _wav_format(body, damaged)
        elif name == b"data" and layout is not None:
            return layout, body
        position += 8 + size + size % 2
    raise damaged


def _wav_format(body: bytes, damaged: Refusal) -> _WavFormat:
    if len(body) < 16:
        raise damaged
    encoding, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if encoding == _EXTENSIBLE and len(body) >= 26:
        (encoding,) = struct.unpack_from("<H", body, 24)
    return _WavFormat(encoding, channels, rate_hz, bits)


def _voice_id(places: VoicePlaces, voices: Set[str] | None) -> str | None:
    found = _given(places, ("ref_audio_path",))
    if found is None:
        return None
    path, text = found
    name = text.replace("\\", "/").rpartition("/")[2]
    name = (name.rpartition(".")[0] or name).lower()
    if not _VOICE_ID.fullmatch(name) or (voices is not None and name not in voices):
        raise invalid(path, f"expected the id of a registered voice, or none, got {shown(name)}")
    return name
