"""Reference audio: the voice that the session speaks with."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from ws_adapter.protocol.media.wav import Sound, is_wav, read_wav
from ws_adapter.protocol.wire.codec import bounded, decode_base64
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.events import VoiceFields
from ws_adapter.protocol.wire.faults import shown

RATE_HZ: Final = 16_000
SHORTEST_S: Final = 0.5
LONGEST_S: Final = 30.0

_DATA_PREFIX: Final = re.compile(r"data:[^,]{0,100};base64,")
_VOICE_ID: Final = re.compile(r"[a-z0-9_-]{1,64}")


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


NO_VOICE: Final = Voice()

VoicePlaces = Sequence[tuple[str, VoiceFields | None]]
"""The places of a voice in an event: paths, empty for its root, and their values; the first wins."""


def read_voice(places: VoicePlaces, voices: Set[str] | None) -> Voice:
    """Return the voice that an event requests; raises `Refusal`.

    Audio wins over an id. `voices` are the ids registered with the workers, None while no worker is known.
    """
    llm = _reference(places, ("ref_audio_base64", "ref_audio"))
    speech = _reference(places, ("tts_ref_audio_base64", "tts_ref_audio"))
    if llm is None and speech is None:
        return Voice(voice_id=_voice_id(places, voices))
    return Voice(llm_reference=llm, speech_reference=speech)


def _given(places: VoicePlaces, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return path and value of the first field with a value."""
    for path, fields in places:
        for name in names:
            value: str | None = getattr(fields, name, None)
            if value:
                return f"{path}.{name}" if path else name, value
    return None


def _reference(places: VoicePlaces, names: tuple[str, ...]) -> bytes | None:
    found = _given(places, names)
    return read_reference(found[1], found[0]) if found is not None else None


def read_reference(text: str, path: str) -> bytes:
    """Return float32 at 16 kHz from the base64 of a WAV file or of such samples. Raises `Refusal`."""
    prefix = _DATA_PREFIX.match(text)
    data = decode_base64(text[prefix.end() :] if prefix else text, path)
    sound = read_wav(data, path) if is_wav(data) else _raw(data, path)
    if not SHORTEST_S <= sound.seconds <= LONGEST_S:
        expected = f"expected {SHORTEST_S:g} s to {LONGEST_S:g} s of audio"
        raise invalid(path, f"{expected}, got {sound.seconds:.6g} s")
    return bounded(sound.at(RATE_HZ), path).samples.astype("<f4", copy=False).tobytes()


def _raw(data: bytes, path: str) -> Sound:
    if len(data) % 4:
        raise invalid(path, f"expected a WAV file or whole float32 samples, got {len(data)} bytes")
    return Sound(np.frombuffer(data, "<f4"), RATE_HZ)


def _voice_id(places: VoicePlaces, voices: Set[str] | None) -> str | None:
    found = _given(places, ("ref_audio_path",))
    return read_voice_id(found[1], found[0], voices) if found is not None else None


def read_voice_id(text: str, path: str, voices: Set[str] | None) -> str:
    """Return the id of a registered voice from a text that may look like a path to it. Raises `Refusal`."""
    name = text.replace("\\", "/").rpartition("/")[2]
    name = (name.rpartition(".")[0] or name).lower()
    if not _VOICE_ID.fullmatch(name) or (voices is not None and name not in voices):
        raise invalid(path, f"expected the id of a registered voice, or none, got {shown(name)}")
    return name
